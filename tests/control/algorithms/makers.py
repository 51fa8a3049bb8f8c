"""Arms, parts and views in one line each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.control.algorithms.algorithm import Parts
from adaptspec.control.algorithms.arm_selection import ArmSelector, Pick, View
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.bandit import Bandit
from adaptspec.control.algorithms.ledger import Ledger, Played, Scope
from adaptspec.types import FloatArray, RoundRecord
from tests.control.helpers import table

LADDER = (0, 1, 3, 7)


def ladder() -> Arms:
    return Arms(LADDER)


def parts(
    rows: int = 4,
    tasks: int = 2,
    drafters: tuple[str, ...] = ("draft-model",),
    *,
    stops: bool = False,
) -> Parts:
    return Parts(table(), rows, tasks, (1, 3, 7), drafters, stops)


def ledger(scope: Scope = "request", rows: int = 4, tasks: int = 2, discount: float = 1.0) -> Ledger:
    return Ledger(scope, rows, tasks, len(LADDER), discount=discount)


def played(
    records: Sequence[RoundRecord], cache_gap: Sequence[int] | None = None, *, alone: bool = True
) -> list[Played]:
    """Rounds that ran as they were decided."""
    size = len(records[0].rows)
    behind = np.zeros(size, dtype=np.int64) if cache_gap is None else np.array(cache_gap)
    return [Played(behind, alone, record) for record in records]


def view(
    seen: Sequence[float],
    ratio: Sequence[float],
    *,
    incumbent: int = -1,
    spread: float = 0.5,
    contexts: int = 1,
    plain: float = 0.0,
    rounds_played: int = 8,
    features: FloatArray | None = None,
) -> View:
    """What `contexts` contexts that are all alike look like to an algorithm of the ladder."""

    def each(values: Sequence[float]) -> FloatArray:
        return np.tile(np.array(values, dtype=np.float64), (contexts, 1))

    counts = each(seen)
    error = spread / np.sqrt(1.0 + counts)
    error[:, 0] = 0.0
    return View(
        contexts=np.arange(contexts),
        bucket=0,
        incumbent=np.full(contexts, incumbent),
        rounds=np.full(contexts, rounds_played),
        seen=counts,
        ratio=each(ratio),
        error=error,
        spread=each([0.0, spread, spread, spread]),
        plain=np.full(contexts, plain),
        costs=np.array([1.0, 1.3, 1.8, 2.7]),
        entry=np.zeros((contexts, 4)),
        playable=np.ones((contexts, 4), dtype=np.bool_),
        features=np.ones((contexts, 7)) * 0.5 if features is None else features,
    )


class Scripted(ArmSelector):
    """Plays the arms it is told to, in order, the last for ever; keeps what it was shown."""

    def __init__(self, arms: Arms, of: Ledger, script: Sequence[int]) -> None:
        super().__init__(arms, of)
        self._script = list(script)
        self.views: list[View] = []

    def pick(self, view: View) -> Pick:
        self.views.append(view)
        arm = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        size = len(view.contexts)
        return Pick(np.full(size, arm), np.zeros(size, dtype=np.bool_), np.zeros((size, 0)))


def scripted(script: Sequence[int], scope: Scope = "global", arms: Arms | None = None) -> tuple[Bandit, Scripted]:
    kinds = arms or ladder()
    of = Ledger(scope, 4, 2, len(kinds), discount=1.0)
    index = Scripted(kinds, of, script)
    return Bandit(kinds, index, of, parts(drafters=("draft-model", "ngram"))), index
