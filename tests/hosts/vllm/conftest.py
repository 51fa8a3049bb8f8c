"""Programs beside vLLM, as its users install it (see tests/hosts/conftest.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import run

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}

Program = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def program(vllm_python: Path) -> Program:
    """Runs one of the programs beside vLLM, and gives what it prints last, as JSON."""
    return partial(run_program, vllm_python)


def run_program(python: Path, name: str, *arguments: object, timeout: float = 300, **variables: str) -> dict[str, Any]:
    words = [str(argument) for argument in arguments]
    told = run(python, PROGRAMS / f"{name}.py", *words, timeout=timeout, **(QUIET | variables))
    return dict(json.loads(told.splitlines()[-1]))
