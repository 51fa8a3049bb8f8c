"""A choice that stands for some rounds, in which nobody has to be asked. Knows in which rounds it still holds, and the

decisions that were made of it; not how, nor what becomes of them.
"""

from __future__ import annotations

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.types import IntArray


class StandingChoice:
    """Holds for the same rows, alone in their rounds, while no limit is below the deepest draft they may have.

    `decisions` are those made of it and of what was chosen beside it; `served` counts rounds after the first.
    """

    def __init__(self, choice: Choice, rows: IntArray, deepest: int, rounds: int) -> None:
        """`rounds`: for how many it stands after the first, at most."""
        self.choice = choice
        self.decisions: dict[Choice, Decision] = {}
        self.served = 0
        self._batch, self._deepest, self._rounds = rows.tobytes(), deepest, rounds

    def holds(self, signals: BatchSignals) -> bool:
        """Whether it does in this round, too, which is counted then."""
        if (
            self.served >= self._rounds
            or signals.prefill_tokens
            or signals.beside
            or signals.rows.tobytes() != self._batch
            or signals.least_limit < self._deepest
        ):
            return False
        self.served += 1
        return True
