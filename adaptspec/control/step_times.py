"""What parts of a step take where only whole steps can be timed: decayed least squares over what steps were made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaptspec.control.cost import CostProfile, DrafterCost
from adaptspec.control.host import Host
from adaptspec.types import FloatArray

# Steps that are fitted together, and how much each fades by the next fit: about the last 500 steps count.
_TOGETHER, _FADE = 32, 0.94
# What is believed before anything was seen, in shares of a step: a base, and little for each row, drafted token that is
# verified, draft step, row of a draft step and token of a prompt, and for rows that are unlike. As strong as one step
# of each kind.
_PRIOR = np.array([1.0, 0.03, 0.03, 0.1, 0.01, 0.003, 0.01])
# A step that took so many times its usual distance from what was expected counts as that: stalls are the machine's.
_CHANCE, _FIRST_SPREAD = 2.0, 0.5
# How strongly what is known holds where steps say nothing: the square of the relative error that a step has.
_HOLD = 0.1**2
# The relative error of a step up to which it counts as it is: a third of what a cost table reckons with.
_CALM = 0.1
# Steps that tell the parts of a step apart where the clock is calm, and how many times as many there are at most.
_ENOUGH, _MOST_NOISE = 24, 4.0
_TRIED = 64  # after so many steps cutting rows is tried though it was not worth it
_LONGEST = 1e6  # seconds: no step's
_MOST_OFF = 9.0  # times its expected seconds that a step may be late: beyond that the machine slept
_NOMINAL, _LEAST = 1e-2, 1e-6  # seconds of a step until one was seen, and the least of anything
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Step(NamedTuple):
    """What a step was made of: rows that verified, drafted tokens that they verified, draft steps, the rows of these,
    tokens of prompts and of others, and whether rows verified unlike numbers of tokens.
    """

    rows: int
    verified: int
    draft_steps: int
    draft_rows: int
    prefill: int
    unlike: bool = False


class StepTimes:
    """T = a + b rows + c verified + (d + e draft rows) x draft steps + p prompt tokens + u unlike, none negative.

    Weighed by relative error; what chance does not explain is cut, so that a busy machine moves it little. What steps
    do not tell apart stays as it was believed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._waiting: list[tuple[Step, float]] = []
        self._weights: FloatArray = _PRIOR * _NOMINAL
        self._squares: FloatArray = np.zeros((len(_PRIOR), len(_PRIOR)))
        self._products: FloatArray = np.zeros(len(_PRIOR))
        self._spread = _FIRST_SPREAD
        self._known: list[float] = self._weights.tolist()

    def add(self, step: Step, seconds: float) -> None:
        """A step took so many seconds. What is no time is left out."""
        if not 0.0 < seconds < _LONGEST:
            return
        self._waiting.append((step, seconds))
        self.steps += 1
        if len(self._waiting) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Fit what has come so far."""
        if not self._waiting:
            return
        parts = np.array([_parts(step) for step, _ in self._waiting])
        seconds = np.array([seconds for _, seconds in self._waiting])
        first = self.steps == len(self._waiting)
        if first:  # how fast the machine is
            self._weights = _PRIOR * float(np.median(seconds / (parts @ _PRIOR)))
        self._waiting.clear()
        expected = np.maximum(parts @ self._weights, _LEAST)
        off = seconds / expected - 1.0
        most = _CHANCE * self._spread
        taken = expected * (1.0 + np.clip(off, -most, most))
        scaled = parts / expected[:, None]
        self._squares = _FADE * self._squares + scaled.T @ scaled
        self._products = _FADE * self._products + scaled.T @ (taken / expected)
        self._weights = self._solved()
        off = np.abs(seconds / np.maximum(parts @ self._weights, _LEAST) - 1.0)
        found = float(np.clip(1.48 * np.median(off), 0.02, _FIRST_SPREAD))
        self._spread += (1.0 if first else 0.3) * (found - self._spread)
        self._known = self._weights.tolist()

    @property
    def settled(self) -> bool:
        """Whether steps enough were timed for their noise to tell the parts apart; fits them first."""
        self.settle()
        return self.steps >= _ENOUGH * min(_MOST_NOISE, max(1.0, self._spread / _CALM))

    def calmed(self, step: Step, seconds: float) -> float:
        """What a step took, with less of what was not expected of it the noisier the clock is: whoever learns from
        single steps would follow every stall.
        """
        expected = sum(weight * count for weight, count in zip(self._known, _parts(step), strict=True))
        return expected + min(seconds - expected, _MOST_OFF * expected) * min(1.0, _CALM / self._spread)

    def draft_seconds(self, steps: int, rows: int) -> float:
        """What so many draft steps of so many rows take."""
        return (self._known[3] + self._known[4] * rows) * steps

    def prefill_seconds(self, tokens: int) -> float:
        """What reading so many tokens of prompts adds to a step."""
        return self._known[5] * tokens

    def worth_cutting(self, tokens: int) -> bool:
        """Whether to verify so many tokens less takes less, though rows are unlike then. That made steps a tenth longer
        on a CPU, and on a device it takes engines out of their full graphs. Now and then it is tried all the same:
        where no rows are unlike, nothing says that it would pay by now.
        """
        pays = self._known[2] * tokens > self._known[6]
        return pays or (tokens > 0 and self.steps % _TRIED == 0)

    def profile(self, drafter: str, most_rows: int, host: Host, *, reads_along: bool = True) -> CostProfile:
        """A first belief for a `CostTable`: of up to `most_rows` rows, and drafts as deep as the host's go."""
        self.settle()
        base, row, verified, *_ = self._weights.tolist()
        rows = (*(count for count in _ROWS if count < most_rows), most_rows)
        tokens = tuple(range(1, host.deepest + 2))
        base = max(base, _LEAST)
        return CostProfile(
            rows,
            tokens,
            tuple(tuple(base + row * count + verified * count * (width - 1) for width in tokens) for count in rows),
            {
                drafter: DrafterCost(
                    rows,
                    tuple(max(self.draft_seconds(1, count), _LEAST) for count in rows),
                    together=True,
                    reads_along=reads_along,
                )
            },
        )

    def _solved(self) -> FloatArray:
        """The weights that fit best and are not negative; what the sums say nothing of stays as it was."""
        usual = np.maximum(self._weights, _PRIOR * max(self._weights[0], _LEAST))
        held = np.diag(_HOLD / np.square(usual))
        squares, products = self._squares + held, self._products + held @ self._weights
        free = np.ones(len(_PRIOR), dtype=np.bool_)
        weights = np.zeros(len(_PRIOR))
        for _ in range(len(_PRIOR)):
            weights[:] = 0.0
            weights[free] = np.linalg.solve(squares[np.ix_(free, free)], products[free])
            if (weights >= 0.0).all():
                break
            free &= weights > 0.0
        return np.maximum(weights, 0.0)


def _parts(step: Step) -> tuple[float, ...]:
    draft_rows = step.draft_steps * step.draft_rows
    return 1.0, step.rows, step.verified, step.draft_steps, draft_rows, step.prefill, step.unlike
