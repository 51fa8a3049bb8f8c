"""The protocol of a bandit algorithm: which arm a context plays next. What all of them share is in `bandit`.

To add one: a file among the choosers with a class here and its spec, a line in the registry, a test and a YAML.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.estimates import Estimates
from adaptspec.control.bandits.ledger import Lot
from adaptspec.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class View:
    """m contexts that are due for an arm, all in a round of the same batch size.

    `incumbent` is the arm played so far, for `rounds` rounds; -1 for a new context. Switches are rationed:
    `may_switch` and `may_explore` say what the ration of each context still allows. `costs` [K]: what a round at each
    arm spends by the cost table, 1 = a plain round. `entry` [m, K]: what catching up adds to that, spread over a
    horizon.
    """

    contexts: IntArray
    bucket: int
    incumbent: IntArray
    rounds: IntArray
    estimates: Estimates
    costs: FloatArray
    entry: FloatArray
    playable: BoolArray  # [m, K]
    may_switch: BoolArray
    may_explore: BoolArray
    features: FloatArray  # [m, F]; F = 0 for algorithms that do not look at any

    @functools.cached_property
    def best_known(self) -> IntArray:
        """[m] the arm of the highest estimate among those seen; the incumbent where nothing was."""
        ratio = np.where((self.estimates.seen >= 1.0) & self.playable, self.estimates.ratio, -np.inf)
        best = ratio.argmax(axis=1)
        nothing = (ratio.max(axis=1) == -np.inf) & (self.incumbent >= 0)
        return np.where(nothing, self.incumbent, best)


@dataclass(frozen=True)
class Pick:
    """Arms for m contexts, and whether each is played to learn rather than to earn.

    `propensities`: the probability with which it was picked, 1 where nothing was drawn.
    """

    arms: IntArray
    propensities: FloatArray
    exploring: BoolArray


class Learner(Protocol):
    """One algorithm. Rounds reach it summed up by context, when an episode ends; it may keep what it likes of them."""

    @property
    def uses_features(self) -> bool:
        """Whether `View.features` and `observe`'s are wanted."""

    def start(self, context: int) -> None:
        """A request's context begins anew."""

    def observe(self, lot: Lot, features: FloatArray, surprising: BoolArray) -> None:
        """What contexts saw since the last time; `features` [G, F] are those their arms were picked by.

        `surprising` [G]: it contradicts what was known, which should hardly count any more.
        """

    def pick(self, view: View) -> Pick:
        """An arm for each context."""

    def learned(self) -> dict[str, FloatArray]:
        """See `Chooser.learned`."""

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""


class LedgerLearner:
    """Base of algorithms that need nothing beyond the sums that the bandit keeps anyway."""

    uses_features = False

    def __init__(self, arms: Arms) -> None:
        self._arms = arms

    def start(self, context: int) -> None:
        """Nothing of its own is kept."""

    def observe(self, lot: Lot, features: FloatArray, surprising: BoolArray) -> None:
        """Nothing of its own is kept."""

    def learned(self) -> dict[str, FloatArray]:
        """Nothing of its own is kept."""
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Nothing of its own is kept."""


def lacking(view: View) -> FloatArray:
    """[m, K] an arm's error against the best known one, beyond what they were seen in together."""
    seen, error = view.estimates.seen, view.estimates.error
    best = seen[np.arange(len(seen)), view.best_known][:, None]
    known = np.isfinite(seen)
    together = np.where(known, 1.0 + np.where(known, seen, 0.0), 0.0) / (1.0 + best)
    return error * np.sqrt(np.maximum(1.0 - together, 0.0))


def settle(scores: FloatArray, view: View, margin: float) -> tuple[IntArray, BoolArray]:
    """The arms of the highest scores [..., m, K], as far as the ration of switches goes; and which are explored.

    An arm is explored if it is not the best known. An incumbent stays where another scores less than `margin` more.
    """
    allowed = np.where(view.playable, scores, -np.inf)
    every, best, old = np.arange(len(view.incumbent)), view.best_known, view.incumbent
    chosen = allowed.argmax(axis=-1)
    chosen = np.where(view.may_explore, chosen, best)
    flat = allowed.reshape(-1, allowed.shape[-1])
    reached = flat[np.arange(len(flat)), chosen.ravel()].reshape(chosen.shape)
    stays = (reached <= allowed[..., every, old] + margin) | ~view.may_switch
    chosen = np.where((old >= 0) & stays, old, chosen)
    return chosen, chosen != best
