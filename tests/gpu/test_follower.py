"""Ranks start together, refuse what cannot be shared, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptspec.errors import ConfigError, ModelError
from adaptspec.gpu.follower import lead
from tests.conftest import TINY_VOCAB, MakeModel
from tests.exactness.harness import Case, answers
from tests.gpu.engines import DRAWN, GREEDY, built, core_of, requests, same
from tests.gpu.pretend import PretendCuda
from tests.gpu.test_tensor_parallel import CONFIG, close


@pytest.mark.whole
def test_in_bfloat16_the_text_is_the_same_at_every_depth(make_model: MakeModel) -> None:
    """Of a model with biases, and more tokens than can be divided: each rank has the whole head."""
    places = [str(make_model("qwen2", seed=seed, vocab_size=TINY_VOCAB + 1)) for seed in range(2)]
    one = built(
        replace(CONFIG, model=places[0], draft=places[1], dtype="bfloat16", context=128, tensor_parallel_size=2)
    )
    try:
        params = [GREEDY, DRAWN, replace(DRAWN, seed=7)]
        texts = [answers(core_of(one, Case(depths=depth))[0], requests(one, *params)) for depth in "037"]
    finally:
        close(one)
    same(*texts[:2])
    same(*texts[1:])


@pytest.mark.parametrize(
    ("size", "device", "error"),
    [
        (3, "cpu", "may be 1, 2, 4"),
        (2, "cuda:1", "device is cuda:1, but torch finds no CUDA device"),
    ],
)
def test_what_cannot_be_shared_is_refused(size: int, device: str, error: str) -> None:
    """Before another process starts."""
    with pytest.raises((ConfigError, ModelError), match=error):
        built(replace(CONFIG, device=device, tensor_parallel_size=size))


def test_devices_are_counted() -> None:
    with PretendCuda(), pytest.raises(ConfigError, match="2 from cuda:1 on needs 3 CUDA devices, and there are 1"):
        lead(2, torch.device("cuda", 1))


ENDS = """
import multiprocessing, os, signal, sys, time
import torch
from adaptspec.gpu import follower
if __name__ == "__main__":
    follower.lead(2, torch.device("cpu"))
    rank = multiprocessing.active_children()[0].pid
    print(rank, flush=True)
    if sys.argv[1] == "stays":
        time.sleep(60)
    follower.PATIENCE = 1.5
    if sys.argv[1] == "deaf":
        os.kill(rank, signal.SIGSTOP)
    if sys.argv[1] == "stuck":
        torch.distributed.destroy_process_group = lambda: time.sleep(60)
"""


@pytest.mark.whole
@pytest.mark.parametrize("who", ["follower", "leader", "nobody"])
def test_all_end_with_one(who: str, tmp_path: Path) -> None:
    """By whichever end: nobody waits for ever, nobody is left over, and a rank that dies is named."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    how = "goes" if who == "nobody" else "stays"
    command = [sys.executable, str(script), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        follower = int(leader.stdout.readline())
        if who != "nobody":
            os.kill(follower if who == "follower" else leader.pid, signal.SIGKILL)
        _, told = leader.communicate(timeout=30)
    assert leader.returncode == {"follower": 1, "leader": -signal.SIGKILL, "nobody": 0}[who]
    assert ("rank-1 of tensor parallel has ended" in told) == (who == "follower")
    assert ends(follower)


@pytest.mark.whole
@pytest.mark.parametrize("how", ["deaf", "stuck"])
def test_an_end_that_takes_too_long_is_cut_short(how: str, tmp_path: Path) -> None:
    """By a follower that does not answer, or a group that cannot be left: it is said, and nobody is left over."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = subprocess.run([sys.executable, str(script), how], capture_output=True, text=True, timeout=45, check=False)
    assert done.returncode == 1
    assert "of tensor parallel did not end within 3 s, and is killed" in done.stderr
    assert how == "stuck" or "rank-1 of" in done.stderr
    assert ends(int(done.stdout))


def ends(process: int) -> bool:
    """Within some time."""
    until = time.monotonic() + 20
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(process)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
