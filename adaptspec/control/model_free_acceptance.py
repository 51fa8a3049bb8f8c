"""Estimates of how many tokens found by model-free drafters are accepted, which are known before a round.

A drafter that states a confidence for each token is calibrated by it. The n-grams of other engines, and tapes of
earlier versions, state none: acceptance is estimated from the run of the row, how many of the latest tokens were right
one after another, since text is repeated in stretches.

Both are scored in rounds in which they did not draft, too: the emitted tokens show which of theirs were right.
"""

from __future__ import annotations

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.acceptance import Acceptance, Calibration
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.rounds import RoundRecord

# Prior acceptance after runs of 0, 1, 2-3, 4-7, 8-15 and more tokens, as measured on greedy answers of a small model to
# prompts of ten tasks.
_PRIOR_BY_RUN = np.array([0.60, 0.65, 0.80, 0.87, 0.95, 0.98])
_LONGEST_RUN = 2 ** (len(_PRIOR_BY_RUN) - 2)  # the first run of the last class


class LookupAcceptance(Learner):
    """Estimates of a model-free drafter, by its confidences where it states them, else by the runs of its rows."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        self._stated = StatedAcceptance(rows, tasks, depth)
        self._unstated = RunAcceptance(rows, tasks, depth)

    def start(self, row: int) -> None:
        """A request starts in a row."""
        self._stated.start(row)
        self._unstated.start(row)

    def expected_tokens(self, drafter_id: int, signals: BatchSignals) -> FloatArray:
        """[B, 1 + depth] tokens expected to be accepted of drafts of 0, 1, 2 ... tokens that this drafter found."""
        return self._estimates(drafter_id, signals.stated).expected_tokens(drafter_id, signals)

    def observe(self, drafter_id: int, record: RoundRecord) -> None:
        """Learn from what this drafter found, drafted or not, by the next `settle`."""
        self._estimates(drafter_id, record.stated).observe(drafter_id, record)

    def settle(self) -> None:
        """Add up the rounds since the last time."""
        self._stated.settle()
        self._unstated.settle()

    def state(self) -> dict[str, FloatArray]:
        return {**self._stated.state(), **self._unstated.state()}

    def _estimates(self, drafter_id: int, stated: FloatArray | None) -> StatedAcceptance | RunAcceptance:
        unstated = stated is None or np.isnan(stated[drafter_id]).all()
        return self._unstated if unstated else self._stated


class StatedAcceptance(Learner):
    """Estimates of a model-free drafter that states its confidence; for the methods see `LookupAcceptance`."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        self.calibration = Calibration(rows, tasks)
        self._depth = depth
        self._pending: list[tuple[FloatArray, IntArray, IntArray, IntArray, IntArray]] = []

    def start(self, row: int) -> None:
        """See `LookupAcceptance.start`."""
        self.calibration.start(row)
        for _, rows, *_ in self._pending:
            rows[rows == row] = -1  # of the request that ended

    def expected_tokens(self, drafter_id: int, signals: BatchSignals) -> FloatArray:
        """See `LookupAcceptance.expected_tokens`."""
        confidence = self._stated(signals.stated, drafter_id, len(signals.rows))
        unknown = np.isnan(confidence)
        by_bin = self.calibration.acceptance(signals.rows, signals.tasks)
        bins = self.calibration.bins_of(np.where(unknown, 0.0, confidence))
        return _cumulative(np.where(unknown, 0.0, np.take_along_axis(by_bin, bins, axis=1)))

    def observe(self, drafter_id: int, record: RoundRecord) -> None:
        """See `LookupAcceptance.observe`."""
        if record.stated is None:
            return
        chains = record.chains(drafter_id)
        drafted = np.minimum(chains.drafted, self._depth)
        accepted = np.minimum(chains.accepted, drafted)
        confidence = self._stated(record.stated, drafter_id, len(record.rows))
        self._pending.append((confidence, record.current_rows.copy(), record.tasks, drafted, accepted))

    def settle(self) -> None:
        """See `LookupAcceptance.settle`."""
        if self._pending:
            self.calibration.observe_confidence(*(np.concatenate(each) for each in zip(*self._pending, strict=True)))
            self._pending.clear()

    def state(self) -> dict[str, FloatArray]:
        self.settle()
        return {"stated": self.calibration.counts()}

    def _stated(self, stated: FloatArray | None, drafter_id: int, rows: int) -> FloatArray:
        """[B, depth] confidences of a drafter, of those of all [drafters, B, ...]; NaN where nothing is known."""
        confidence: FloatArray = np.full((rows, self._depth), np.nan)
        if stated is not None:
            known = stated[drafter_id, :, : self._depth]
            confidence[:, : known.shape[1]] = known
        return confidence


