"""Ranks add in one order, refuse what cannot be shared, end together, and outlive an error of rank 0 alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.errors import ConfigError, ModelError
from adaptspec.gpu.decoder import FOLLOWER, GpuDecoder
from adaptspec.gpu.device_sampling import DeviceSampler
from adaptspec.gpu.tensor_parallel import RankGroup, start_ranks
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import Grammar
from tests.conftest import TINY_VOCAB, MakeModel
from tests.exactness.harness import Case, answers
from tests.exactness.worlds import REFERENCE
from tests.gpu.engines import DRAWN, GREEDY, LIMITS, TOP_P, built, core_of, requests, same
from tests.gpu.pretend import PretendCuda

CONFIG = EngineConfig(
    policy=("static-3",),
    device="cpu",
    dtype="float32",
    max_model_len=256,
    max_num_seqs=LIMITS.max_rows,
    prefill_tokens=LIMITS.prefill_tokens,
)
CPU = torch.device("cpu")
LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


def close(one: Built) -> None:
    assert isinstance(one.target, GpuDecoder)
    one.target.group.close()


@pytest.mark.whole
def test_in_bfloat16_the_text_is_the_same_at_every_depth(make_model: MakeModel) -> None:
    """Of a model with biases, and more tokens than can be divided: each rank has the whole head."""
    places = [str(make_model("qwen2", seed=seed, vocab_size=TINY_VOCAB + 1)) for seed in range(2)]
    one = built(
        replace(CONFIG, model=places[0], draft=places[1], dtype="bfloat16", max_model_len=128, tensor_parallel_size=2)
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
    [(3, "cpu", "may be 1, 2, 4"), (2, "cuda:1", "device is cuda:1, but torch finds no CUDA device")],
)
def test_what_cannot_be_shared_is_refused(size: int, device: str, error: str) -> None:
    """Before another process starts."""
    with pytest.raises((ConfigError, ModelError), match=error):
        built(replace(CONFIG, device=device, tensor_parallel_size=size))


def test_devices_are_counted() -> None:
    with PretendCuda(), pytest.raises(ConfigError, match="2 from cuda:1 on needs 3 CUDA devices, and there are 1"):
        start_ranks(2, torch.device("cuda", 1), FOLLOWER)


def test_cpus_are_refused() -> None:
    """Their processes have no kernels."""
    with pytest.raises(ConfigError, match="--tensor-parallel-size 2 needs CUDA devices; leave it out on cpu"):
        start_ranks(2, CPU, FOLLOWER)


def test_a_group_of_one_needs_no_other() -> None:
    group, x = RankGroup(), torch.randn(3, 4)
    assert group.ordered_sum(x) is group.gather_vocab(x) is x
    assert group.minimum(7, CPU) == 7
    with pytest.raises(MemoryError), group.together("call", "run_pass"):
        raise MemoryError("the process goes on")


PROGRAM = """
import multiprocessing, os, signal, sys, time
import torch
from adaptspec.gpu import tensor_parallel


class Follower:
    def __init__(self, group, device, leader):
        self.group, self.leader = group, leader

    def add(self, tensor):
        self.leader.send((self.group.ordered_sum(tensor), self.group.gather_vocab(tensor)))


