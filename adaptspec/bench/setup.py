"""What a benchmark measured: the model, what runs it, and the machine."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.models.llama_cpp import LlamaCppRunner
from adaptspec.models.runner import Runner
from adaptspec.models.transformers_runner import TransformersRunner
from adaptspec.quantity import quantity


def described(built: Built, config: EngineConfig) -> dict[str, Any]:
    """An engine's model, draft model, data type or quantization, runner, threads and machine, for JSON."""
    return {
        "model": config.model,
        "draft": config.draft_model,
        "dtype": built.target.info.dtype,
        "runner": _runner(built.target),
        "equal_passes": built.target.info.equal_passes,
        "device": built.target.device.type,
        "threads": built.threads.count,
        "processor": processor(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The processor's model name, as far as the system reports it."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        named = None
    return named[1] if named else platform.processor() or platform.machine()


def title_of(setup: Mapping[str, Any]) -> str:
    """The same in a line."""
    draft = f" and draft model {setup['draft']}" if setup["draft"] else ""
    threads = quantity(setup["threads"], "thread")
    machine = f"{threads} of {setup['processor']}" if setup["device"] == "cpu" else setup["device"]
    return f"{setup['model']}{draft}, {setup['dtype']} on {setup['runner']}, {machine}"


def _runner(target: Runner) -> str:
    if isinstance(target, LlamaCppRunner):
        return "llama.cpp"
    return "transformers" if isinstance(target, TransformersRunner) else "torch"
