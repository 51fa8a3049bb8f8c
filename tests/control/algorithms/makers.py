"""Parts, ledgers, played rounds and views of the arms off, 1, 3 and 7."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.algorithm import Parts
from adaptspec.control.algorithms.arm_ledger import ArmLedger, Assignment, ContextSums, PlayedRound, Scope
from adaptspec.control.algorithms.arm_rules import ArmChoice, ArmRule, ArmView
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.bandit import Bandit
from adaptspec.control.algorithms.request_features import RequestFeatures
from adaptspec.rounds import RoundRecord
from tests.control.helpers import table

TIERS = (0, 1, 3, 7)
OFF, ONE, THREE, SEVEN = range(4)


def parts(
    rows: int = 4,
    tasks: int = 2,
    drafters: tuple[str, ...] = ("draft-model",),
    *,
    stops: bool = False,
) -> Parts:
    return Parts(table(), rows, tasks, TIERS[1:], drafters, stops)


def ledger(scope: Scope = "request", rows: int = 4, tasks: int = 2, discount: float = 1.0) -> ArmLedger:
    return ArmLedger(Arms(TIERS), scope, parts(rows, tasks), discount=discount)


def played(
    records: Sequence[RoundRecord],
    arms: Sequence[int],
    *,
    contexts: Sequence[int] | None = None,
    cache_gap: Sequence[int] | None = None,
    alone: bool = True,
) -> list[PlayedRound]:
    """Rounds whose rows play these arms; by default each row is the context of its position."""
    size = len(arms)
    assignment = Assignment(
        rows=np.arange(size),
        serials=np.zeros(size, dtype=np.int64),
        contexts=np.arange(size) if contexts is None else np.array(contexts),
        arms=np.array(arms),
        cache_gap=np.zeros(size, dtype=np.int64) if cache_gap is None else np.array(cache_gap),
        memo=np.zeros((size, 0)),
        round_size=size,
        alone=alone,
    )
    return [PlayedRound(assignment, record) for record in records]


def view(
    seen: Sequence[float],
    ratio: Sequence[float],
    *,
    incumbent: int = -1,
    spread: float = 0.5,
    contexts: int = 1,
    off_rounds: float = 0.0,
    features: FloatArray | None = None,
) -> ArmView:
    """A view of `contexts` equal contexts, in which off was played for `off_rounds` rounds."""

    def each(values: Sequence[float]) -> FloatArray:
        return np.tile(np.array(values, dtype=np.float64), (contexts, 1))

    error = spread / np.sqrt(1.0 + each(seen))
    error[:, OFF] = 0.0
    return ArmView(
        contexts=np.arange(contexts),
        bucket=0,
        incumbent=np.full(contexts, incumbent),
        rounds=np.full(contexts, 8),
        seen=each(seen),
        ratio=each(ratio),
        error=error,
        spread=each([0.0, spread, spread, spread]),
        staying=np.ones((contexts, 4)),
        total=np.full(contexts, off_rounds + sum(count for count in seen if np.isfinite(count))),
        playable=np.ones((contexts, 4), dtype=np.bool_),
        features=np.full((contexts, 7), 0.5) if features is None else features,
    )


class Scripted(ArmRule):
    """Chooses the arms of a script in order, the last one for ever. Keeps what it is called with.

    `exploring`: whether it says that it explores.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = list(script)
        self.exploring = False
        self.views: list[ArmView] = []
        self.observed: list[tuple[int, ContextSums]] = []  # with the number of the choice, from 1
        self.started: list[int] = []

    def start(self, context: int) -> None:
        self.started.append(context)

    def choose(self, view: ArmView) -> ArmChoice:
        self.views.append(view)
        arm = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        size = len(view.contexts)
        return ArmChoice(np.full(size, arm), np.full(size, self.exploring), np.full((size, 1), len(self.views)))

    def observe(self, observed: ContextSums, memo: FloatArray) -> None:
        self.observed.append((int(memo[0, 0]), observed))


def scripted(
    script: Sequence[int], scope: Scope = "global", *, arms: Arms | None = None, dwell: int = 8
) -> tuple[Bandit, Scripted]:
    rule, known = Scripted(script), parts(drafters=("draft-model", "ngram"))
    features = RequestFeatures(known.max_rows, known.tasks)
    return Bandit(rule, ArmLedger(arms or Arms(TIERS), scope, known, discount=1.0), features, dwell=dwell), rule
