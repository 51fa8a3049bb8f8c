"""A step of another engine, from its plan to the round that is learned from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.policy import Decision
from adaptspec.control.step_times import Step, StepTimes
from adaptspec.hosts.guests import Guests, Told
from adaptspec.types import FloatArray, IntArray, RoundRecord

_LEAST_SHARE = 0.1  # of a step that verifying takes, whatever a noisy clock says of drafting


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


@dataclass(eq=False, slots=True)
class Waiting:
    """A step that runs. `decision` is of the drafts that follow it, or begin it where they are not ahead."""

    plan: Plan
    ids: Sequence[str]
    rows: IntArray
    depths: IntArray
    decision: Decision | None
    prefill: int
    drafts: int  # draft steps that it runs beyond those that any step does
    before: Waiting | None


def of_one_mind(decision: Decision) -> bool:
    """Whether what is right for one of its rows is allowed for all of them."""
    return all(len(set(of.tolist())) <= 1 for of in (decision.policies, decision.tasks))


def made(step: Waiting, told: Told) -> Step:
    """What a step was made of. Where prompts are read rows are unlike in any case, and what takes time are these."""
    unlike = not step.prefill and bool((told.drafted != told.drafted[0]).any())
    return Step(len(told.rows), int(told.drafted.sum()), step.drafts, len(step.rows), step.prefill, unlike)


def round_of(
    step: Waiting,
    of: Waiting,
    decision: Decision,
    told: Told,
    seconds: float,
    *,
    number: int,
    guests: Guests,
    times: StepTimes,
    reads_along: bool,
) -> RoundRecord | None:
    """The round that a decision led to, in a step that took so long: of those of its rows that are told of."""
    prefill = step.prefill
    made_of = made(step, told)
    seconds = times.calmed(made_of, seconds)
    spent = times.draft_seconds(step.drafts, len(step.rows)) + times.prefill_seconds(prefill)
    verify = max(seconds - spent, _LEAST_SHARE * seconds)
    rows, depths, tasks, policies = of.rows, of.depths, decision.tasks, decision.policies
    reasons, drafter, expected = decision.reasons, decision.drafter, decision.expected
    if told.ids != of.ids:
        at = {name: place for place, name in enumerate(of.ids)}
        told = told.take([place for place, name in enumerate(told.ids) if name in at])
        if not told.ids:
            return None
        own = np.array([at[name] for name in told.ids], dtype=np.int64)
        rows, depths, tasks, policies, reasons, drafter = (
            one[own] if len(one) else one for one in (rows, depths, tasks, policies, reasons, drafter)
        )
        expected = None if expected is None else expected.take(own)
    size, deepest = len(rows), int(told.drafted.max())
    steps = max(of.plan.depth - 1, 0) if reads_along else of.plan.depth
    draft = times.draft_seconds(steps, len(of.rows))
    blank: FloatArray = np.full((size, deepest), np.nan)
    return RoundRecord(
        number=number,
        request_ids=tuple(told.ids),
        rows=rows,
        depths=np.minimum(depths, told.drafted),  # nothing but a limit ends drafts here
        reasons=reasons,
        drafter=drafter,
        drafted=told.drafted,
        accepted=told.accepted,
        emitted=told.emitted,
        context=guests.context(rows),
        confidence=blank,
        entropy=blank,
        prefill_tokens=prefill,
        draft_steps=steps,
        caught_up=0,
        verify_tokens=size + int(told.drafted.sum()) + prefill,
        draft_seconds=draft,
        verify_seconds=verify,
        total_seconds=draft + verify,
        expected=expected,
        ended=time.monotonic(),
        decision=decision.number,
        tasks=tasks,
        policies=policies,
    )
