"""Tapes: what drafters propose, and whether it is right, at every output position of recorded requests.

Under `coupled` verification the target's token at a position depends on the text before it and on the request's seed
alone. Whether a draft is right there is a fact that no policy can change, and a tape holds these facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.errors import TapeError

MAX_REACH = 255  # of a draft that never runs out of proposals: deeper than any policy may draft
UNRANKED = 127  # rank of a token that is not among a drafter's first 127 candidates
COUNTS, SHARES = ("run", "reach", "rank"), ("confidence", "entropy", "rejection")
_COLUMNS = ("ids", "tasks", "sources", "prompt_tokens", "lengths", "max_tokens", "temperatures", "seeds")


@dataclass(frozen=True)
class AfterMiss:
    """Confidence and entropy of the 1st to S-th token that a drafter drafts after its own wrong one, [P, S].

    NaN where its token is right, and where it was not recorded. Stop rules see these tokens, though none is accepted.
    """

    confidence: FloatArray
    entropy: FloatArray

    def take(self, index: IntArray) -> AfterMiss:
        """The same for some positions."""
        return AfterMiss(self.confidence[index], self.entropy[index])


@dataclass(frozen=True)
class DraftView:
    """One drafter at P output positions.

    A draft of d tokens that starts at position t submits min(d, reach[t]) of them, and min(d, run[t]) are accepted.

    The other columns are of the single token at t, given the true text before it. `rank` is the rank of the target's
    token among the drafter's candidates, by scores with the noise of that position: 0 where the drafter's own token is
    right. `confidence` is the probability of its own token by these scores, `top` those of its first K candidates,
    `entropy` that of its distribution without noise, in nats (NaN or None where it states none). `rejection` is the
    chance sum(min(p, q)) that rejection sampling keeps its token. `after_miss` and `top` are None, and ranks are
    `UNRANKED`, where they were not recorded.
    """

    run: IntArray  # [P]
    reach: IntArray  # [P]
    rank: IntArray  # [P]
    confidence: FloatArray  # [P]
    entropy: FloatArray  # [P]
    rejection: FloatArray  # [P]
    after_miss: AfterMiss | None = None
    top: FloatArray | None = None  # [P, K], falling

    @property
    def agreed(self) -> BoolArray:
        """Whether the drafter's token at a position is right, given the true text before it, [P]."""
        return np.asarray(self.run > 0)

    @property
    def proposes(self) -> BoolArray:
        """Whether the drafter has a token to propose, [P]."""
        return np.asarray(self.reach > 0)

    def take(self, index: IntArray) -> DraftView:
        """The same for some positions, whole requests at a time (runs must not be cut)."""
        return DraftView(
            **{name: getattr(self, name)[index] for name in (*COUNTS, *SHARES)},
            after_miss=None if self.after_miss is None else self.after_miss.take(index),
            top=None if self.top is None else self.top[index],
        )

    def with_runs(self, run: IntArray, rejection: FloatArray | None = None) -> DraftView:
        """The same drafter with other runs; no other candidate is right where its own token is wrong."""
        rank = np.where(run > 0, 0, UNRANKED)
        return replace(self, run=run, rank=rank, rejection=self.rejection if rejection is None else rejection)

    @classmethod
    def of_agreement(
        cls,
        agreed: BoolArray,
        confidence: FloatArray | None = None,
        entropy: FloatArray | None = None,
        rejection: FloatArray | None = None,
    ) -> DraftView:
        """The view of a drafter that always proposes one token, over the positions of one request."""
        unknown = np.full(len(agreed), np.nan)
        return cls(
            run_lengths(agreed),
            np.full(len(agreed), MAX_REACH, dtype=np.int64),
            np.where(agreed, 0, UNRANKED),
            unknown if confidence is None else confidence,
            unknown if entropy is None else entropy,
            agreed.astype(np.float64) if rejection is None else rejection,
        )

    @classmethod
    def joined(cls, views: Sequence[DraftView]) -> DraftView:
        """Views of one drafter, one after another, with the columns that all of them have."""
        after = [view.after_miss for view in views]
        confidence = _stacked([None if part is None else part.confidence for part in after])
        entropy = _stacked([None if part is None else part.entropy for part in after])
        return cls(
            **{name: np.concatenate([getattr(view, name) for view in views]) for name in (*COUNTS, *SHARES)},
            after_miss=None if confidence is None or entropy is None else AfterMiss(confidence, entropy),
            top=_stacked([view.top for view in views]),
        )


