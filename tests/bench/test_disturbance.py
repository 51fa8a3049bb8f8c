"""Busy processes run while they are wanted, and never longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from adaptspec.bench.disturbance import disturbed


def runs(process: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_they_end_with_what_they_disturb() -> None:
    """Also where that fails."""
    started: list[int] = []

    def fail() -> None:
        with disturbed(2) as processes:
            started.extend(processes)
            assert all(map(runs, started))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(started) == 2
    assert not any(map(runs, started))


def test_they_end_where_whoever_started_them_is_killed() -> None:
    """Nobody is left then to end them."""
    program = (
        "import time\nfrom adaptspec.bench.disturbance import disturbed\n"
        "with disturbed(1) as started:\n    print(*started, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    (child,) = map(int, parent.stdout.readline().split())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while runs(child):  # the test's own limit ends it otherwise
        time.sleep(0.01)
    assert os.getpid() != child
