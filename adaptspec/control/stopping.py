"""Stop rules: after each drafted token, whether a row drafts one more. `StopSpec` is what a policy file may say.

They write tables of bounds on what drafts state of their own tokens (confidence, entropy). To add one: its class and
its spec, in the union at the end, a test and a YAML.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.algorithms.round_terms import ModelTerms
from adaptspec.control.language.schema import Part, Short
from adaptspec.control.policy import Learner
from adaptspec.decision import StopTable
from adaptspec.rounds import RoundRecord

_RATE_MEMORY, _THRESHOLD_MEMORY = 0.5, 0.9  # AdaEDL's, from its paper


class StopRule(Learner):
    """Writes the stop table of each round, and learns from rounds. This one never stops anything."""

    learns = False  # whether `learn` does anything

    def table(self, choice: Choice) -> StopTable | None:  # noqa: ARG002 - for rules that look at it
        """For the rows of a choice; the same object while nothing changes. None: all of it is to be drafted."""
        return None

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round."""


class NoStopSpec(Part):
    """Draft the whole depth."""

    rule: Literal["none"]

    def build(self) -> StopRule:
        return StopRule()


class ThresholdStop(StopRule):
    """Go on after a token of at least `confidence` probability, drawn from at most `entropy` nats; whichever is given.

    Confidence: good where the right threshold is known for the traffic; a draft's confidence correlates 0.4 to 0.7
    with acceptance. Source: the thresholds of assisted generation (Kim et al. 2023, BiLD). Entropy: at temperature 0
    and near it much the same; at high temperature it does not blame a token for having been drawn from the tail.
    """

    def __init__(self, *, confidence: float | None = None, entropy: float | None = None) -> None:
        self._bounds, self._rows = (confidence, entropy), -1
        self._table: StopTable | None = None

    def table(self, choice: Choice) -> StopTable | None:
        if self._rows != len(choice.depths):
            self._rows = len(choice.depths)
            filled = (None if bound is None else np.full((self._rows, 1), bound) for bound in self._bounds)
            self._table = StopTable(*filled)
        return self._table


def svip_stop(scale: float = 0.15, threshold: float = 0.3) -> ThresholdStop:
    """Stop when sqrt(scale * H) > threshold, H the entropy in nats of the draft's distribution.

    Acceptance is 1 - TV(p, q), and TV(p, q) <= sqrt(KL / 2) (Pinsker); SVIP takes the divergence to be in proportion
    to the draft's own entropy, all that is known before verification. A square root is monotonous, so the rule is
    a bound on the entropy: H > threshold^2 / scale, 0.6 nats by default.
    Regimes: no state, no training; right where the draft knows when it does not know. Source: Zhang et al. 2024,
    "Draft Model Knows When to Stop: A Self-Verification Length Policy for Speculative Decoding".
    """
    return ThresholdStop(entropy=threshold**2 / scale)


class ConfidenceStopSpec(Part):
    """Stop after a token the draft gave less probability than this."""

    rule: Literal["confidence"]
    threshold: float = Field(ge=0.0, le=1.0, description="A draft goes on after tokens of at least this probability.")

    def build(self) -> StopRule:
        return ThresholdStop(confidence=self.threshold)


class EntropyStopSpec(Part):
    """Stop after a token drawn from a distribution of more entropy than this, in nats."""

    rule: Literal["entropy"]
    threshold: float = Field(ge=0.0, description="A draft goes on after tokens of at most so many nats.")

    def build(self) -> StopRule:
        return ThresholdStop(entropy=self.threshold)


class SvipStopSpec(Part):
    """Stop after a token where sqrt(scale x entropy) exceeds the threshold."""

    rule: Literal["svip"]
    scale: float = Field(default=0.15, gt=0.0, le=10.0, description="Estimates cross-entropy from the draft's entropy.")
    threshold: float = Field(default=0.3, ge=0.0, le=10.0, description="The draft ends where the root is above it.")

    def build(self) -> StopRule:
        return svip_stop(self.scale, self.threshold)


