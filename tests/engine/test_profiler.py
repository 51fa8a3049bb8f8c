"""Profiling: positive costs for every cell, rows left free, cached per machine and pair, distrusted when busy."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.cost_files import cost_files, write_cost_file
from adaptspec.engine.profiler import (
    Extent,
    Stopwatch,
    measure,
    profiled_costs,
)
from adaptspec.models.runner import Forward, Packed
from tests.conftest import MakeModel
from tests.fakes import TableRunner
from tests.models.packing import load_runner


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Machine:
    """A clock that moves with passes alone: each takes `seconds(rows, tokens per row)`."""

    def __init__(self, seconds: Callable[[int, int], float] = lambda rows, width: 1e-3 + 1e-4 * rows * width) -> None:
        self.seconds = seconds
        self.now = 0.0

    def clock(self) -> float:
        return self.now


class Timed(TableRunner):
    """Counts its passes, each of which moves the clock of its machine."""

    def __init__(self, machine: Machine, seed: int = 0, context: int = 128, capacity: int = 10**9) -> None:
        super().__init__(seed=seed, context=context, capacity=capacity)
        self.machine = machine
        self.passes = 0

    def forward(self, packed: Packed) -> Forward:
        self.passes += 1
        self.machine.now += self.machine.seconds(len(packed.rows), int(packed.counts.max()))
        return super().forward(packed)


def _timed(machine: Machine) -> tuple[Timed, list[Drafter]]:
    """A target with a draft model and lookup, all on one machine."""
    return Timed(machine), [DraftModelDrafter(Timed(machine, seed=1)), LookupDrafter(24)]


def _cached(folder: Path) -> list[Path]:
    """Cost tables that were kept."""
    return list((folder / "adaptspec" / "costs").glob("*.json"))


def test_a_second_start_reads_the_cache() -> None:
    """Costs are measured once per machine and pair. Later starts check them with a few laps."""
    machine = Machine()
    target = Timed(machine)
    first = profiled_costs(target, [LookupDrafter(24)], 2, timer=machine.clock)
    after_first = target.passes
    second = profiled_costs(target, [LookupDrafter(24)], 2, timer=machine.clock)
    assert 0 < target.passes - after_first < after_first
    assert second.profile == first.profile
    assert first.origin == "measured now"
    assert "seconds ago, on" in second.origin
    assert second.measured == pytest.approx(first.measured, abs=1.0)


def test_a_table_that_laps_contradict_is_measured_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another machine under the same name, or one that was busy when it was measured."""
    machine = Machine()
    target, drafters = _timed(machine)
    first = profiled_costs(target, drafters, 1, timer=machine.clock)
    (path,) = _cached(tmp_path)
    slow = tuple(tuple(100.0 * one for one in line) for line in first.profile.verify)
    write_cost_file(path, replace(first.profile, verify=slow), {}, datetime.now(timezone.utc))
    again = profiled_costs(target, drafters, 1, timer=machine.clock)
    assert again.profile.verify[0][0] == pytest.approx(first.profile.verify[0][0])
    assert "do not fit" in caplog.text


