"""SGLang's wheel in an environment of its own, without what it needs of CUDA: its plugins, its configuration and its
AdaptiveController run on a CPU, its models do not.

`ADAPTSPEC_SGLANG` names the Python of an environment that has it already. Else it is made, as those of the clients are
(tests/clients); PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS must name a place that has a CPU build of torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import environment, run

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
WITHOUT = Path(__file__).parent / "without.txt"
WHEEL = ("sglang==0.5.23", "triton==3.9.0", "dill", "opentelemetry-exporter-otlp-proto-http")

Program = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    given = os.environ.get("ADAPTSPEC_SGLANG")
    return Path(given) if given else environment("sglang", "--overrides", str(WITHOUT), *WHEEL) / "python"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AdaptSpec as pip installs it, since SGLang's loader goes by what a wheel declares."""
    folder = tmp_path_factory.mktemp("adaptspec")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, ROOT)
    return folder


@pytest.fixture(scope="session")
def program(sglang_python: Path, installed: Path) -> Program:
    """Runs one of the programs beside SGLang, and gives what it prints last, as JSON."""

    def call(name: str, *arguments: object, timeout: float = 300, **variables: str) -> dict[str, Any]:
        words = [str(argument) for argument in arguments]
        told = run(
            sglang_python, PROGRAMS / f"{name}.py", *words, timeout=timeout, PYTHONPATH=str(installed), **variables
        )
        return dict(json.loads(told.splitlines()[-1]))

    return call