class AdaEdlStop(ThresholdStop):
    """Stop when 1 - sqrt(kappa * H) < lambda, H the entropy in nats of the draft's distribution.

    1 - sqrt(kappa * H) bounds acceptance from below (from Pinsker's inequality, with the divergence taken to be in
    proportion to the draft's entropy). Lambda follows acceptance: after each round that drafted,

        r      <- rate_memory * r + (1 - rate_memory) * accepted / drafted
        lambda <- threshold_memory * lambda + (1 - threshold_memory) * (lambda + step * sign(target - r))

    so it rises, and drafts get shorter, while fewer than `target` of the drafted tokens are accepted, and falls while
    more are. Held to [0, 1]. A draft without entropies is never stopped. Of drafts that branch their main chains count:
    these are what it stops.

    Regimes: no training and no costs needed; it aims at an acceptance, not at time, so the target should fall as
    drafting gets cheaper. Source: Agrawal et al. 2024, "AdaEDL: Early Draft Stopping for Speculative Decoding of
    Large Language Models via an Entropy-based Lower Bound on Token Acceptance Probability".
    """

    learns = True

    def __init__(self, kappa: float = 0.2, threshold: float = 0.6, target: float = 0.9, step: float = 0.01) -> None:
        """`threshold` is where lambda starts; the defaults are the paper's."""
        self._kappa, self._target, self._step = kappa, target, step
        # How many learned it (of several states, the mean counts), and the sums of their lambda and r.
        self._sums: FloatArray = np.array([1.0, threshold, target])
        super().__init__(entropy=self._ceiling())

    @property
    def threshold(self) -> float:
        """Lambda."""
        return min(1.0, self._sums.item(1) / max(1.0, self._sums.item(0)))

    def table(self, choice: Choice) -> StopTable | None:
        bounds = (None, self._ceiling())
        if bounds != self._bounds:
            self._bounds, self._rows = bounds, -1
        return super().table(choice)

    def learn(self, record: RoundRecord) -> None:
        main = record.main_chains()
        drafted = int(main.drafted.sum())
        if not drafted:
            return
        many, threshold, rate = self._sums.tolist()
        threshold, rate = threshold / max(1.0, many), rate / max(1.0, many)
        rate += (1.0 - _RATE_MEMORY) * (int(main.accepted.sum()) / drafted - rate)
        towards = (rate < self._target) - (rate > self._target)
        threshold += (1.0 - _THRESHOLD_MEMORY) * self._step * towards
        self._sums[:] = 1.0, min(1.0, max(0.0, threshold)), rate

    def state(self) -> dict[str, FloatArray]:
        """Lambda and r, since lambda takes hundreds of rounds to get anywhere."""
        self._sums /= max(1.0, self._sums.item(0))
        return {"threshold": self._sums}

    def _ceiling(self) -> float:
        """The same inequality solved for the entropy: one comparison per draft step."""
        return (1.0 - self.threshold) ** 2 / self._kappa


class AdaEdlStopSpec(Part):
    """Stop where 1 - sqrt(kappa x entropy) is below a threshold that follows a target acceptance."""

    rule: Literal["adaedl"]
    kappa: float = Field(default=0.2, gt=0.0, le=10.0, description="Weight of the entropy in the bound.")
    threshold: float = Field(default=0.6, ge=0.0, le=1.0, description="Where the threshold starts.")
    target: float = Field(default=0.9, gt=0.0, lt=1.0, description="Share of drafted tokens that should be accepted.")
    step: float = Field(default=0.01, ge=0.0, le=1.0, description="How fast the threshold moves; 0 holds it.")

    def build(self) -> StopRule:
        return AdaEdlStop(self.kappa, self.threshold, self.target, self.step)


