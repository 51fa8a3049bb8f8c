"""The kernels, in processes of their own: interpreted on the CPU, compiled for three generations, run on a device.

Whether Triton interprets is decided when it is imported, and other tests must find a process without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CHECKS = ["pytest", "-n0", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
# A machine with a GPU may lack plugins that other tests need.
CHECKS += ["-W", "ignore::pytest.PytestConfigWarning", "tests/gpu/kernel_checks.py"]


def run(*arguments: str, interpreted: bool) -> str:
    """The output of `python -m`; fails with it unless the exit status is 0."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    environment = kept | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1" if interpreted else "0"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.whole
@pytest.mark.timeout(400)  # a minute on a quiet machine
@pytest.mark.parametrize("part", ["attention", "not attention"])
def test_kernels_equal_torch_where_triton_is_interpreted(part: str) -> None:
    assert " passed" in run(*CHECKS, "-k", part, interpreted=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_equal_torch_on_a_device() -> None:
    assert " passed" in run(*CHECKS, interpreted=False)


@pytest.mark.whole
@pytest.mark.parametrize("target", [80, 90, 100])
def test_kernels_fit_the_devices_they_are_for(target: int, capsys: pytest.CaptureFixture[str]) -> None:
    table = run("tests.gpu.compiled", str(target), interpreted=False)
    with capsys.disabled():
        sys.stdout.write(f"\n{table}")


@pytest.mark.whole
def test_the_package_can_be_imported_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import adaptspec.gpu.attention_plan, adaptspec.gpu.device_sampling"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
