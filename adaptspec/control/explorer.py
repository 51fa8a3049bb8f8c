"""Trials of choices that the estimates reject: each kind costs a small share of the time, whatever they predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.rounds import RoundRecord

# Share of the time that trials of one kind may lose: at first, and at least after trials in vain.
_FIRST_SHARE, _MIN_SHARE = 0.02, 0.005
# Share of the time, in addition, for catching up on answers (tokens emitted while a drafter was idle). They grow with
# every round, so that a drafter could otherwise never be tried again in a long answer.
_READING_SHARE = 0.005
# A trial waits until at least this share of a round is saved: one whose predicted loss is next to nothing would run all
# the time.
_MIN_LOSS = 0.25
_MAX_SAVED = 4.0  # a budget saves at most the loss of so many trials
_MAX_LATE = 2.0  # a trial is charged at most so many times its predicted seconds: the rest is a stall of the machine


@dataclass(frozen=True, eq=False)
class Trial:
    """A choice that is run to learn from it, and what the round would have been without it. It is the choice's memo.

    `kind` names its budget. `rows` [n] are the engine's rows that it changes, `token_seconds` [n] what a token of each
    is worth. `seconds` and `kept` are predicted for the round without the trial: its seconds, and what the tokens that
    `rows` keep are worth; `predicted` are the seconds with it, of which `reading` go into catching up on answers.
    `shared`: prompts, or rows of other policies, take a part of the round's time, so that its clock says nothing of the
    trial.
    """

    kind: str
    rows: IntArray
    shared: bool
    seconds: float
    kept: float
    predicted: float
    reading: float
    token_seconds: FloatArray


@dataclass(frozen=True, eq=False)
class DecidedAfter:
    """The memo of choices that were made while the outcome of `trial` was unknown."""

    trial: Trial


@dataclass
class _Budget:
    seconds: float = 0.0
    share: float = _FIRST_SHARE
    price: float = 0.0  # seconds that the cheapest trial may lose, if it could not be afforded; else 0


class Explorer:
    """Budgets of seconds that trials may lose, one for each kind of trial; at most one trial is open at a time.

    The record of a round comes with the memo of its choice: the `Trial` that it ran, or that it was `DecidedAfter`.

    A budget earns a share of the time. A trial runs when its predicted loss has been saved, however large that is: a
    wrong estimate delays a trial, but never prevents it. It is charged by the clock: the seconds of its round, at most
    twice those predicted, less the seconds predicted without it and what the tokens it won are worth. Where others
    share the round, the predicted seconds count. Catching up on answers is paid from a budget of its own first. A trial
    in vain halves the share; one that paid restores it, and leaves what it won for the next.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, _Budget] = {}
        self._reading = 0.0
        self._open: DecidedAfter | None = None

    @property
    def decided_after(self) -> DecidedAfter | None:
        """The memo of a choice while the outcome of a trial is unknown; None: a trial may run."""
        return self._open

    def saving(self, kind: str) -> bool:
        """Whether the budget is still below the price of the cheapest trial of this kind, as last asked."""
        budget = self._budgets.get(kind)
        return budget is not None and budget.seconds < budget.price

    def forget_prices(self) -> None:
        """Prices have changed."""
        for budget in self._budgets.values():
            budget.price = 0.0

    def affordable(
        self, kind: str, round_seconds: float, fixed: float, each: FloatArray, reading: FloatArray
    ) -> IntArray:
        """Positions of the rows, cheapest first, that a trial of this kind can afford now.

        It loses `fixed` seconds once, `each` [N] for each row, and `reading` [N] for catching up on answers. A round
        without it takes `round_seconds`.
        """
        if not len(each):
            return np.empty(0, dtype=np.int64)
        budget = self._budgets.setdefault(kind, _Budget())
        order = np.argsort(each + reading, kind="stable")
        paid = np.cumsum(reading[order])
        loss = np.maximum(fixed + np.cumsum(each[order]), _MIN_LOSS * round_seconds)
        loss += np.maximum(paid - self._reading, 0.0)
        budget.seconds = min(budget.seconds, _MAX_SAVED * float(loss[0]))
        self._reading = min(self._reading, _MAX_SAVED * float(paid[-1])) if paid[-1] > 0.0 else self._reading
        chosen: IntArray = order[loss <= budget.seconds]
        budget.price = 0.0 if len(chosen) else float(loss[0])
        return chosen

    def open(self, trial: Trial) -> None:
        """A choice runs a trial, which is its memo."""
        self._open = DecidedAfter(trial)

    def learn(self, record: RoundRecord, memo: object) -> None:
        """Take note of a round and the memo of its choice; the round of the open trial settles it."""
        for budget in self._budgets.values():
            budget.seconds += budget.share * record.timing.total
        self._reading += _READING_SHARE * record.timing.total
        waiting = self._open
        if waiting is None or (memo is not waiting and memo is not waiting.trial):
            return
        self._open = None  # where a round that was decided later has come first, the trial's never comes
        if memo is waiting.trial:
            self._settle(waiting.trial, record)

    def _settle(self, trial: Trial, record: RoundRecord) -> None:
        budget = self._budgets[trial.kind]
        tried = np.isin(record.rows, trial.rows)
        seconds = trial.predicted if trial.shared else min(record.timing.total, _MAX_LATE * trial.predicted)
        worth = dict(zip(trial.rows.tolist(), trial.token_seconds.tolist(), strict=True))
        kept = zip(record.rows[tried].tolist(), record.kept[tried].tolist(), strict=True)
        won = sum(worth[row] * tokens for row, tokens in kept) - trial.kept
        free = min(self._reading, trial.reading)
        self._reading -= free
        lost = seconds - trial.seconds - won - free
        budget.seconds -= lost
        if not record.drafted[tried].any():
            return  # it has only caught up so far, and goes on with what is left
        budget.share = _FIRST_SHARE if lost <= 0.0 else max(0.5 * budget.share, _MIN_SHARE)
