"""A time per output token for every request, and the most tokens per second beyond that."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.control.acceptance import AcceptanceSettings
from adaptspec.control.algorithms.algorithm import AlgorithmSpec, Choice, Parts
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings, PriorSpec
from adaptspec.control.algorithms.round_terms import RoundTerms
from adaptspec.control.policy import BatchSignals
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord

# Paces are reviewed once in so many rounds.
_REVIEW_ROUNDS = 4
# A row ahead of its target may idle, one behind may hurry, up to these multiples of the target.
_MOST, _LEAST = 4.0, 0.25
# Tokens within which a row makes up lost time, and the share of the time that is kept in reserve.
_HORIZON, _MARGIN = 16.0, 0.05
# Per round of a request: how fast counts fade; and what is believed at first.
_DISCOUNT, _PRIOR = 0.99, PriorSpec()


class Slo(Goodput):
    """Goodput's depths where they keep every row's pace; else the depths of the most goodput among those that do:

    maximise (B + sum of gains) / T  subject to  T / (1 + gains of row r) <= allowed_r  for every row r.

    allowed_r is the target, more for a row that is ahead of it and less for one that is behind, so that measured pace
    (tokens emitted over seconds since it began) meets the target within `_HORIZON` tokens. Where no depths keep every
    pace, the worst row's violation is made least. All rows of a batch share T: deep drafts of a row that hurries cost
    the others time, and drafts of rows with time to spare may be what makes it late. The least drafting that
    keeps all paces is found first (see `keep_pace`), then goodput's own depths are let in as far as they fit.

    Regimes: interactive streams beside batch work; a target between what plain decoding takes and the best that
    drafting can do. A target that is never at risk costs nothing: it is goodput then. Does not admit or refuse
    requests. Source: the aim of SLO-customised speculative serving (AdaServe, Li et al. 2025), which picks tokens of
    draft trees for each request's target before it spends what is left on throughput.
    """

    def __init__(self, spec: SloSpec, parts: Parts) -> None:
        acceptance = AcceptanceSettings(_PRIOR.acceptance, _PRIOR.weight, row=_DISCOUNT)
        settings = GoodputSettings(parts.tiers, parts.drafters[:1], acceptance, parts.stops, parts.max_width)
        super().__init__(parts.cost, parts.max_rows, parts.tasks, settings)
        self._target = spec.time_per_output_token_ms / 1e3 * (1.0 - _MARGIN)
        self._seconds: FloatArray = np.zeros(parts.max_rows)
        self._tokens: FloatArray = np.zeros(parts.max_rows)
        # Depths that keep the pace, by row; -1: goodput's own will do.
        self._kept: IntArray = np.full(parts.max_rows, -1, dtype=np.int64)
        self._rounds_left = 0

    def start(self, row: int) -> None:
        super().start(row)
        self._seconds[row] = self._tokens[row] = 0.0
        self._kept[row] = -1

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Algorithm.choose`. A review serves for a few rounds; rows that join meanwhile follow goodput."""
        choice = super().choose(signals)
        if self._rounds_left <= 0:
            self._rounds_left = _REVIEW_ROUNDS
            self._review(signals, choice)
        self._rounds_left -= 1
        own = self._kept[signals.rows]
        # A try has been paid for, and is settled by what its round brings.
        tried = choice.reasons == int(Reason.EXPLORE)
        as_chosen = (own < 0) | tried
        if as_chosen.all():
            return choice
        depths = np.minimum(np.where(as_chosen, choice.depths, own), signals.limits)
        reasons = np.where(tried, choice.reasons, np.where(depths > 0, int(Reason.POLICY), int(Reason.OFF)))
        who = np.where(as_chosen, choice.drafter, next(iter(self._models)))
        return Choice(depths, reasons, choice.value, who)

    def learn(self, record: RoundRecord) -> None:
        super().learn(record)
        mine = self._pending.of_rows_now(record)
        self._seconds[record.rows[mine]] += record.total_seconds
        self._tokens[record.rows[mine]] += record.emitted[mine]

    def _review(self, signals: BatchSignals, choice: Choice) -> None:
        """Where goodput's own depths would make a row late, give these rows better ones."""
        self._kept[:] = -1
        terms = self.terms(signals)
        if terms is None:
            return
        chosen = np.minimum(choice.depths, signals.limits)
        allowed = self._seconds_allowed(signals.rows)
        if worst_pace(terms, chosen[None], allowed)[0] < 1.0:
            least, worst = keep_pace(terms, allowed)
            self._kept[signals.rows] = _with_spare(terms, least, chosen, allowed) if worst >= 1.0 else least

    def _seconds_allowed(self, rows: IntArray) -> FloatArray:
        """Seconds per token from here on [B], so that the whole meets the target at the horizon."""
        target = self._target
        ahead = target * self._tokens[rows] - self._seconds[rows]
        return np.clip(target + ahead / _HORIZON, _LEAST * target, _MOST * target)