class RunAcceptance(Learner):
    """Estimates of a model-free drafter by the run of each row: how many of its latest tokens were all right."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        self.by_run = Acceptance(0, tasks, len(_PRIOR_BY_RUN), prior=_PRIOR_BY_RUN)
        self.run = [0] * rows
        runs = np.arange(_LONGEST_RUN + 1)[:, None] + np.arange(depth)
        # [run, depth] the class of each token of a draft; the first class of runs of 2 ** n is n + 1.
        self._classes: IntArray = np.minimum(np.frexp(runs)[1], len(_PRIOR_BY_RUN) - 1).astype(np.int64)
        self._pending: list[tuple[int, int, int, int]] = []  # task, run, drafted, accepted

    def start(self, row: int) -> None:
        """See `LookupAcceptance.start`."""
        self.run[row] = 0

    def expected_tokens(self, drafter_id: int, signals: BatchSignals) -> FloatArray:  # noqa: ARG002 - all are alike
        """See `LookupAcceptance.expected_tokens`."""
        classes = self._classes[[self.run[row] for row in signals.rows.tolist()]]
        return _cumulative(np.take_along_axis(self.by_run.of_tasks(signals.tasks), classes, axis=1))

    def observe(self, drafter_id: int, record: RoundRecord) -> None:
        """See `LookupAcceptance.observe`. In Python's numbers, in a fifth of the time where rounds are shortest."""
        rows, main = record.current_rows, record.main_chains()
        found, right = [-1] * len(rows), [-1] * len(rows)
        if record.shadow is not None and record.shadow_drafted is not None:
            found, right = record.shadow_drafted[drafter_id].tolist(), record.shadow[drafter_id].tolist()
        columns = (rows, main.tasks, main.drafter, main.depths, main.drafted, main.accepted)
        outcomes = zip(*(values.tolist() for values in columns), found, right, strict=True)
        for row, task, drafter, depth, *chain, scored, scored_right in outcomes:
            if row < 0:  # the run of a request that has ended is forgotten
                continue
            tokens, accepted = chain if drafter == drafter_id and depth > 0 else (scored, scored_right)
            run = self.run[row]
            if tokens > 0:
                self._pending.append((task, run, tokens, accepted))
            # -1 tokens: the drafter was not scored. Whether the run goes on is unknown, so it starts at 0 again.
            self.run[row] = min(run + tokens, _LONGEST_RUN) if accepted >= tokens >= 0 else 0

    def settle(self) -> None:
        """See `LookupAcceptance.settle`."""
        if self._pending:
            tasks, run, drafted, accepted = np.array(self._pending).T
            self._pending.clear()
            depth, no_row = self._classes.shape[1], np.full(len(tasks), -1)
            drafted, accepted = np.minimum(drafted, depth), np.minimum(accepted, depth)
            self.by_run.observe_classes(no_row, tasks, self._classes[run], drafted, accepted)

    def state(self) -> dict[str, FloatArray]:
        """Files of learned state call it `lookups`, from when n-grams were the only ones."""
        self.settle()
        return {"lookups": self.by_run.counts()}


def _cumulative(acceptance: FloatArray) -> FloatArray:
    """[B, 1 + D] tokens expected to be accepted of drafts of 0 ... D tokens, given P(each | all before it) [B, D]."""
    tokens: FloatArray = np.zeros((len(acceptance), 1 + acceptance.shape[1]))
    tokens[:, 1:] = acceptance.cumprod(axis=1).cumsum(axis=1)
    return tokens
