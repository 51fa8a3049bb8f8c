"""Passes of full-size models launch, copy and hold no more than the design says: counted without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.whole
Line = dict[str, Any]


@pytest.fixture(scope="module")
def passes() -> list[Line]:
    """The counts, from a process of their own: Triton is not imported in that of other tests."""
    command = [sys.executable, "-m", "tests.gpu.counted", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Line] = json.loads(done.stdout)
    assert {line["model"] for line in found} == {"llama-1b", "llama-8b"}
    return found


def test_a_layer_is_ten_launches(passes: list[Line]) -> None:
    """In addition, a pass reads the embedding, normalizes the last states, and leaves them for the LM head."""
    assert all(line["layer_launches"] == 10 * line["layers"] + 3 for line in passes)


def test_the_host_launches_two_graphs_and_the_choice_of_tokens(passes: list[Line]) -> None:
    assert all(line["host_launches"] <= 6 for line in passes)
    assert all(len(line["uploads"]) == 2 and len(line["downloads"]) == 1 for line in passes)


def test_copies_are_small(passes: list[Line]) -> None:
    """Whatever the model: positions and blocks go up, one token with two figures of each position comes back."""
    for line in passes:
        positions = line["rows"] * line["tokens"]
        assert sum(line["uploads"]) < (64 if line["rows"] > 16 else 16) * 1024
        assert sum(line["downloads"]) == 12 * positions


def test_weights_are_read_once(passes: list[Line]) -> None:
    """Also with 128 tokens, and with products of a fixed size."""
    for model in ("llama-1b", "llama-8b"):
        read = {line["weight_bytes"] for line in passes if line["model"] == model}
        assert len(read) == 1
        assert read.pop() == pytest.approx({"llama-1b": 2.47e9, "llama-8b": 15.0e9}[model], rel=0.01)


def test_memory_that_is_set_apart_suffices(passes: list[Line]) -> None:
    for line in passes:
        assert 0.4 * line["reserved"] < line["memory"] <= line["reserved"]
