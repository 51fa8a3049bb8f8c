"""The live engine and the simulator agree, for every shipped policy: the same rounds from the same prompts and seeds.

The engine is timed by a cost table in place of a clock, so that its policies learn the very costs that the simulator
charges. Then nothing differs: not just the mean accepted length and the chosen depths, but every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from adaptspec.arrays import FloatArray
from adaptspec.bench.record_tape import RecordSettings, record
from adaptspec.bench.workloads import Workloads, encode, read_workloads
from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafters import Kind, kind_of
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.build import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.models.runner import Packed as Pass
from adaptspec.models.runner import Runner
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.simulation.machine import Curve, DraftTimes, Machine
from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.simulation.simulator import ReplayStats, SimulatorSettings, replay
from adaptspec.simulation.tape import Tape
from tests.engine.conftest import Notes

TOKENS = 32
TASKS = ("chat", "code", "json", "template", "translate")
# Passes cost by their tokens alone and nothing else takes time, so a runner can tell what it should have taken.
COSTS = Machine(
    "tested",
    Curve((1, 2, 4, 8, 16), (1.3e-3, 1.6e-3, 1.8e-3, 2.2e-3, 3.2e-3)),
    {
        "draft-model": DraftTimes(Curve((1, 2, 4), (2.5e-4, 2.7e-4, 3.1e-4)), 2e-6, start=1e-4),
        "ngram": DraftTimes(per_row=1e-5),
        "counts": DraftTimes(per_row=2e-5),
    },
)


class Timer:
    """A clock that only models move."""

    seconds = 0.0
    draft_begun = False

    def __call__(self) -> float:
        return self.seconds


class PricedTarget:
    """A runner whose passes take what the table says."""

    def __init__(self, inner: Runner, timer: Timer) -> None:
        self._inner, self._timer = inner, timer

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._inner, name)

    def forward(self, packed: Pass):  # type: ignore[no-untyped-def]
        self._timer.seconds += COSTS.verify_seconds(len(packed.rows), int(packed.counts.sum()), 0.0)
        self._timer.draft_begun = False
        return self._inner.forward(packed)


class PricedDraft(PricedTarget):
    """The first pass of a round begins it, and reads what was missed."""

    def forward(self, packed: Pass):  # type: ignore[no-untyped-def]
        own, timer = COSTS.drafters["draft-model"], self._timer
        if not timer.draft_begun:
            read = int(np.maximum(packed.counts - 2, 0).sum())
            timer.seconds += own.start + own.catch_up_per_token * read
            timer.draft_begun = True
        timer.seconds += COSTS.step_seconds("draft-model", len(packed.rows), 0.0)
        return self._inner.forward(packed)


class PricedLookup(LookupDrafter):
    """A lookup for each row that asks for one."""

    def __init__(self, timer: Timer, name: str, vocab_size: int, ends: frozenset[int]) -> None:
        super().__init__(vocab_size, ends, name=name)
        self._timer = timer

    def propose(self, job: DraftJob) -> Draft:
        self._timer.seconds += COSTS.drafters[self.name].per_row * int(np.count_nonzero(job.depths))
        return super().propose(job)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    made = build(EngineConfig(device="cpu", max_num_seqs=4, max_model_len=384, detect_tasks=False, counts=None))
    patch.undo()
    return made


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    known = read_workloads(None, 1)
    return {task: known[task] for task in TASKS}


@pytest.fixture(scope="module")
def tape(built: Built, workloads: Workloads) -> Tape:
    return record(built, workloads, RecordSettings(TOKENS, (0.0, 0.7), seed=3, history=False), lambda: None)


def live(built: Built, workloads: Workloads, tape: Tape, spec: PolicySpec, rows: int) -> Notes:
    """What the engine does with the requests of the tape, timed by the cost table."""
    timer, notes = Timer(), Notes()
    draft = next(drafter for drafter in built.drafters if isinstance(drafter, DraftModelDrafter))
    drafters: Sequence[Drafter] = [
        DraftModelDrafter(PricedDraft(draft.runner, timer), draft.eos_token_ids),
        *(PricedLookup(timer, name, built.target.info.vocab_size, draft.eos_token_ids) for name in ("ngram", "counts")),
    ]
    core = assemble(
        PricedTarget(built.target, timer),
        drafters,
        built.tokenizer,
        specs=[spec],
        costs=CostModel(COSTS.profile()),
        sinks=[notes],
        limits=EngineLimits(max_rows=rows, prefix_cache="off"),  # a tape has no cached prompts
        timer=timer,
    )
    longest = built.target.info.context - TOKENS
    for i, (name, task) in enumerate(zip(tape.ids, tape.tasks, strict=True)):
        prompt = encode(built.template, workloads[task][0], longest)
        sampling = SamplingParams(TOKENS, float(tape.temperatures[i]), seed=int(tape.seeds[i]))
        core.add(Request(name, prompt, sampling, SpeculationParams(task=task)))
    while not core.idle:
        core.step()
    return notes


def tally_of(notes: Notes, rounds: int) -> ReplayStats:
    """The engine's first rounds, summed up as the simulator's are."""
    tally = ReplayStats()
    for one in notes.records[:rounds]:
        tally.add(one)
    return tally


def shares(tally: ReplayStats) -> FloatArray:
    return np.asarray(tally.depths / tally.depths.sum())


# No tape knows what lookahead learns of passes, or which tokens a draft temperature leads to. Every other policy runs
# one request at a time, the rest four.
POLICIES = [path for path in shipped_policies() if path.stem not in ("lookahead", "draft-temperature")]


@pytest.mark.parametrize(
    ("path", "rows"), [pytest.param(path, 4 if i % 2 else 1, id=path.stem) for i, path in enumerate(POLICIES)]
)
def test_the_engine_and_the_simulator_do_the_same(
    path: Path, rows: int, built: Built, workloads: Workloads, tape: Tape
) -> None:
    """One request at a time and four, greedy and sampled, prompts read in between. What counts state of tokens further
    on rests on text that they have not read yet, and what follows wrong nodes of a tree is not on a tape: such policies
    go nearly the same way.
    """
    spec = load_policy_spec(path)
    stream = Stream(tape, tuple(range(len(tape))), Schedule((rows,)))
    ours = replay(spec, stream, COSTS, SimulatorSettings(prefill_tokens=512), keep=True)
    notes = live(built, workloads, tape, spec, rows)
    theirs = tally_of(notes, ours.rounds)
    branches = spec.spec.max_width > 1
    assert theirs.mean_acceptance_length == pytest.approx(ours.mean_acceptance_length, rel=0.05 if branches else 0.02)
    assert 0.5 * np.abs(shares(ours) - shares(theirs)).sum() < (0.2 if branches else 0.02)
    if branches or any(kind_of(name) is Kind.MODEL_FREE for name in spec.drafters):
        return
    for a, b in zip(ours.records, notes.records, strict=False):
        for name in ("depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist(), (a.number, name)
        assert b.timing.total == pytest.approx(a.timing.total)
