"""SGLang's own code, started as its server starts: plugins, then the configuration, then what is sized by it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

# What SGLang imports of torchvision wants operators that its builds for CUDA bring.
VISION = torch.library.Library("torchvision", "DEF")
VISION.define("nms(Tensor boxes, Tensor scores, float most) -> Tensor")
VISION.define("qnms(Tensor boxes, Tensor scores, float most) -> Tensor")


class Log(logging.Handler):
    """Keeps what SGLang's plugin loader says, and what we do."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        for name in ("sglang.srt.plugins", "adaptspec"):
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage() + (f": {record.exc_info[1]}" if record.exc_info else ""))


def start(model: str, *arguments: str) -> dict[str, Any]:
    """What two places that read `--speculative-adaptive-config` make of it. Raises what keeps SGLang from starting."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    device = ("--device", "cpu", "--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", model)
    served = prepare_server_args(["--model-path", model, *device, "--speculative-adaptive", *arguments])
    served.resolve_once()

    from sglang.srt.runtime_context import publish
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    publish(served, role="scheduler")
    view = resolved_view(served)
    widest = SpeculativeAlgorithm.from_string("EAGLE").resolve_max_speculative_num_draft_tokens(served)
    return {"adaptive": view.speculative_adaptive, "steps": view.speculative_num_steps, "widest": widest}


def rows_of_logits() -> int:
    """The third: rows that a model's buffer of logits has, with graphs captured for 8 requests."""
    from sglang.srt.model_executor import model_runner

    model_runner.get_batch_sizes_to_capture = lambda *_, **__: ([8], None)
    runner = SimpleNamespace(
        decode_num_tokens_per_req=lambda num_draft_tokens: num_draft_tokens,
        decode_graph_gather_requirements=lambda: (False, False),
    )
    return int(model_runner.ModelRunner.max_decode_logits_rows(runner))


class Worker:
    """An EAGLE worker without models: SGLang's own methods decide when the controller is asked and told."""

    def __init__(self, path: str | None, steps: int) -> None:
        from sglang.srt.speculative import adaptive_spec_params, eagle_worker_v2

        self.speculative_num_steps, self.built = steps, dict[int, Any]()
        params = eagle_worker_v2.AdaptiveSpeculativeParams(initial_steps=steps, cfg_path=path)
        assert eagle_worker_v2.AdaptiveSpeculativeParams is adaptive_spec_params.AdaptiveSpeculativeParams
        self.adaptive_controller = eagle_worker_v2.AdaptiveController(self, params)
        self._own = eagle_worker_v2.EAGLEWorkerV2
        self.adaptive_controller.init_states([1, 2, 4, 8, 16, 32])

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> Any:
        from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState

        self.built[speculative_num_steps] = cuda_graph_bs
        return SpecRuntimeState(speculative_num_steps, speculative_num_draft_tokens, *[None] * 6)

    def apply_runtime_state(self, state: Any) -> None:
        self.speculative_num_steps = state.speculative_num_steps

    def steps(self, batch_size: int) -> int:
        self._own.activate_step_by_batch(self, batch_size)
        return self.speculative_num_steps

    def verified(self, accepted: list[int]) -> None:
        self._own.on_verify_complete_cpu(self, accepted, batch_size=len(accepted))


def apart(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns in a process of its own, or which error it raised, and what was logged meanwhile."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        log = Log()
        try:
            told = do()
        except Exception as error:  # noqa: BLE001 - that is what is asked for
            told = {"refused": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as out:
            json.dump(told | {"log": log.lines}, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = json.load(answer)
    os.waitpid(child, 0)
    return dict(told)
