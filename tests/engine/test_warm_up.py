"""Warm-up: prices follow the machine, whatever is slow, short or broken; nothing of it is left in rows and drafters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.build import make_executor
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.warm_up import SECONDS, warm_up
from adaptspec.models.heads.head_checkpoint import load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Forward, Packed
from adaptspec.request import Request, SamplingParams
from tests.conftest import MakeModel
from tests.engine.conftest import Dictated, Notes, byte_level, make_core, run
from tests.exactness.worlds import reference_decoder
from tests.fakes import TableRunner
from tests.gpu.pretend import PretendCuda
from tests.models.heads.golden import HEADS
from tests.models.packing import load_runner

Seconds = Callable[[int, int], float]  # of a pass, by its rows and its tokens
TOKENIZER = byte_level([bytes([byte]) for byte in range(97, 121)])


def line(rows: int, tokens: int) -> float:
    """1 ms, and 0.1 ms for each token."""
    return 1e-3 + 1e-4 * tokens


def light(rows: int, tokens: int) -> float:
    """The pass of a draft model."""
    return 2e-4 + 5e-5 * tokens


@dataclass
class Machine:
    """A clock that only moves with passes. The first pass of a size takes `first` times as long."""

    first: float = 1.0
    now: float = 0.0
    passes: Counter[object] = field(default_factory=Counter)

    def clock(self) -> float:
        return self.now


class Timed(TableRunner):
    """A model whose passes move the clock."""

    def __init__(
        self, machine: Machine, seconds: Seconds = line, seed: int = 0, context: int = 128, capacity: int = 10**9
    ) -> None:
        super().__init__(seed=seed, context=context, capacity=capacity)
        self._machine, self._seconds = machine, seconds

    def forward(self, packed: Packed) -> Forward:
        rows, tokens = len(packed.rows), int(packed.counts.sum())
        size = id(self), rows, tokens
        slower = 1.0 if self._machine.passes[size] else self._machine.first
        self._machine.passes[size] += 1
        self._machine.now += slower * self._seconds(rows, tokens)
        return super().forward(packed)


class Broken(DraftModelDrafter):
    """A draft model whose drafts fail."""

    def propose(self, job: object) -> Any:
        raise RuntimeError("broken")


def warmed(
    machine: Machine, target: TableRunner, drafters: Sequence[Drafter], rows: int = 4, depth: int = 7
) -> CostModel:
    executor = ModelExecutor(target, drafters)
    limits = EngineLimits(max_rows=rows, max_depth=depth)
    return warm_up(executor, InputProcessor(target.info, TOKENIZER), limits, timer=machine.clock)


def pair(machine: Machine) -> tuple[Timed, DraftModelDrafter]:
    return Timed(machine), DraftModelDrafter(Timed(machine, light, seed=1))


@pytest.mark.parametrize("first", [1.0, 30.0])
def test_prices_are_those_of_the_machine(first: float) -> None:
    """Also where the first pass of each size takes much longer, as it does while kernels are chosen."""
    machine = Machine(first)
    target, drafter = pair(machine)
    costs = warmed(machine, target, [drafter, LookupDrafter(24)])
    for rows, width in ((1, 1), (1, 4), (1, 8), (2, 2), (4, 1), (4, 4), (4, 8)):
        assert costs.verify_seconds(rows, rows * width) == pytest.approx(line(rows, rows * width), rel=0.1)
    for rows in (1, 2, 4):
        prices = costs.draft_prices("draft-model", rows)
        assert prices.step + prices.step_row * rows == pytest.approx(light(rows, rows), rel=0.15)


@pytest.mark.parametrize("model", [True, False])
def test_a_fast_model_takes_less_than_all_seconds(model: bool) -> None:
    """Each kind of round runs a few times, and no more."""
    machine = Machine()
    target, drafter = pair(machine)
    warmed(machine, target, [drafter] if model else [LookupDrafter(24)])
    assert machine.now < 0.5 * SECONDS


@pytest.mark.parametrize(("each", "token"), [(1e-3, 1e-4), (7e-3, 3.5e-3), (0.1, 0.02), (0.3, 0.1)])
def test_a_slow_model_runs_fewer_rounds(each: float, token: float) -> None:
    """Warming up takes some three seconds for any model. The prices of other sizes follow from those that ran."""
    machine = Machine()
    target = Timed(machine, lambda _, tokens: each + token * tokens, context=1024)
    costs = warmed(machine, target, [LookupDrafter(24)], rows=16)
    assert machine.now < SECONDS + 0.5
    for rows, width in ((1, 1), (1, 2), (1, 8), (4, 4), (16, 1), (16, 8)):
        assert costs.verify_seconds(rows, rows * width) == pytest.approx(each + token * rows * width, rel=0.25)


def test_prompts_are_priced() -> None:
    machine = Machine()
    costs = warmed(machine, Timed(machine), [LookupDrafter(24)])
    assert costs.prefill_tokens_within(1.0) == pytest.approx(1.0 / 1e-4, rel=0.5)


def test_drafts_that_end_early_cost_what_they_ran() -> None:
    """Half of all tokens end a text: most drafts are short, and a step takes as long as in other drafts."""
    machine = Machine()
    target = Timed(machine)
    drafter = DraftModelDrafter(Timed(machine, light, seed=1), eos_token_ids=range(12))
    prices = warmed(machine, target, [drafter]).draft_prices("draft-model", 1)
    assert prices.step + prices.step_row == pytest.approx(light(1, 1), rel=0.15)


def test_a_drafter_that_fails_costs_its_own_price_alone() -> None:
    machine = Machine()
    target = Timed(machine)
    costs = warmed(machine, target, [Broken(Timed(machine, light, seed=1)), LookupDrafter(24)])
    assert costs.verify_seconds(1, 1) == pytest.approx(line(1, 1), rel=0.1)
    assert costs.draft_prices("draft-model", 1).step > 0.0
    assert target.free_memory == 1.0


@pytest.mark.parametrize("context", [16, 17, 72, 256])
def test_any_context_will_do(make_model: MakeModel, context: int) -> None:
    """No row outgrows it, and none is left held. The draft model's may be shorter."""
    target = load_runner(str(make_model("llama")), device="cpu", max_rows=2, context=context)
    draft = load_runner(str(make_model("llama", seed=1)), device="cpu", max_rows=2, context=16)
    limits = EngineLimits(max_rows=2, max_depth=7)
    inputs = InputProcessor(target.info, TOKENIZER)
    costs = warm_up(ModelExecutor(target, [DraftModelDrafter(draft)]), inputs, limits, seconds=0.2)
    costs.profile.check()
    assert target.free_memory == draft.free_memory == 1.0


