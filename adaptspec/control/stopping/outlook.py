"""What a round is expected to earn, for policies whose chooser does not say: so that the ratio rule works with any.

Knows costs and what was accepted; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptspec.control.acceptance import Acceptance
from adaptspec.control.choosers.chooser import Outlook
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.types import FloatArray, RoundRecord

# An outlook serves this many rounds of the same batch: estimates move slowly, and making one takes a tenth of
# a millisecond.
_SERVES = 16


class OutlookKeeper:
    """Outlooks from a cost table and the acceptance seen so far.

    The goodput that a further token is weighed against is that of the best depth common to all rows,

        max over d of (rows + sum of survival of the first d tokens) / T(d draft steps, rows x d drafted tokens),

    whatever depth the chooser took: a stop rule that weighed against a bad choice would go along with it. Costs are
    those of one drafter; a policy with several is priced by its first.
    """

    def __init__(self, cost: CostTable, drafter: str, rows: int, tasks: int, depth: int) -> None:
        """`tasks` counts the known tasks and task 0, unknown; `depth` is the deepest draft there can be."""
        self._cost = cost
        self._drafter = drafter
        self._depth = depth
        self._signals = Acceptance(rows, tasks, depth)
        self._notes: list[RoundRecord] = []
        self._made: _Made | None = None

    def start(self, row: int, task: int) -> None:
        """A request begins decoding in `row`."""
        self._learn_notes()
        self._signals.start(row, task)
        self._made = None

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round. A lot of them makes the outlook outdated."""
        self._notes.append(record)
        if len(self._notes) >= _SERVES:
            self._learn_notes()
            self._made = None

    def outlook(self, signals: BatchSignals) -> Outlook:
        """What to expect of a round of these rows; the same object while it serves."""
        made, batch = self._made, signals.rows.tobytes()
        if made is None or made.batch != batch or made.beside != signals.beside:
            self._learn_notes()
            made = self._made = _Made(batch, signals.beside, self._make(signals))
        return made.outlook

    def learned(self) -> dict[str, FloatArray]:
        """Counts of all traffic and of tasks; rounds in hand are left."""
        return {"acceptance": self._signals.learned()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        self._signals.restore(counts(learned, "acceptance", self._signals.learned().shape))
        self._made = None

    def _make(self, signals: BatchSignals) -> Outlook:
        size, context = signals.round_size, float(signals.context.sum())
        acceptance = self._signals.acceptance(signals.rows)
        per_step, per_row = self._cost.step_line(self._drafter, size)
        verify = self._cost.verify_line(size, len(signals.rows) * self._depth, context)
        return Outlook(self._goodput(signals, acceptance), acceptance, per_step, per_row, verify)

    def _goodput(self, signals: BatchSignals, acceptance: FloatArray) -> float:
        depths = np.arange(self._depth + 1, dtype=np.float64)
        gained = np.concatenate(([0.0], np.cumprod(acceptance, axis=1).sum(axis=0).cumsum()))
        seconds = self._cost.round_seconds(
            self._drafter, signals.round_size, depths, len(signals.rows) * depths, float(signals.context.sum())
        )
        return float(((signals.round_size + gained) / seconds).max())

    def _learn_notes(self) -> None:
        for record in self._notes:
            self._signals.observe(record.rows, record.drafted, record.accepted)
        self._notes.clear()


@dataclass(frozen=True)
class _Made:
    """An outlook and the batch it was made for."""

    batch: bytes
    beside: int
    outlook: Outlook
