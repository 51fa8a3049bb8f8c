"""Waiting OpenMP threads spin for a bounded time, unless the user has said how they are to wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

BY_DEFAULT = ["-c", "import adaptspec, torch"]


def spin_count(program: list[str], **environment: str) -> int:
    """What libgomp has read when it was loaded, as it says itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_", "ADAPTSPEC_"))}
    done = subprocess.run(
        [sys.executable, *program],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not found:
        pytest.skip("this torch does not come with libgomp")
    return int(found[0])


@pytest.mark.parametrize(
    "program",
    [
        BY_DEFAULT,
        ["-c", "from adaptspec.engine.sync_engine import Engine"],
        ["-m", "adaptspec", "serve", "--show-config"],
    ],
)
def test_it_is_bounded_however_the_package_is_started(program: list[str]) -> None:
    assert spin_count(program) == 100_000


@pytest.mark.parametrize(
    ("environment", "same_as"),
    [({"GOMP_SPINCOUNT": "77"}, {"GOMP_SPINCOUNT": "77"}), ({"OMP_WAIT_POLICY": "active"},) * 2],
)
def test_what_the_user_has_set_counts(environment: dict[str, str], same_as: dict[str, str]) -> None:
    assert spin_count(BY_DEFAULT, **environment) == spin_count(["-c", "import torch"], **same_as) != 100_000


def test_a_program_that_has_loaded_torch_keeps_its_environment() -> None:
    """It could not take effect there, and programs that it starts would inherit it."""
    program = "import torch, adaptspec, os; print('GOMP_SPINCOUNT' in os.environ)"
    kept = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", program], env=kept, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