@pytest.mark.parametrize("capacity", [10, 30, 100])
def test_a_small_cache_has_fewer_rows(capacity: int) -> None:
    machine = Machine()
    target = Timed(machine, capacity=capacity)
    costs = warmed(machine, target, [LookupDrafter(24)], rows=8)
    assert costs.verify_seconds(1, 1) == pytest.approx(line(1, 1), rel=0.1)
    assert target.free_memory == 1.0


def test_requests_do_not_see_that_rounds_have_run() -> None:
    """Texts, and what lookups and models draft for them, are those of an engine that was not warmed up."""
    rounds = []
    for warm in (False, True):
        target, draft = TableRunner(), TableRunner(seed=1, blend=0.6)
        drafters: list[Drafter] = [DraftModelDrafter(draft), LookupDrafter(24)]
        notes, policy = Notes(), Dictated(("draft-model", "ngram"), lambda number, size: [number % 5] * size)
        core = make_core(TOKENIZER, target, drafters, {"p": (policy, "coupled")}, sinks=[notes])
        if warm:
            assert isinstance(core.executor, ModelExecutor)
            warm_up(core.executor, core.inputs, core.limits)
        sampling = SamplingParams(24, 0.0, ignore_eos=True)
        done = run(core, [Request(f"{i}", (5 + i, 6, 7, 6, 7), sampling) for i in range(3)])
        drafted = [(record.drafted.tolist(), record.accepted.tolist()) for record in notes.records]
        rounds.append(({name: one.tokens for name, one in done.items()}, drafted, core.scheduler.prefixes.stats))
    assert rounds[0] == rounds[1]


@pytest.mark.whole
@pytest.mark.parametrize("draft", ["model", "head"])
def test_rounds_of_a_device_are_replayed(make_model: MakeModel, draft_path: Path, draft: str) -> None:
    """Graphs that were captured run, and all rows are free afterwards."""
    cache = CacheLimits(2, cache_tokens=512, context=256)
    place = str(make_model("llama", hidden_size=16, num_hidden_layers=4))
    with PretendCuda() as cuda:
        loaded = load_model(place, device="cuda", dtype="float32", make=reference_decoder)
        target: Any = loaded.runner(cache)
        if draft == "head":
            runner: Any = load_head(str(HEADS / "eagle3"), loaded).runner(cache)
            target.capture_states(runner.spec.capture)
        else:
            runner = load_model(str(draft_path), device="cuda", dtype="float32", make=reference_decoder).runner(cache)
        drafters = [DraftModelDrafter(runner), LookupDrafter(target.info.vocab_size)]
        limits = EngineLimits(max_rows=2, max_depth=7)
        executor = make_executor(target, drafters, limits, eager=False)
        inputs = InputProcessor(target.info, TOKENIZER)
        costs = warm_up(executor, inputs, limits, seconds=2.0)
        assert costs.draft_prices("draft-model", 1).step > 0.0
        assert cuda.replays.total() > 8
        assert target.free_memory == runner.free_memory == 1.0