def keep_pace(terms: RoundTerms, allowed: FloatArray) -> tuple[IntArray, float]:
    """The least drafting [B] that lets the slowest row be as fast as it must be, or as it can be; and its pace then.

    Rows are raised a depth at a time, always the one that is worst off: the order of emitted tokens x allowed seconds.
    The depths after each step are the cheapest with which no row is worse off than the next to be raised, so the
    first that keep the pace are the least that do (each row's demand grows with T, and T with all depths: the least
    fixed point, as in power control, Yates 1995), and the best of them all is the least violation.
    """
    depths = np.flatnonzero(terms.fits.any(axis=0))  # 0 is always among them
    open_ = terms.fits[:, depths[1:]]
    levels = (1.0 + terms.models[0].gains[:, depths[:-1]]) * allowed[:, None]
    order = np.argsort(np.where(open_, levels, np.inf), axis=None, kind="stable")[: np.count_nonzero(open_)]
    raised = order[:, None] // max(1, len(depths) - 1) == np.arange(len(open_))
    steps = np.concatenate((np.zeros((1, len(open_)), np.int64), np.cumsum(raised, axis=0)))
    plans: IntArray = depths[steps]
    paces = worst_pace(terms, plans, allowed)
    kept = paces >= 1.0
    best = int(np.argmax(kept if kept.any() else paces))
    return plans[best], float(paces[best])


def worst_pace(terms: RoundTerms, depths: IntArray, allowed: FloatArray) -> FloatArray:
    """The slowest row's pace under each of N batches of depths [N, B], as a share of what it must be.

    A row emits 1 + its gains in a round of T seconds, all rows the same T, and is to need at most `allowed` [B] seconds
    per token: at least 1 means that every row does.
    """
    paces: FloatArray = (emitted_of(terms, depths) * allowed).min(axis=1) / seconds_of(terms, depths)
    return paces


def emitted_of(terms: RoundTerms, depths: IntArray) -> FloatArray:
    """Tokens that rows are expected to emit under each of N batches of depths [N, B]."""
    emitted: FloatArray = 1.0 + terms.models[0].gains[np.arange(depths.shape[1]), depths]
    return emitted


def seconds_of(terms: RoundTerms, depths: IntArray) -> FloatArray:
    """T of N batches of depths [N, B], in seconds, all drafts by the first model."""
    model = terms.models[0]
    drafted, tokens = model.sizes[depths].sum(axis=1), model.nodes[depths].sum(axis=1)
    # A step is paid while any row is still drafting; on a device, in any case.
    going_on = np.cumsum(np.concatenate(([0.0], 1.0 - (1.0 - model.drafted) ** depths.shape[1])))
    steps = model.steps if model.together else going_on
    drafting = terms.beside + model.start + model.per_step * steps[depths.max(axis=1)] + model.per_row * drafted
    drafting += np.where(depths > 0, model.entry, 0.0).sum(axis=1)
    drafting += np.interp(tokens, np.arange(len(terms.verify)), terms.verify)
    seconds: FloatArray = terms.plain + np.where(tokens > 0.0, drafting, 0.0)
    return seconds


def _with_spare(terms: RoundTerms, least: IntArray, chosen: IntArray, allowed: FloatArray) -> IntArray:
    """The most goodput between the least depths that keep all paces and goodput's own, cut at each depth."""
    cuts = np.flatnonzero(terms.fits.any(axis=0))
    plans = np.maximum(least, np.minimum(chosen, cuts[:, None]))
    others = terms.size - len(least)
    goodput = (others + emitted_of(terms, plans).sum(axis=1)) / seconds_of(terms, plans)
    fits = worst_pace(terms, plans, allowed) >= 1.0
    best: IntArray = plans[int(np.argmax(np.where(fits, goodput, -1.0)))] if fits.any() else least
    return best


class SloSpec(AlgorithmSpec):
    """`choose:` of a time per output token for every request."""

    takes_tiers: ClassVar[bool] = True
    has_value: ClassVar[bool] = True
    default_stop: ClassVar[str] = "marginal-goodput"
    guarded: ClassVar[bool] = False  # it may give up throughput for the pace of a request

    algorithm: Literal["slo"]
    time_per_output_token_ms: float = Field(gt=0.0, le=60_000.0, description="Promised to every request, on average.")

    def build(self, parts: Parts) -> Slo:
        return Slo(self, parts)
