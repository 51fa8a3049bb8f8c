"""AdaptSpec inside vLLM: `--scheduler-cls adaptspec.hosts.vllm.AdaptiveScheduler`.

What imports vLLM is imported when vLLM asks for it: the rest is of use without, and vLLM is looked at first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from adaptspec.hosts.vllm.contract import check_names, check_version

SCHEDULER = f"{__name__}.AdaptiveScheduler"  # as vLLM is told it


def __getattr__(name: str) -> Any:
    if name != "AdaptiveScheduler":
        raise AttributeError(name)
    check_version(import_module("vllm").__version__)
    check_names()
    return import_module(f"{__name__}.adaptive_scheduler").AdaptiveScheduler