def test_a_table_that_contradicts_itself_is_mended_and_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two rows of one token take 70 times as long as two rows of two tokens."""
    machine = Machine(lambda rows, width: 0.56 if (rows, width) == (2, 1) else 0.008)
    verify = profiled_costs(Timed(machine), [LookupDrafter(24)], 2, timer=machine.clock).profile.verify
    assert verify == tuple(tuple(pytest.approx(0.008) for _ in line) for line in verify)
    assert not _cached(tmp_path)
    assert re.search(r"\b70\.\d x off between cells", caplog.text)


def test_other_models_and_sizes_are_measured_apart(tmp_path: Path) -> None:
    """A table is never used for other weights, another draft, another number of rows or another type."""
    machine = Machine()
    target, drafters = _timed(machine)
    profiled_costs(target, drafters, 2, timer=machine.clock)
    profiled_costs(target, drafters, 1, timer=machine.clock)
    profiled_costs(Timed(machine, seed=5), drafters, 2, timer=machine.clock)
    profiled_costs(target, [LookupDrafter(24)], 2, timer=machine.clock)
    target.info = replace(target.info, dtype="bfloat16")
    profiled_costs(target, drafters, 2, timer=machine.clock)
    assert len(_cached(tmp_path)) == 5


@pytest.mark.parametrize("context", [16, 17, 71, 72, 73, 256])
def test_any_context_can_be_measured(make_model: MakeModel, context: int) -> None:
    """From the shortest a cache can be made for: no pass is longer than a row, and no row is left held."""
    target = load_runner(str(make_model("llama")), device="cpu", max_rows=2, context=context)
    draft = load_runner(str(make_model("llama", seed=1)), device="cpu", max_rows=2, context=16)
    steady = partial(next, count(0.0, 1e-3))
    result = measure(target, [DraftModelDrafter(draft)], 2, Stopwatch(torch.device("cpu"), budget=1.0, timer=steady))
    assert result.rows == result.drafters["draft-model"].rows == (1, 2)
    assert result.tokens == (1, 2, 4, 8)
    result.check()
    assert target.length(0) == draft.length(0) == 0


@pytest.mark.parametrize(("block_size", "tokens", "rows"), [(None, 64, (1,)), (None, 192, (1, 2)), (8, 100, (1, 2, 4))])
def test_only_rows_the_cache_has_room_for_are_measured(
    make_model: MakeModel, block_size: int | None, tokens: int, rows: tuple[int, ...]
) -> None:
    """A small cache serves fewer rows at a time than --max-rows; its costs are those of the rows it can hold."""
    path = str(make_model("llama"))
    target = load_runner(path, device="cpu", max_rows=8, context=64, cache_tokens=tokens, block_size=block_size)
    steady = partial(next, count(0.0, 1e-4))
    result = measure(target, [LookupDrafter(24)], 8, Stopwatch(target.device, budget=1.0, timer=steady))
    assert result.rows == rows
    assert Extent.of(target, 8).rows == rows, "nothing is left reserved"


@pytest.mark.parametrize(("each", "token"), [(1e-3, 1e-4), (7e-3, 3.5e-3), (0.1, 0.02), (0.3, 0.1)])
def test_a_slow_model_is_measured_at_fewer_sizes(each: float, token: float) -> None:
    """Measuring takes some three seconds for any model. The prices of other sizes follow from those measured."""
    machine = Machine(lambda rows, width: each + token * rows * width)
    model = profiled_costs(Timed(machine, context=1024), [LookupDrafter(24)], 16, timer=machine.clock)
    assert machine.now < 3.5
    profile = model.profile
    assert profile.rows[0] == 1
    assert profile.tokens[:2] == (1, 2)
    for rows, line in zip(profile.rows, profile.verify, strict=True):
        for width, seconds in zip(profile.tokens, line, strict=True):
            assert seconds == pytest.approx(machine.seconds(rows, width), rel=0.01)
    for rows, width in ((1, 8), (4, 4), (16, 1), (16, 8)):
        assert model.verify_seconds(rows, rows * width) == pytest.approx(machine.seconds(rows, width), rel=0.2)
    assert profile.per_cached_token >= 0.0


def test_a_broken_cache_file_is_measured_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file costs a few seconds and a warning, never the start."""
    machine = Machine()
    target, drafters = _timed(machine)
    good = profiled_costs(target, drafters, 1, timer=machine.clock)
    (path,) = _cached(tmp_path)
    path.write_text("{")
    assert profiled_costs(target, drafters, 1, timer=machine.clock).profile.rows == good.profile.rows
    assert "measuring again" in caplog.text
    assert path.read_text() != "{"


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_a_busy_machine_is_not_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Measurements taken while another program computes serve this run only. The warning says how to help."""
    draw = random.Random(0)
    machine = Machine(lambda rows, width: draw.choice((1e-3, 3e-3, 3e-3)))
    target, drafters = _timed(machine)
    profiled_costs(target, drafters, 1, timer=machine.clock)
    assert not _cached(tmp_path)
    assert "medians 3.0 x the fastest" in caplog.text
    assert "--threads 1" in caplog.text


def test_an_unwritable_cache_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No home, full disk: serving goes on."""
    (tmp_path / "adaptspec").write_text("in the way")
    machine = Machine()
    target, drafters = _timed(machine)
    assert profiled_costs(target, drafters, 1, timer=machine.clock).profile.rows == (1,)
    assert "cannot be cached" in caplog.text


@pytest.mark.parametrize("home", [None, ""])
def test_without_a_home_directory_costs_are_measured_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, home: str | None
) -> None:
    """As for a container's user without an entry in /etc/passwd: one line, and nothing in the working directory."""

    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    if home is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    assert profiled_costs(Timed(machine), [LookupDrafter(24)], 4, timer=machine.clock).origin == "measured now"
    assert [record.getMessage() for record in caplog.records if "home directory" in record.getMessage()] == [
        "there is no home directory to keep costs in; set XDG_CACHE_HOME to a folder: they are measured at every start"
    ]
    assert not list(tmp_path.iterdir())
    assert cost_files() == ([], [])
