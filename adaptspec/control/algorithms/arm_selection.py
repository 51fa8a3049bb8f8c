"""What an index function sees and answers: estimates of each arm per context, and which arm a context plays next.

An algorithm is an `ArmSelector`: to add one, write a class and its spec among the algorithms, and a line in the
registry. All else (episodes, rewards, sums) is the bandit's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.ledger import CROSS, EARNED, EARNED2, SPENT, SPENT2, Ledger, N, Observed
from adaptspec.control.policy import Learner
from adaptspec.types import BoolArray, FloatArray, IntArray

# A deeper arm is entered from the one below it, once that was seen this often (in fading rounds).
_SEEN_ENOUGH = 0.5
# Nothing seen: acceptance of each token in percent, believed like one round; and how much tokens per round vary, over
# the root of the depth.
_ACCEPTANCE, _SPREAD = 60, 0.5


@dataclass(frozen=True)
class View:
    """m contexts that are due for an arm, all in a round of the same batch size.

    Per arm [m, K]: rounds `seen`, `ratio` earned / spent, one standard `error` of it, the `spread` of a single
    round's. Off is known: 1, without error; `plain` [m] are the rounds at it. `incumbent` is the arm played so far, for
    `rounds` rounds; -1 for a new context. `costs` [K]: what a round at each arm spends by the cost table, 1 = a plain
    round; `entry` [m, K]: what catching up adds to that, spread over a horizon.
    """

    contexts: IntArray
    bucket: int
    incumbent: IntArray
    rounds: IntArray
    seen: FloatArray
    ratio: FloatArray
    error: FloatArray
    spread: FloatArray
    plain: FloatArray
    costs: FloatArray
    entry: FloatArray
    playable: BoolArray  # [m, K]
    features: FloatArray  # [m, F]

    @staticmethod
    def of(values: FloatArray, arms: IntArray) -> FloatArray:
        """[..., m, 1] values of one arm per context."""
        return np.take_along_axis(values, arms[..., None], axis=-1)

    @property
    def best_known(self) -> IntArray:
        """[m] the arm of the highest ratio among those seen; the incumbent where nothing was."""
        ratio = np.where((self.seen >= 1.0) & self.playable, self.ratio, -np.inf)
        nothing = (ratio.max(axis=1) == -np.inf) & (self.incumbent >= 0)
        return np.where(nothing, self.incumbent, ratio.argmax(axis=1))

    @property
    def lacking(self) -> FloatArray:
        """[m, K] an arm's error against the best known one, beyond what they were seen in together."""
        finite = np.where(np.isfinite(self.seen), self.seen, -1.0)
        together = (1.0 + finite) / (1.0 + self.of(self.seen, self.best_known))
        return self.error * np.sqrt(np.maximum(1.0 - together, 0.0))


@dataclass(frozen=True)
class Pick:
    """Arms for m contexts, and whether each is played to learn.

    `memo` [m, X] is what the algorithm wants to know again when it observes how the pick did.
    """

    arms: IntArray
    exploring: BoolArray
    memo: FloatArray


class ArmSelector(Learner):
    """Base of algorithms; what it does not override needs nothing beyond the sums that the bandit keeps anyway."""

    def __init__(self, arms: Arms, ledger: Ledger, seed: int = 0) -> None:
        self.arms, self.ledger, self.rng = arms, ledger, np.random.default_rng(seed)

    def pick(self, view: View) -> Pick:
        raise NotImplementedError(f"{type(self).__name__} picks nothing")

    def start(self, context: int) -> None:
        """A request's context begins anew."""

    def observe(self, observed: Observed, memo: FloatArray) -> None:
        """What contexts saw, and the memo [G, X] of the picks that it was seen under."""

    def highest(self, scores: FloatArray, view: View) -> Pick:
        """The arms of the highest scores [m, K]; an arm is explored if it is not the best known."""
        chosen = np.where(view.playable, scores, -np.inf).argmax(axis=1)
        return Pick(chosen, chosen != view.best_known, np.zeros((len(chosen), 0)))

    def draw(self, chances: FloatArray) -> IntArray:
        """[m] an arm by each row of chances [m, K], which sums to 1."""
        beyond = chances.cumsum(axis=1) < self.rng.random((len(chances), 1))
        return np.asarray(np.minimum(beyond.sum(axis=1), chances.shape[1] - 1))


def estimates(sums: FloatArray, arms: Arms, costs: FloatArray, entry: FloatArray) -> dict[str, FloatArray]:
    """`View`'s fields per arm, from sums [m, K, 6].

    The ratio is sum(earned) / sum(spent), its error from the residuals earned - ratio x spent (the delta method), both
    with one round of prior belief added. `entry` lowers the ratio of arms whose drafter lags.
    """
    rounds, spent = sums[..., N] + 1.0, sums[..., SPENT] + costs
    ratio = (sums[..., EARNED] + _believed(sums, arms)) / spent
    squares = sums[..., EARNED2] - 2.0 * ratio * sums[..., CROSS] + ratio**2 * sums[..., SPENT2]
    prior = _SPREAD**2 * arms.depths
    each = spent / rounds
    spread = np.sqrt((np.maximum(squares, 0.0) + prior) / rounds) / each
    later = each / (each + entry)
    seen, ratio, error = sums[..., N].copy(), ratio * later, spread / np.sqrt(rounds) * later
    plain = np.zeros(len(sums)) if arms.off is None else sums[:, arms.off, N]
    if arms.off is not None:
        seen[:, arms.off], ratio[:, arms.off], error[:, arms.off], spread[:, arms.off] = np.inf, 1.0, 0.0, 0.0
    return {"seen": seen, "ratio": ratio, "error": error, "spread": spread, "plain": plain}


def _believed(sums: FloatArray, arms: Arms) -> FloatArray:
    # Tokens per round of an arm [m, K] before it is seen: as if every token were accepted alike, by the acceptance that
    # explains what the next shallower arm brought.
    believed = np.ones(sums.shape[:2])
    for arm in arms.ladder:
        below = int(arms.below[arm])
        if below < 0:
            believed[:, arm] = arms.tokens[arm, _ACCEPTANCE]
        else:
            brought = (sums[:, below, EARNED] + believed[:, below]) / (sums[:, below, N] + 1.0)
            believed[:, arm] = np.interp(brought, arms.tokens[below], arms.tokens[arm])
    return believed


def enterable(seen: FloatArray, arms: Arms, limits: IntArray) -> BoolArray:
    """[m, K] which arms may be played: within the limits [m] as far as there are such, and not two steps up at once."""
    fits = arms.depths <= limits[:, None]
    fits |= ~fits.any(axis=1, keepdims=True)
    from_below: BoolArray = fits & ((arms.below < 0) | (seen[:, arms.below] >= _SEEN_ENOUGH))
    return np.where(from_below.any(axis=1, keepdims=True), from_below, fits)
