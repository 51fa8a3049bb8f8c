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
from adaptspec.simulation.draft_view import COUNTS, FAR, SHARES, UNRANKED, DraftView, join_views, run_lengths
from adaptspec.types import FloatArray, IntArray

_COLUMNS = ("ids", "tasks", "sources", "prompt_tokens", "lengths", "max_tokens", "temperatures", "seeds")


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
        views = {name: view.with_runs(nothing, np.zeros(len(nothing))) for name, view in self.views.items()}
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
        views={name: join_views([tape.views[name] for tape in tapes]) for name in names},
        about=tapes[0].about if about is None else about,
    )


def _taken(column: Any, requests: Sequence[int]) -> Any:
    """Some entries of a column of a tape, which is a tuple of words or an array."""
    return tuple(column[r] for r in requests) if isinstance(column, tuple) else column[np.array(requests, np.int64)]


def _concatenated(parts: Sequence[Any]) -> Any:
    return tuple(chain(*parts)) if isinstance(parts[0], tuple) else np.concatenate(parts)


def _offsets(sizes: Sequence[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64)))).astype(np.int64)


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
        fits = all(getattr(view, name).shape == (total,) for name in (*COUNTS, *SHARES))
        if view.after_miss is not None:
            beyond = view.after_miss.confidence
            fits &= beyond.ndim == 2 and beyond.shape == view.after_miss.entropy.shape and len(beyond) == total
        fits &= view.top is None or (view.top.ndim == 2 and len(view.top) == total)
        checks[f"what it says of {name} has another length"] = fits
        if fits:  # else as many numbers would be made as the sizes claim
            ends = np.repeat(offsets[1:], sizes) - np.arange(total)  # positions left in the request
            good = (view.run >= 0) & (view.run <= ends) & (view.run <= view.reach) & (view.reach <= FAR)
            checks[f"runs of {name} leave their request"] = bool(good.all())
            ranked = ((view.rank == 0) == view.agreed) & (view.rank >= 0) & (view.rank <= UNRANKED)
            checks[f"ranks of {name} do not fit its runs"] = bool(ranked.all())
    checks["a request has no tokens, or more than were recorded"] = bool(
        ((tape.lengths >= 1) & (tape.lengths <= sizes) & (tape.prompt_tokens >= 1)).all()
        and (tape.max_tokens >= tape.lengths).all()
    )
    return checks
