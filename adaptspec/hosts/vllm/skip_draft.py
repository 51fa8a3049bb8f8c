"""Depth 0 without the draft: a worker extension for vLLM, which by itself runs the draft at depth 0 as well.

vLLM keeps the draft's cache up to date in every step, and has no way to catch up later. Left out, the draft has holes
in its cache: rows that were in such a step are kept at depth 0 until they end, which the scheduler sees to. So it pays
only where off lasts. What is written stays the same: the draft's cache decides what is proposed, never what is kept.

`--worker-extension-cls` has it imported in every worker, and nowhere else.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from adaptspec.hosts.vllm.contract import SKIPPED, SKIPPING, check_names


class SkipDraft:
    """Adds nothing to a worker: importing it is what is asked for."""


def _skipping(execute: Any, fits: Any) -> tuple[Any, Any]:
    """The runner's own methods, but that a step which says so has no room for drafts: vLLM then runs no draft."""

    @wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self.adaptspec_skips = getattr(scheduler_output, SKIPPED, False)
        return execute(self, scheduler_output, *args, **kwargs)

    @wraps(fits)
    def input_fits_in_drafter(self: Any, *args: Any) -> bool:
        return not self.adaptspec_skips and bool(fits(self, *args))

    return execute_model, input_fits_in_drafter


check_names(SKIPPING)
GPUModelRunner.execute_model, GPUModelRunner._input_fits_in_drafter = _skipping(
    GPUModelRunner.execute_model, GPUModelRunner._input_fits_in_drafter
)
