"""Round records, signals and policies in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.control.cost_model import CostModel
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from tests.policies.world import HEADER, Machine

QUIET = Machine()
NAMES = ("draft-model", "ngram")  # of the drafters that rounds index
STATIC = HEADER + "  choose: {algorithm: static, depth: %d}\n"
GOODPUT = (
    HEADER
    + "  choose: {algorithm: goodput}\n  stop: {rule: marginal-goodput}\n"
    + "  guard: {never-slower: {margin: 0.03, window-rounds: 16, losing-windows: 2}}\n"
)


def table() -> CostModel:
    return CostModel(QUIET.profile())


def signals(
    limits: Sequence[int],
    rows: Sequence[int] | None = None,
    cache_gap: Sequence[int] | None = None,
    other_rows: int = 0,
    *,
    prefill: int = 0,
    found: Sequence[int] | None = None,
    tasks: Sequence[int] | None = None,
) -> BatchSignals:
    size = len(limits)
    return BatchSignals(
        rows=np.array(range(size) if rows is None else rows, dtype=np.int64),
        tasks=np.array([0] * size if tasks is None else tasks, dtype=np.int64),
        context=np.full(size, 100),
        limits=np.array(limits, dtype=np.int64),
        cache_gap=np.zeros((2, size), dtype=np.int64) if cache_gap is None else np.array([cache_gap, [0] * size]),
        found=np.array([[0] * size, [0] * size if found is None else found], dtype=np.int64),
        position=np.zeros(size, dtype=np.int64),
        prefill_tokens=prefill,
        other_rows=other_rows,
    )


def record(
    drafted: Sequence[int],
    accepted: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    slower: float = 1.0,
    confidence: float = 0.8,
    depths: Sequence[int] | None = None,
    drafter: Sequence[int] | None = None,
    prefill: int = 0,
    tasks: Sequence[int] | None = None,
) -> RoundRecord:
    """A round whose passes took `slower` times what the quiet machine takes."""
    size, deepest = len(drafted), max(drafted)
    steps = [sum(d > j for d in drafted) for j in range(deepest)]
    draft = sum(QUIET.step(n) for n in steps) * slower
    verify = QUIET.verify(size + sum(drafted)) * slower
    owners, drafts = [0] * size if drafter is None else list(drafter), []
    for number, name in enumerate(NAMES):
        asked = zip(drafted, drafted if depths is None else depths, owners, strict=True)
        own = [count for count, depth, owner in asked if owner == number and depth]
        if own and max(drafted):
            passes = [len(own), *(sum(count > step for count in own) for step in range(1, max(own)))]
            drafts.append(DraftWork(name, len(own), tuple(passes) if name == "draft-model" else ()))
    sure = np.full((size, deepest), np.nan)
    for i, count in enumerate(drafted):
        sure[i, :count] = confidence
    return RoundRecord(
        number=0,
        request_ids=tuple(str(i) for i in range(size)),
        rows=np.array(range(size) if rows is None else rows, dtype=np.int64),
        depths=np.array(drafted if depths is None else depths),
        reasons=np.full(size, int(Reason.POLICY)),
        drafter=np.zeros(size, dtype=np.int64) if drafter is None else np.array(drafter),
        drafted=np.array(drafted),
        accepted=np.array(accepted),
        emitted=np.array(accepted) + 1,
        context=np.full(size, 100),
        confidence=sure,
        entropy=sure,
        work=RoundWork(size, size + sum(drafted), 100.0 * size, tuple(drafts), prefill),
        timing=Timing(draft, verify, draft + verify + QUIET.overhead_ms / 1e3 * slower),
        tasks=np.array([0] * size if tasks is None else tasks, dtype=np.int64),
    )


def timed(ran: RoundRecord, total: float | None = None, **parts: float) -> RoundRecord:
    """The round with other seconds: `total`, or also those of `draft` and `verify`."""
    return replace(ran, timing=ran.timing._replace(**({} if total is None else {"total": total}), **parts))


def caught_up(ran: RoundRecord, tokens: int) -> RoundRecord:
    """The round in which the draft model also read tokens that it had missed."""
    draft, *others = ran.work.drafts or (DraftWork("draft-model", len(ran.rows), (len(ran.rows),)),)
    drafts = (draft._replace(catch_up_tokens=float(tokens)), *others)
    return replace(ran, work=ran.work._replace(drafts=drafts))
