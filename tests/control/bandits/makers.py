"""Arms, parts and rounds in one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.bandit import Bandit, BanditSettings
from adaptspec.control.bandits.estimates import Estimates
from adaptspec.control.bandits.learner import LedgerLearner, Pick, View
from adaptspec.control.bandits.notes import Note, Notes, Played, Rounds
from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.policy import Policy
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
    policy: Callable[[str], Policy] | None = None,
) -> Parts:
    return Parts(table(), rows, tasks, (1, 3, 7), drafters, stops, policy)


def rounds(
    records: Sequence[RoundRecord], arms: Sequence[int], lag: Sequence[int] | None = None, *, alone: bool = True
) -> Rounds:
    """Notes of rounds in which each row always plays the same of `arms`, all in one context."""
    notes = Notes()
    size = len(arms)
    zeros = np.zeros(size, dtype=np.int64)
    for record in records:
        played = Played(zeros, zeros, np.array(arms), 0)
        notes.add(Note(played, record.depths, zeros if lag is None else np.array(lag), record, size, alone))
    return notes.rounds()


def view(
    seen: Sequence[float],
    ratio: Sequence[float],
    *,
    incumbent: int = -1,
    spread: float = 0.5,
    contexts: int = 1,
    may: bool = True,
    rounds_played: int = 8,
) -> View:
    """What `contexts` contexts that are all alike look like to a learner of the ladder."""

    def each(values: Sequence[float]) -> FloatArray:
        return np.tile(np.array(values, dtype=np.float64), (contexts, 1))

    counts, every = each(seen), np.arange(contexts)
    error = spread / np.sqrt(1.0 + counts)
    error[:, 0] = 0.0
    estimates = Estimates(
        counts, each(ratio), error, each([0.0, spread, spread, spread]), each(ratio), np.zeros(len(counts))
    )
    return View(
        every,
        0,
        np.full(contexts, incumbent),
        np.full(contexts, rounds_played),
        estimates,
        np.array([1.0, 1.3, 1.8, 2.7]),
        np.zeros((contexts, 4)),
        np.ones((contexts, 4), dtype=np.bool_),
        np.full(contexts, may),
        np.full(contexts, may),
        np.ones((contexts, 7)) * 0.5,
    )


class Scripted(LedgerLearner):
    """Plays the arms it is told to, in order, the last for ever; keeps what it was shown."""

    def __init__(self, arms: Arms, script: Sequence[int]) -> None:
        super().__init__(arms)
        self._script = list(script)
        self.views: list[View] = []

    def pick(self, view: View) -> Pick:
        self.views.append(view)
        arm = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        size = len(view.contexts)
        return Pick(np.full(size, arm), np.ones(size), np.zeros(size, dtype=np.bool_))


def scripted(script: Sequence[int], settings: BanditSettings, arms: Arms | None = None) -> tuple[Bandit, Scripted]:
    learner = Scripted(arms or ladder(), script)
    return Bandit(arms or ladder(), learner, parts(drafters=("draft-model", "ngram")), settings), learner
