"""Tapes: what drafting would have met at every output position of recorded requests.

Under `coupled` verification the target's token at a position depends on what comes before it and on the request's seed
alone, so whether a draft made there is right is a fact that no policy can change. A tape holds these facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from adaptspec.errors import TapeError
from adaptspec.types import BoolArray, FloatArray, IntArray

# A draft that never runs out of proposals reaches this far: deeper than any policy may draft.
FAR = 255
_COLUMNS = ("ids", "tasks", "sources", "prompt_tokens", "lengths", "max_tokens", "temperatures", "seeds")
_VIEW_COLUMNS = ("run", "reach", "confidence", "entropy", "rejection")


@dataclass(frozen=True)
class AfterMiss:
    """How sure a drafter is of the 1st, 2nd ... S-th token that it drafts after its own wrong one, [P, S]. NaN where
    its token is right, and where nobody asked it. Stop rules look at these tokens, though none is accepted.
    """

    confidence: FloatArray
    entropy: FloatArray

    def take(self, index: IntArray) -> AfterMiss:
        return AfterMiss(self.confidence[index], self.entropy[index])


@dataclass(frozen=True)
class DraftView:
    """One drafter at P output positions: a draft of d tokens that starts at t submits min(d, reach[t]) of them
    and has min(d, run[t]) of these accepted. `confidence` is the draft's probability of its own token at t, given the
    true text before it, `entropy` that of its distribution in nats (both NaN for n-grams), `rejection` the chance
    sum(min(p, q)) that rejection sampling keeps its token. `after_miss` is None where it was not recorded.
    """

    run: IntArray  # [P]
    reach: IntArray  # [P]
    confidence: FloatArray  # [P]
    entropy: FloatArray  # [P]
    rejection: FloatArray  # [P]
    after_miss: AfterMiss | None = None

    @property
    def agreed(self) -> BoolArray:
        """Whether the drafter's token at a position, given the true text before it, is the target's, [P]."""
        return np.asarray(self.run > 0)

    @property
    def proposes(self) -> BoolArray:
        """Whether it has a token to propose at all, [P]."""
        return np.asarray(self.reach > 0)

    def take(self, index: IntArray) -> DraftView:
        """The same for some positions, whole requests at a time (runs must not be cut)."""
        columns = {name: getattr(self, name)[index] for name in _VIEW_COLUMNS}
        return DraftView(**columns, after_miss=None if self.after_miss is None else self.after_miss.take(index))

    @classmethod
    def of_agreement(
        cls,
        agreed: BoolArray,
        confidence: FloatArray | None = None,
        entropy: FloatArray | None = None,
        rejection: FloatArray | None = None,
    ) -> DraftView:
        """The view of a drafter that always proposes, over the positions of one request."""
        unknown = np.full(len(agreed), np.nan)
        return cls(
            run_lengths(agreed),
            np.full(len(agreed), FAR, dtype=np.int64),
            unknown if confidence is None else confidence,
            unknown if entropy is None else entropy,
            agreed.astype(np.float64) if rejection is None else rejection,
        )


def run_lengths(agreed: BoolArray) -> IntArray:
    """How many True in a row start at each position, [P], at most `FAR`."""
    here = np.arange(len(agreed), dtype=np.int64)
    misses = np.where(agreed, len(agreed), here)
    following: IntArray = np.minimum.accumulate(misses[::-1])[::-1]
    runs: IntArray = np.minimum(following - here, FAR)
    return runs


@dataclass(frozen=True)
class Tape:
    """R recorded requests, their positions one after another: request r has positions offsets[r] to offsets[r + 1].
    `about` says what was recorded (models, precision, sampling), for people.
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
        for name, good in _checks(self).items():
            if not good:
                raise TapeError(f"not a tape: {name}; record it again")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def drafters(self) -> tuple[str, ...]:
        return tuple(self.views)

    def of_task(self, task: str) -> Tape:
        """The requests of one task. Raises TapeError: there are none."""
        found = [r for r, own in enumerate(self.tasks) if own == task]
        if not found:
            known = ", ".join(sorted(set(self.tasks)))
            raise TapeError(f"no request of task {task!r} on this tape; its tasks are: {known}")
        return self.take(found)

    def at_temperature(self, temperature: float) -> Tape:
        """The requests recorded at one temperature. Raises TapeError: there are none."""
        found = np.flatnonzero(np.isclose(self.temperatures, temperature)).tolist()
        if not found:
            known = ", ".join(f"{value:g}" for value in np.unique(self.temperatures).tolist())
            raise TapeError(f"no request at temperature {temperature:g} on this tape; recorded were: {known}")
        return self.take(found)

    def thinned(self, per_task: int) -> Tape:
        """At most so many requests of each task, spread evenly over those there are."""
        kept = []
        for task in dict.fromkeys(self.tasks):
            own = [r for r, name in enumerate(self.tasks) if name == task]
            kept += [own[i * len(own) // per_task] for i in range(per_task)] if len(own) > per_task else own
        return self.take(kept)

    def take(self, requests: Sequence[int]) -> Tape:
        """Some of the requests, in this order."""
        spans = [np.arange(self.offsets[r], self.offsets[r + 1]) for r in requests]
        positions = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        columns: dict[str, Any] = {name: _taken(getattr(self, name), requests) for name in _COLUMNS}
        views = {name: view.take(positions) for name, view in self.views.items()}
        return replace(self, **columns, offsets=_offsets([len(span) for span in spans]), views=views)

    @property
    def emitted_positions(self) -> IntArray:
        """Indices of the positions where a round may start: all that are emitted, but each request's first."""
        spans = zip(self.offsets[:-1].tolist(), self.lengths.tolist(), strict=True)
        return np.concatenate([np.arange(start + 1, start + length) for start, length in spans])

    def always_wrong(self) -> Tape:
        """The same requests with drafts that are sure of themselves as before and never right: the worst case."""
        nothing = np.zeros(int(self.offsets[-1]), dtype=np.int64)
        views = {
            name: replace(view, run=nothing, rejection=np.zeros(len(nothing))) for name, view in self.views.items()
        }
        return replace(self, views=views)

    def under_rejection(self, seed: int = 0) -> Tape:
        """The same requests under `rejection` verification: agreement is drawn from its chance, once per position.
        Rejected tokens are replaced by other ones there, which no tape can follow: take it as a likely stand-in.
        """
        rng = np.random.default_rng(seed)
        starts = np.zeros(int(self.offsets[-1]) + 1, dtype=np.bool_)
        starts[self.offsets] = True
        views = {}
        for name, view in self.views.items():
            agreed = (rng.random(len(view.run)) < view.rejection) & view.proposes
            bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
            runs = [run_lengths(agreed[start:end]) for start, end in bounds]
            run = np.minimum(np.concatenate(runs) if runs else view.run, view.reach)
            views[name] = replace(view, run=run)
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
    """One request, with views of P >= `length` positions of it; `max_tokens` is what it asked for (0: `length`).
    Position 0 is the token that reading the prompt yields; drafts start at position 1 at the earliest. Positions from
    `length` on come after the token that ended the request: drafts may reach into them, nothing there is emitted.
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
    """Several tapes as one, in this order; only drafters that all of them know are kept. `about`: the first one's.
    Raises TapeError: there is no tape.
    """
    if not tapes:
        raise TapeError("a tape needs at least one request")
    names = [name for name in tapes[0].views if all(name in tape.views for tape in tapes)]
    columns: dict[str, Any] = {name: _concatenated([getattr(tape, name) for tape in tapes]) for name in _COLUMNS}
    return Tape(
        **columns,
        offsets=_offsets([size for tape in tapes for size in np.diff(tape.offsets).tolist()]),
        views={name: _joined([tape.views[name] for tape in tapes]) for name in names},
        about=tapes[0].about if about is None else about,
    )


def _taken(column: Any, requests: Sequence[int]) -> Any:
    """Some entries of a column of a tape, which is a tuple of words or an array."""
    return tuple(column[r] for r in requests) if isinstance(column, tuple) else column[np.array(requests, np.int64)]


def _concatenated(parts: Sequence[Any]) -> Any:
    return tuple(chain(*parts)) if isinstance(parts[0], tuple) else np.concatenate(parts)


def _offsets(sizes: Sequence[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64)))).astype(np.int64)


def _joined(views: Sequence[DraftView]) -> DraftView:
    columns = {name: np.concatenate([getattr(view, name) for view in views]) for name in _VIEW_COLUMNS}
    return DraftView(**columns, after_miss=_joined_after_miss([view.after_miss for view in views]))


def _joined_after_miss(parts: Sequence[AfterMiss | None]) -> AfterMiss | None:
    """What all of them recorded: as many tokens as the least of them, none where one of them has none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    least = min(part.confidence.shape[1] for part in known)
    return AfterMiss(
        np.concatenate([part.confidence[:, :least] for part in known]),
        np.concatenate([part.entropy[:, :least] for part in known]),
    )


def _checks(tape: Tape) -> dict[str, bool]:
    """What must hold of a tape, in words."""
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
        fits = all(getattr(view, name).shape == (total,) for name in _VIEW_COLUMNS)
        if view.after_miss is not None:
            beyond = view.after_miss.confidence
            fits &= beyond.ndim == 2 and beyond.shape == view.after_miss.entropy.shape and len(beyond) == total
        checks[f"what it says of {name} has another length"] = fits
        if fits:  # else as many numbers would be made as the sizes claim
            ends = np.repeat(offsets[1:], sizes) - np.arange(total)  # positions left in the request
            good = (view.run >= 0) & (view.run <= ends) & (view.run <= view.reach) & (view.reach <= FAR)
            checks[f"runs of {name} leave their request"] = bool(good.all())
    checks["a request has no tokens, or more than were recorded"] = bool(
        ((tape.lengths >= 1) & (tape.lengths <= sizes) & (tape.prompt_tokens >= 1)).all()
        and (tape.max_tokens >= tape.lengths).all()
    )
    return checks
