"""A test that hangs is ended and named, and the others run: whoever swallows an error must not stop everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = """
import asyncio, queue, subprocess, sys, threading
import pytest

@pytest.fixture
def server():
    for _ in subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE).stdout:
        pass

def test_in_a_fixture(server): pass
def test_for_a_thread(): queue.Queue().get()
async def test_for_the_loop(): await asyncio.Event().wait()
def test_that_runs(): pass
"""


def test_a_test_that_hangs_is_ended_and_named(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """In its fixture, on another thread, on the event loop; with the method that this suite uses."""
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    (tmp_path / "test_it.py").write_text(HANGING)
    options = ["timeout=1", f"timeout_method={pytestconfig.getini('timeout_method')}", "asyncio_mode=auto"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "-n0",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, *(part for option in options for part in ("-o", option)), "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout
    told = done.stdout.partition("short test summary info")[2]
    assert all(f"::{name}" in told for name in ("test_in_a_fixture", "test_for_a_thread", "test_for_the_loop")), told
    assert done.stdout.count("Failed: Timeout (>1.0s)") >= 3
