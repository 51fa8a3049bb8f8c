"""A step of another engine, from its plan to the round that is learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.decision_cache import UNDECIDED
from adaptspec.control.host import DRAFTER
from adaptspec.decision import Decision
from adaptspec.hosts.guests import StepOutcome
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing

# Of a deviation from a step's expected seconds this share counts. It counts up to so many times these seconds at most:
# beyond that the machine slept.
_DEVIATION_SHARE, _MAX_DEVIATION = 1 / 3, 9.0


@dataclass(eq=False, slots=True)
class Plan:
    """What is to be drafted next. `depths`: how much of it each request may have verified; who is not there: `depth`.

    `skip`: the draft need not even read along in this step; its cache then has a hole, and rows that were in the step
    are kept at depth 0 until they end. Only where `PilotSettings.skip_draft` asks for it.
    """

    number: int
    depth: int
    depths: dict[str, int] = field(default_factory=dict)
    skip: bool = False


class Chosen(NamedTuple):
    """The depths of a step, for requests `ids` in their rows [B]. Steps that repeat it share it.

    It may be repeated while `changes` of the requests are the same and no row comes to its end.
    """

    ids: Sequence[str]
    rows: IntArray
    serials: IntArray  # of its requests [B], see `Guests`
    depths: IntArray
    decision: Decision | None
    room: bool
    changes: int  # `Guests.changes`
    tokens_left: int  # tokens that each row can get before its end is nearer than the depth of the batch
    reported: int  # steps that had been reported


@dataclass(eq=False, slots=True)
class Waiting:
    """A step that runs. What was `chosen` are the drafts that follow it, or begin it where they are not ahead."""

    plan: Plan
    chosen: Chosen
    prefill: int
    drafts: int  # draft steps that it runs beyond those that any step does
    before: Waiting | None


class Finished(NamedTuple):
    """A step that has ended, as the engine reported it. `counts` [3, N]: tokens drafted, accepted and emitted."""

    step: Waiting | None  # None: it is not known
    of: Waiting | None  # the step that had the drafts drawn that this one verified
    ids: Sequence[str]
    counts: IntArray
    seconds: float
    ended: float  # on the monotonic clock


class TimedStep(NamedTuple):
    """A step that has ended, of the requests that are here. It verified the drafts that `of` had drawn."""

    of: Waiting
    outcome: StepOutcome
    serials: IntArray  # of the requests
    context: IntArray  # [B] tokens before it
    work: RoundWork
    seconds: float
    ended: float


def of_one_mind(decision: Decision) -> bool:
    """Whether what is right for one of its rows is allowed for all of them.

    Rows that no policy has decided for took the depth of a row of their policy.
    """
    decided = decision.policies[decision.policies != UNDECIDED]
    return all(len(set(numbers.tolist())) <= 1 for numbers in (decided, decision.tasks))


def work_of_step(step: Waiting, outcome: StepOutcome, context: IntArray) -> RoundWork:
    """The work of a step. Where prompts are read rows are ragged in any case, and their tokens take the time."""
    rows = len(outcome.rows)
    drafted = sum(outcome.drafted.tolist())
    ragged = not step.prefill and rows > 1 and len(set(outcome.drafted.tolist())) > 1
    drafts = _drafts(step.plan.depth, step.drafts, len(step.chosen.rows))
    return RoundWork(rows, rows + drafted, float(context.sum()), drafts, step.prefill, ragged)


def _drafts(depth: int, passes: int, rows: int) -> tuple[DraftWork, ...]:
    """Draft passes beyond one that reads along, each over all rows."""
    return (DraftWork(DRAFTER, rows, (rows,) * passes),) if depth or passes else ()


def costs_of_steps(steps: Sequence[tuple[RoundWork, float]] = (), *, reads_along: bool = True) -> CostModel:
    """The cost model of a host that has timed its first `steps`, which took so many seconds each.

    The first is left out: it may compile kernels.
    """
    later = steps[1:]
    costs = CostModel(CostProfile.typical(DRAFTER, later, reads_along=reads_along))
    for work, seconds in later:
        costs.observe(work, Timing(math.nan, math.nan, seconds))
    return costs


def calmed(seconds: float, expected: float) -> float:
    """Seconds of a step with less of their deviation from `expected`.

    Policies that learn from single rounds would follow every stall.
    """
    return expected + _DEVIATION_SHARE * min(seconds - expected, _MAX_DEVIATION * expected)


def round_of(done: TimedStep, number: int, costs: CostModel, *, reads_along: bool) -> RoundRecord | None:
    """The round that a decision led to: of those of its rows that the step reported; None without either.

    The round has its expected share of the step's seconds; prompts and drafts for the next round have the others.
    """
    outcome, context, work = done.outcome, done.context, done.work
    chosen, depth = done.of.chosen, done.of.plan.depth
    decision = chosen.decision
    if decision is None:
        return None
    depths, expected = chosen.depths, decision.expected
    reasons, drafter, tasks, index = decision.reasons, decision.drafter, decision.tasks, None
    if done.serials is not chosen.serials and not np.array_equal(done.serials, chosen.serials):
        order = np.argsort(chosen.serials)
        index = order[np.minimum(np.searchsorted(chosen.serials, done.serials, sorter=order), len(order) - 1)]
        here = np.flatnonzero(chosen.serials[index] == done.serials)
        if not len(here):
            return None
        if len(here) < len(index):
            outcome, context, index = outcome.take(here), context[here], index[here]
        depths, reasons, drafter, tasks = (
            values[index] if len(values) else values for values in (depths, reasons, drafter, tasks)
        )
        expected = None if expected is None else expected.take(index)
    expected_seconds = costs.seconds(work)
    pace = calmed(done.seconds, expected_seconds) / expected_seconds
    steps = max(depth - 1, 0) if reads_along else depth
    drafts = _drafts(depth, steps, len(chosen.rows))
    alone = (
        work if drafts == work.drafts and not work.prefill_tokens else work._replace(drafts=drafts, prefill_tokens=0)
    )
    whole = pace * (expected_seconds if alone is work else costs.seconds(alone))
    verify = pace * costs.seconds(work._replace(drafts=(), prefill_tokens=0)) if drafts else whole
    size = len(outcome.rows)
    unknown: FloatArray = np.full((size, int(outcome.drafted.max())), np.nan)
    return RoundRecord(
        number=number,
        request_ids=tuple(outcome.ids),
        rows=outcome.rows,
        depths=np.minimum(depths, outcome.drafted),  # nothing but a limit ends drafts here
        reasons=reasons,
        drafter=drafter,
        drafted=outcome.drafted,
        accepted=outcome.accepted,
        emitted=outcome.emitted,
        context=context,
        confidence=unknown,
        entropy=unknown,
        work=RoundWork(
            size, size + int(outcome.drafted.sum()), float(context.sum()), drafts, work.prefill_tokens, work.ragged
        ),
        timing=Timing(whole - verify, verify, whole),
        expected=expected,
        ended=done.ended,
        decision=decision,
        index=index,
        tasks=tasks,
    )