def run_lengths(agreed: BoolArray) -> IntArray:
    """How many consecutive True start at each position, [P], at most `MAX_REACH`."""
    here = np.arange(len(agreed), dtype=np.int64)
    misses = np.where(agreed, len(agreed), here)
    following: IntArray = np.minimum.accumulate(misses[::-1])[::-1]
    runs: IntArray = np.minimum(following - here, MAX_REACH)
    return runs


@dataclass(frozen=True)
class Tape:
    """R recorded requests; request r has the positions offsets[r] to offsets[r + 1] of every view.

    `about` describes the recording (models, precision, verification). Raises TapeError: the parts do not fit together.
    """

    ids: tuple[str, ...]
    tasks: tuple[str, ...]
    sources: tuple[str, ...]
    prompt_tokens: IntArray  # [R]
    lengths: IntArray  # [R] tokens emitted
    max_tokens: IntArray  # [R]
    temperatures: FloatArray  # [R]
    seeds: IntArray  # [R]
    offsets: IntArray  # [R + 1]
    views: Mapping[str, DraftView]
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault, absent in _checks(self).items():
            if not absent:
                raise TapeError(f"not a tape: {fault}; record it again")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the recorded drafters."""
        return tuple(self.views)

    def of_task(self, task: str) -> Tape:
        """The requests of one task. Raises TapeError: there are none."""
        found = np.array([name == task for name in self.tasks])
        return self._where(found, f"of task {task!r} on this tape; its tasks are: {', '.join(sorted(set(self.tasks)))}")

    def at_temperature(self, temperature: float) -> Tape:
        """The requests recorded at one temperature. Raises TapeError: there are none."""
        known = ", ".join(f"{value:g}" for value in np.unique(self.temperatures).tolist())
        found = np.isclose(self.temperatures, temperature)
        return self._where(found, f"at temperature {temperature:g} on this tape; recorded were: {known}")

    def thinned(self, per_task: int) -> Tape:
        """At most `per_task` requests of each task, spread evenly over its requests."""
        kept: list[int] = []
        for task in dict.fromkeys(self.tasks):
            found = [request for request, name in enumerate(self.tasks) if name == task]
            count = min(per_task, len(found))
            kept += [found[i * len(found) // count] for i in range(count)]
        return self.take(kept)

    def take(self, requests: Sequence[int]) -> Tape:
        """Some of the requests, in this order."""
        spans = [np.arange(self.offsets[request], self.offsets[request + 1]) for request in requests]
        positions = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        columns: dict[str, Any] = {name: _taken(getattr(self, name), requests) for name in _COLUMNS}
        views = {name: view.take(positions) for name, view in self.views.items()}
        return replace(self, **columns, offsets=_offsets([len(span) for span in spans]), views=views)

    def _where(self, found: BoolArray, wanted: str) -> Tape:
        if not found.any():
            raise TapeError(f"no request {wanted}")
        return self.take(np.flatnonzero(found).tolist())

    @property
    def emitted_positions(self) -> IntArray:
        """Indices of the positions where a round may start: all emitted ones but each request's first."""
        spans = zip(self.offsets[:-1].tolist(), self.lengths.tolist(), strict=True)
        return np.concatenate([np.arange(start + 1, start + length) for start, length in spans])

    def always_wrong(self) -> Tape:
        """The same requests with drafts that are as confident as before and never right: the worst case."""
        nothing = np.zeros(int(self.offsets[-1]), dtype=np.int64)
        views = {name: view.with_runs(nothing, np.zeros(len(nothing))) for name, view in self.views.items()}
        return replace(self, views=views)

    def under_rejection(self, seed: int = 0) -> Tape:
        """The same requests under `rejection` verification: agreement is drawn from its chance, once per position.

        A rejected token is replaced by another one, which a tape cannot follow: the result is a likely stand-in.
        """
        rng = np.random.default_rng(seed)
        views = {}
        for name, view in self.views.items():
            agreed = (rng.random(len(view.run)) < view.rejection) & view.proposes
            bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
            runs = [run_lengths(agreed[start:end]) for start, end in bounds]
            views[name] = view.with_runs(np.minimum(np.concatenate(runs) if runs else view.run, view.reach))
        return replace(self, views=views)