class MarginalGoodputStop(StopRule):
    """Go on while survival x next acceptance > goodput x (one more draft step + one more verified token).

    Survival is the product of the calibrated confidences of the tokens drafted so far, next acceptance that of the row
    at the next position (side nodes included), both of the drafter that drafts for it; goodput and costs
    are the algorithm's. A step is paid once for all rows that take it: they go on if together they earn it. (Splitting
    its cost among the rows expected to go on is up to 5 % slower: rows that stop early leave the others more to pay.)
    Source: the optimality condition of a ratio of sums (Dinkelbach): a token belongs in the round iff its
    ratio of gain to cost exceeds the whole round's.
    """

    def __init__(self) -> None:
        self._value: ExpectedValue | None = None
        self._tables: dict[int, StopTable] = {}
        self._mixed: tuple[IntArray, StopTable | None] | None = None  # joined tables, by the drafters of rows

    def table(self, choice: Choice) -> StopTable | None:
        """See `StopRule.table`; None where the algorithm expects nothing."""
        value = choice.value
        if value is None:
            return None
        if value is not self._value:
            self._value, self._mixed = value, None
            self._tables = {model.drafter_id: _table(value, model) for model in value.models}
        if len(self._tables) == 1:
            return self._tables.get(value.models[0].drafter_id)
        if self._mixed is None or self._mixed[0] is not choice.drafter:
            parts = [(np.flatnonzero(choice.drafter == which), table) for which, table in self._tables.items()]
            self._mixed = choice.drafter, StopTable.stacked(parts, len(choice.depths))
        return self._mixed[1]


def _table(value: ExpectedValue, model: ModelTerms) -> StopTable:
    """The stop table of rows for which this model drafts."""
    acceptance, brings = model.acceptance, model.step_gains
    if value.weight is not None:
        brings = brings * value.weight[:, None]
    costs = value.goodput * (model.prices.step_row + (1.0 + model.side_nodes) * _verifying(value, model))
    least: FloatArray = np.full(acceptance.shape, np.inf)  # in the last column: the deepest position
    least[:, :-1] = costs[:-1] / brings[:, 1:]
    return StopTable(
        survival=least,
        calibration=model.calibration,
        unstated=acceptance,
        worth=np.concatenate((brings[:, 1:], brings[:, -1:]), axis=1),
        # Steps that run in any case cost nothing more.
        step=np.full((len(acceptance), 1), 0.0 if model.whole else value.goodput * model.prices.step),
    )


def _verifying(value: ExpectedValue, model: ModelTerms) -> FloatArray:
    """Seconds that verifying a row's token 2 ... D + 1 adds to those that it and the others are expected to submit."""
    others = max(sum(value.drafting.values()) - 1, 0)
    positions = np.arange(1.0, len(model.nodes))
    tokens = positions + others * np.minimum(positions + 0.5, positions[-1])  # half of the others go on
    each = _slopes(value.verify)
    seconds: FloatArray = np.interp(tokens, np.arange(len(each)), each)
    return seconds


def _slopes(curve: FloatArray) -> FloatArray:
    """Seconds of one more token [n]: the least mean of the next 1, 2 or 4, so that drafts get past a single step up."""
    each: FloatArray = np.diff(curve)
    for ahead in (2, 4):
        mean = (curve[ahead:] - curve[:-ahead]) / ahead
        each[: len(mean)] = np.minimum(each[: len(mean)], mean)
    return each


class MarginalGoodputStopSpec(Part):
    """Stop where one more token no longer earns what it costs."""

    rule: Literal["marginal-goodput"]

    def build(self) -> StopRule:
        return MarginalGoodputStop()


StopSpec = Annotated[
    NoStopSpec | ConfidenceStopSpec | EntropyStopSpec | AdaEdlStopSpec | SvipStopSpec | MarginalGoodputStopSpec,
    Field(discriminator="rule"),
    Short("rule"),
]