if __name__ == "__main__":
    sys.modules["follower"] = sys.modules["__main__"]
    group = tensor_parallel.start_ranks(2, torch.device("cpu"), "follower:Follower", "tests.gpu.reference")
    rank, how = multiprocessing.active_children()[0].pid, sys.argv[1]
    print(rank, flush=True)
    if how == "adds":
        x = torch.randn(300, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
        y = torch.randn(300, 7, generator=torch.Generator().manual_seed(1)).bfloat16()
        with group.together("add", y):
            added, joined = group.ordered_sum(x), group.gather_vocab(x)
        (theirs,) = group.answers()
        assert torch.equal(added, x + y) and torch.equal(added, theirs[0])
        assert torch.equal(joined, torch.cat((x, y), 1)) and torch.equal(joined, theirs[1])
    if how == "interrupted":
        os.kill(rank, signal.SIGINT)
        time.sleep(0.5)
        with group.together("add", torch.ones(2)):
            assert group.ordered_sum(torch.ones(2)).tolist() == [2.0, 2.0]
            group.gather_vocab(torch.ones(2))
        group.answers()
    if how == "stays":
        time.sleep(60)
    if how == "fails":
        with group.together("add", torch.ones(2)):
            raise MemoryError("in the middle")
    tensor_parallel.PATIENCE = 1.5
    if how == "deaf":
        os.kill(rank, signal.SIGSTOP)
    if how == "stuck":
        torch.distributed.destroy_process_group = lambda: time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A command that starts two ranks; an argument says what happens to them."""
    (tmp_path / "follower.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "follower.py")]


@pytest.mark.whole
@pytest.mark.parametrize("ends", ["follower", "leader", "neither"])
def test_all_end_with_one(ends: str, program: list[str]) -> None:
    """No rank waits forever, none is left over, and a rank that dies is named."""
    command = [*program, "goes" if ends == "neither" else "stays"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        follower = int(leader.stdout.readline())
        if ends != "neither":
            os.kill(follower if ends == "follower" else leader.pid, signal.SIGKILL)
        _, errors = leader.communicate(timeout=30)
    assert leader.returncode == {"follower": 1, "leader": -signal.SIGKILL, "neither": 0}[ends]
    assert ("rank-1 of tensor parallel has ended" in errors) == (ends == "follower")
    assert has_ended(follower)


@pytest.mark.whole
@pytest.mark.parametrize("how", ["deaf", "stuck"])
def test_an_end_that_takes_too_long_is_cut_short(how: str, program: list[str]) -> None:
    """Of a follower that does not answer, or a group that cannot be left. It is reported, and no rank is left over."""
    done = run(program, how)
    assert done.returncode == 1
    assert "of tensor parallel did not end within 3 s, and is killed" in done.stderr
    assert how == "stuck" or "rank-1 of" in done.stderr
    assert has_ended(int(done.stdout))


@pytest.mark.whole
def test_an_error_of_rank_0_in_the_middle_of_a_shared_operation_ends_the_process(program: list[str]) -> None:
    """The other rank waits in a collective that rank 0 has left."""
    done = run(program, "fails")
    assert done.returncode == 1
    assert "rank 0 failed in the middle of an operation of all ranks" in done.stderr
    assert has_ended(int(done.stdout))


@pytest.mark.whole
@pytest.mark.parametrize("how", ["adds", "interrupted"])
def test_ranks_add_in_their_order(how: str, program: list[str]) -> None:
    """With the same bits on each, rounded once; also after Ctrl-C, which is for rank 0 alone."""
    done = run(program, how)
    assert done.returncode == 0, done.stderr
    assert has_ended(int(done.stdout))


def run(program: list[str], how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*program, how], capture_output=True, text=True, timeout=60, check=False)


def has_ended(process: int) -> bool:
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


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Built, Built]]:
    """The bundled models in one process and in two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # both processes of this test run here
    alone, shared = (built(replace(CONFIG, tensor_parallel_size=size)) for size in (1, 2))
    yield alone, shared
    close(shared)
    torch.set_num_threads(threads)


# What a request asks for that rank 0 does alone, in whose rounds it is broken below.
ALONE = {
    "mask": replace(DRAWN, grammar=LETTERS, ignore_eos=False),
    "log-softmax": replace(DRAWN, logprobs=2),
    "choice": replace(DRAWN, temperature=0.5),
}


def breaks(patch: pytest.MonkeyPatch, what: str) -> None:
    """Have it fail on this rank for the request that asks for it."""
    sampling_start = DeviceSampler.start

    def fails_to_start(own: DeviceSampler, logits: torch.Tensor, batch: SamplingBatch, *more: Any) -> Any:
        hit = {
            "mask": any(row.constraint for row in batch.rows),
            "log-softmax": any(row.params.logprobs == 2 for row in batch.rows),
            "choice": any(row.params.temperature == 0.5 for row in batch.rows),
        }[what]
        # Where the target judges a draft; a draft model says how many candidates it wants.
        if hit and len(more) == 2 and any(map(len, more[1])):
            raise MemoryError("broken")
        return sampling_start(own, logits, batch, *more)

    patch.setattr(DeviceSampler, "start", fails_to_start)


@pytest.mark.whole
@pytest.mark.parametrize("what", ALONE)
def test_an_error_of_rank_0_alone_costs_one_request(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Requests of the same round, and later ones, have their usual text: the ranks are at the same operation."""
    asked = requests(pair[0], GREEDY, ALONE[what], TOP_P)
    plain = answers(core_of(pair[0])[0], asked)
    core = core_of(pair[1])[0]
    with monkeypatch.context() as patch:
        breaks(patch, what)
        done = answers(core, asked)
    assert done.pop("r1").error == "MemoryError: broken"
    same(done, plain)
    same(answers(core, asked), plain)


@pytest.mark.whole
@pytest.mark.usefixtures("pair")
def test_a_process_has_one_group_at_a_time() -> None:
    with pytest.raises(ConfigError, match="runs one model on several devices already"):
        start_ranks(2, CPU, FOLLOWER, REFERENCE)