def recorded(
    name: str,
    prompt_tokens: int,
    length: int,
    views: Mapping[str, DraftView],
    task: str = "",
    *,
    source: str = "",
    max_tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
) -> Tape:
    """A tape of one request, with views of P >= `length` positions; it asked for `max_tokens` (0: `length`).

    Position 0 is the token that comes with the prompt; drafts start at position 1 at the earliest. Positions from
    `length` on come after the token that ended the request: drafts may reach them, and nothing there is emitted.
    """
    return Tape(
        ids=(name,),
        tasks=(task,),
        sources=(source,),
        prompt_tokens=np.array([prompt_tokens], dtype=np.int64),
        lengths=np.array([length], dtype=np.int64),
        max_tokens=np.array([max_tokens or length], dtype=np.int64),
        temperatures=np.array([temperature], dtype=np.float64),
        seeds=np.array([seed], dtype=np.int64),
        offsets=_offsets([len(next(iter(views.values())).run) if views else length]),
        views=views,
    )


def join(tapes: Sequence[Tape], about: Mapping[str, str] | None = None) -> Tape:
    """Several tapes as one, in this order, with the drafters that all of them have; `about` is the first one's if None.

    Raises TapeError: there is no tape.
    """
    if not tapes:
        raise TapeError("a tape needs at least one request")
    names = [name for name in tapes[0].views if all(name in tape.views for tape in tapes)]
    columns: dict[str, Any] = {name: _concatenated([getattr(tape, name) for tape in tapes]) for name in _COLUMNS}
    return Tape(
        **columns,
        offsets=_offsets([size for tape in tapes for size in np.diff(tape.offsets).tolist()]),
        views={name: DraftView.joined([tape.views[name] for tape in tapes]) for name in names},
        about=tapes[0].about if about is None else about,
    )


def _stacked(parts: Sequence[FloatArray | None]) -> FloatArray | None:
    """Tables one after another, cut to the columns that all of them have; None where one of them is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    columns = min(part.shape[1] for part in known)
    return np.concatenate([part[:, :columns] for part in known])


def _taken(column: Any, requests: Sequence[int]) -> Any:
    """Some entries of a column of a tape, which is a tuple of words or an array."""
    return tuple(column[r] for r in requests) if isinstance(column, tuple) else column[np.array(requests, np.int64)]


def _concatenated(parts: Sequence[Any]) -> Any:
    return tuple(chain(*parts)) if isinstance(parts[0], tuple) else np.concatenate(parts)


def _offsets(sizes: Sequence[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64)))).astype(np.int64)


def _checks(tape: Tape) -> dict[str, bool]:
    """By fault, whether a tape is free of it. Sizes come first: large arrays are made from sizes that fit alone."""
    count, offsets = len(tape.ids), tape.offsets
    sizes = np.diff(offsets)
    checks = {
        "its lists of requests differ in length": all(len(getattr(tape, name)) == count for name in _COLUMNS)
        and len(offsets) == count + 1,
        "its offsets do not fit": bool(len(offsets) and offsets[0] == 0 and (sizes >= 1).all()),
    }
    if not all(checks.values()):
        return checks
    total = int(offsets[-1])
    for name, view in tape.views.items():
        fits = all(getattr(view, column).shape == (total,) for column in (*COUNTS, *SHARES))
        if view.after_miss is not None:
            beyond = view.after_miss.confidence
            fits &= beyond.ndim == 2 and beyond.shape == view.after_miss.entropy.shape and len(beyond) == total
        fits &= view.top is None or (view.top.ndim == 2 and len(view.top) == total)
        checks[f"the columns of {name} have another length"] = fits
        if fits:
            remaining = np.repeat(offsets[1:], sizes) - np.arange(total)
            good = (view.run >= 0) & (view.run <= remaining) & (view.run <= view.reach) & (view.reach <= MAX_REACH)
            checks[f"runs of {name} leave their request"] = bool(good.all())
            ranked = ((view.rank == 0) == view.agreed) & (view.rank >= 0) & (view.rank <= UNRANKED)
            checks[f"ranks of {name} do not fit its runs"] = bool(ranked.all())
    checks["a request has no tokens, or more than were recorded"] = bool(
        ((tape.lengths >= 1) & (tape.lengths <= sizes) & (tape.prompt_tokens >= 1)).all()
        and (tape.max_tokens >= tape.lengths).all()
    )
    return checks
