"""The malloc setting: freed memory really stays in the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from adaptspec.training.memory import keep_freed_pages

COUNT_FAULTS = """
import resource
from adaptspec.training.memory import keep_freed_pages

def faults(size=64 * 2**20):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for byte in (b"a", b"b", b"c", b"d"):
        byte * size
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

before, kept = faults(), keep_freed_pages()
faults()
print(before, kept, faults())
"""


def test_large_blocks_are_not_faulted_in_again_where_it_says_so() -> None:
    """Counts page faults, in a process of its own since the setting cannot be undone."""
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True)
    before, kept, after = run.stdout.split()
    assert kept == "False" or int(after) < int(before) / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such setting the recipe just runs slower."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_pages() is False
