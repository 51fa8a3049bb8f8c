"""A time per output token for every request, and the most tokens per second beyond that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.control.acceptance import AcceptanceSettings
from adaptspec.control.choosers.chooser import Choice, Chooser, Parts
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.choosers.goodput_spec import PriorSpec
from adaptspec.control.choosers.pacing import Market, keep_pace, seconds_of, worst_pace
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.control.schema import Part
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord

# One row in so many may join before paces are reviewed.
_FEW = 8


@dataclass(frozen=True)
class SloSettings:
    """`seconds_per_token` is promised to every request. What a row is behind or ahead by is made up for over

    `horizon_tokens`; `margin` of the time is kept in reserve, since rounds vary.
    """

    seconds_per_token: float
    horizon_tokens: float = 16.0
    margin: float = 0.05
    review_rounds: int = 4
    goodput: GoodputSettings = field(default_factory=GoodputSettings)


class Slo:
    """Goodput's depths where they keep every row's pace; else the depths of the most goodput among those that do:

    maximise (B + sum of gains) / T  subject to  T / (1 + gains of row r) <= allowed_r  for every row r.

    allowed_r is the target, more for a row that is ahead of it and less for one that is behind, so that measured pace
    (tokens emitted over seconds since it began) meets the target within `horizon_tokens`. Where no depths keep every
    pace, the worst row's violation is made least. All rows of a batch share T: deep drafts of a row that hurries cost
    the others time, and drafts of rows with time to spare may be what makes it late. The least drafting that
    keeps all paces is found first (see `keep_pace`), then goodput's own depths are let in as far as they fit.

    Regimes: interactive streams beside batch work; a target between what plain decoding takes and the best that
    drafting can do. A target that is never at risk costs nothing: it is goodput then. Does not admit or refuse
    requests. Source: the aim of SLO-customised speculative serving (AdaServe, Li et al. 2025), which picks tokens of
    draft trees for each request's target before it spends what is left on throughput.
    """

    # A row ahead of its target may idle, one behind may hurry, up to these multiples of the target.
    _MOST, _LEAST = 4.0, 0.25

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: SloSettings) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._settings = settings
        self._goodput = Goodput(cost, rows, tasks, settings.goodput)
        self.max_depth = self._goodput.max_depth
        self._seconds: FloatArray = np.zeros(rows)
        self._tokens: FloatArray = np.zeros(rows)
        self._depths: IntArray = np.full(rows, -1, dtype=np.int64)  # -1: goodput's own will do
        self._hurried, self._rounds_left = False, 0
        self._size, self._joined = 0, 0  # rows at the last review, and how many have joined them since

    def start(self, row: int) -> None:
        """See `Chooser.start`."""
        self._goodput.start(row)
        self._seconds[row] = self._tokens[row] = 0.0
        self._depths[row] = -1
        self._joined += 1
        if _FEW * self._joined > self._size:
            self._rounds_left = min(self._rounds_left, self._settings.review_rounds // 2)

    def finish(self, row: int) -> None:
        """See `Goodput.finish`."""
        self._goodput.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`. A plan serves for a few rounds; rows that join meanwhile follow goodput."""
        choice = self._goodput.choose(signals)
        if self.max_depth == 0:
            return choice
        if self._rounds_left <= 0:
            self._rounds_left = self._settings.review_rounds
            self._size, self._joined = len(signals.rows), 0
            self._hurried = self._review(signals, choice)
        self._rounds_left -= 1
        if not self._hurried:
            return choice
        own = self._depths[signals.rows]
        # A try has been paid for, and is settled by what its round brings.
        tried = choice.reasons == int(Reason.EXPLORE)
        depths = np.minimum(np.where((own < 0) | tried, choice.depths, own), signals.limits)
        reasons = np.where(tried, choice.reasons, np.where(depths > 0, int(Reason.POLICY), int(Reason.OFF)))
        return Choice(depths, reasons, choice.outlook)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        self._goodput.learn(record)
        self._seconds[record.rows] += record.total_seconds
        self._tokens[record.rows] += record.emitted

    def learned(self) -> dict[str, FloatArray]:
        """What goodput learned: paces are of requests that run."""
        return self._goodput.learned()

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        self._goodput.restore(learned)

    def _review(self, signals: BatchSignals, choice: Choice) -> bool:
        """Whether goodput's own depths would make a row late; `_depths` then hold better ones for these rows."""
        market = self._goodput.market(signals)
        if market is None:
            return False
        wish = np.minimum(choice.depths, signals.limits)
        allowed = self._allowed(signals.rows)
        if worst_pace(market, wish[None], allowed)[0] >= 1.0:
            return False
        plan = keep_pace(market, allowed)
        self._depths[:] = -1
        self._depths[signals.rows] = (
            self._with_spare(market, plan.depths, wish, allowed) if plan.worst >= 1.0 else plan.depths
        )
        return True

    def _allowed(self, rows: IntArray) -> FloatArray:
        """Seconds per token from here on [B], so that the whole meets the target at the horizon."""
        settings = self._settings
        target = settings.seconds_per_token * (1.0 - settings.margin)
        ahead = target * self._tokens[rows] - self._seconds[rows]
        return np.clip(target + ahead / settings.horizon_tokens, self._LEAST * target, self._MOST * target)

    def _with_spare(self, market: Market, least: IntArray, wish: IntArray, allowed: FloatArray) -> IntArray:
        """The most goodput between the least depths that keep all paces and goodput's own, cut at each depth."""
        cuts = np.concatenate(([0], market.tiers))
        candidates = np.maximum(least, np.minimum(wish, cuts[:, None]))
        gained = np.concatenate((np.zeros((len(wish), 1)), np.cumsum(market.gains, axis=1)), axis=1)
        emitted = market.base_tokens + gained[np.arange(len(wish)), candidates].sum(axis=1)
        goodput = emitted / seconds_of(market, candidates)
        fits = worst_pace(market, candidates, allowed) >= 1.0
        return candidates[int(np.argmax(np.where(fits, goodput, -1.0)))] if fits.any() else least


class SloSpec(Part):
    """`choose:` of a time per output token for every request."""

    takes_tiers: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True

    algorithm: Literal["slo"]
    time_per_output_token_ms: float = Field(gt=0.0, le=60_000.0, description="Promised to every request, on average.")
    horizon_tokens: float = Field(default=16.0, ge=1.0, description="Tokens within which a row makes up lost time.")
    margin: float = Field(default=0.05, ge=0.0, lt=0.9, description="Share of the time kept in reserve.")
    discount: float = Field(default=0.99, gt=0.5, le=1.0, description="Per round of a request: how fast counts fade.")
    prior: PriorSpec = Field(default=PriorSpec(), description="What is believed at first.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser."""
        acceptance = AcceptanceSettings(self.prior.acceptance, self.prior.weight, row=self.discount)
        settings = SloSettings(
            self.time_per_output_token_ms / 1e3,
            self.horizon_tokens,
            self.margin,
            goodput=GoodputSettings(parts.tiers, parts.drafters[:1], acceptance, stops=parts.stops),
        )
        return Slo(parts.cost, parts.max_rows, parts.tasks, settings)
