"""The cost model: seconds of a round = pace x sum(feature x coefficient), learned from timed rounds.

A round's features are counts: one target pass, its rows, its packed tokens by ranges, cached tokens; per drafter the
passes, their rows by ranges, tokens read to catch up; one for the round itself. All coefficients are positive seconds,
so a round never gets cheaper with more. The logarithms of the coefficients are the state of one extended Kalman filter
whose observations are relative: a stall is clipped at two standard deviations. `pace` multiplies everything and drifts
faster, so a change of the machine's clock moves no relative price.

A profile sets the mean; its weight is less than that of one round. Coefficients of neighbouring ranges are correlated,
so a round of one size also corrects its neighbours.

Source: AdaptSpec design; the filter is the textbook one (e.g. Simon 2006, "Optimal State Estimation", chapter 13).
"""

from __future__ import annotations

import bisect
import logging
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.cost_profile import CostProfile
from adaptspec.drafters import DRAFTERS, Kind, kind_of
from adaptspec.rounds import DraftWork, RoundWork, Timing

_log = logging.getLogger(__name__)

# Ends of the ranges of packed tokens (and of rows of a draft pass) within which each more costs the same.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_STARTS: FloatArray = np.array(_KNOTS[:-1], dtype=np.float64)
_WIDTHS: FloatArray = np.diff(np.array(_KNOTS, dtype=np.float64))
_NUM_RANGES = len(_WIDTHS)
_MAX_SHARES: FloatArray = np.append(np.ones(_NUM_RANGES - 1), np.inf)  # the last range has no end

# Standard deviations are of logarithms, so they are relative errors.
_PRIOR_SD = 0.5  # a coefficient that a profile measured: a profile weighs less than one round
_INCREMENT_SD = 1.0  # an increment: the difference of two measured times is less certain than either
_UNMEASURED_SD = 1.5  # a coefficient that no profile measures
_NOISE_SD = 0.3  # the seconds of one round
_CLIP = 2.0  # an observation counts up to so many standard deviations, or stalls would move settled prices

# Variance that a round adds, as a share of the variance of its seconds.
_DRIFT = 1 / 900  # about the last thirty rounds count
_PACE_DRIFT = 1 / 60  # about the last eight rounds count: a clock changes at once, relative prices seldom do
_RAGGED_DRIFT = 1 / 16  # ragged passes may be tried once in 64 rounds only
_PREFILL_DRIFT = 1 / 4  # about the last three rounds count: a prompt token costs more the more tokens precede it

_CORRELATION_RANGES = 3.0  # the correlation of two increments falls to 1 / e over so many ranges
_BATCH = 16  # rounds that are learned together: one update of the filter takes as long as pricing a round
_ROUNDS_PER_STEP = 8  # up to that, the batch grows by one in so many rounds, since early rounds say most

# A fit to a profile is closer than learning: medians of several passes have no stalls.
_PROFILE_SD = 0.05
_PROFILE_VARIANCE = 4.0
_PROFILE_CLIP = 4.0
_SWEEPS = 10  # repetitions, since each step of the filter is linear
_FIT_SD = 0.1  # the seconds of one round before service: a machine that serves nothing else has few stalls
_FIT_SWEEPS = 3

# Contradictions.
_RESIDUALS = 8  # of a kind of round; their median is compared
_CONTRADICTION = math.log(1.3)  # a smaller difference is learned without a reset
_UNCERTAIN_ROUNDS = 1024  # until the next reset, and until a kind that never ran again is forgotten

# First guesses of what no profile measures.
_MIN_SECONDS = 1e-6  # the least that an unmeasured part takes; coefficients are positive
_MAX_SECONDS = 1e6  # a round that takes longer, or less than the least, is an error of the clock
_MODEL_FREE_SECONDS = 1e-5  # a row of a model-free drafter
_RAGGED_SHARE = 0.1  # ragged rows, as a share of a pass: a CPU took so much longer
_PREFILL_SHARE = 0.1  # a prompt's token, as a share of a verified token: prompts are read in large pieces
_DRAFT_NODES = 4  # nodes per draft pass up to which a single request is priced, since its draft may branch

_MODEL_FREE = tuple(name for name in DRAFTERS if kind_of(name) is Kind.MODEL_FREE)
# Positions of coefficients. The target's: base, each further row, each further token by ranges.
_PACE, _BASE = 0, 1
_ROW, _INCREMENTS = _BASE + 1, _BASE + 2
_CONTEXT = _INCREMENTS + _NUM_RANGES
_PREFILL, _RAGGED = _CONTEXT + 1, _CONTEXT + 2  # a prompt's token; rows that verify different numbers of tokens
# The round's own, without drafts and in addition with them: for one row, and for each further row.
_OVERHEAD, _DRAFT_OVERHEAD = _RAGGED + 1, _RAGGED + 3
_FREE = _DRAFT_OVERHEAD + 2  # of a row, by model-free drafter; the last is of unknown ones
_DRAFTS = _FREE + len(_MODEL_FREE) + 1
# From a model's first position: start of a round, a token of catching up, a pass, each further row of it by ranges.
_START, _CATCH_UP, _PASS, _PASS_ROWS = 0, 1, 2, 3
_DRAFT_SIZE = _PASS_ROWS + _NUM_RANGES


def batch_bucket(rows: int) -> int:
    """The class of a batch size: 0 for 1 row, then 2, 3-4, 5-8, 9-16 ..."""
    return max(0, rows - 1).bit_length()


class DraftPrices(NamedTuple):
    """Seconds of drafting with a drafter."""

    start: float  # per round; negative where plain rounds include the first pass
    step: float  # per pass
    step_row: float  # per active row of a pass
    row: float  # per row of the round, for model-free drafters
    catch_up_token: float  # per token that the drafter has missed


class Ratio(NamedTuple):
    """Seconds of some rounds over those of others.

    `stderr` is the standard error from the coefficients' covariance. `sensitivity` is by how much the ratio may change,
    relative to a coefficient's change: the sum of its derivatives by the logarithms of all coefficients, without signs.
    """

    value: float
    stderr: float
    sensitivity: float


class CostModel:
    """Prices of rounds, in seconds; `RoundWork` says what a round consists of.

    `uncertain`: rounds have lately contradicted the model. `resets` counts how often they did so and the
    model then forgot how certain it was.
    """

    def __init__(self, profile: CostProfile) -> None:
        """Raises ConfigError if the profile is not a full, positive table."""
        profile.check()
        self.profile = profile
        self.resets = 0
        self.uncertain = False  # kept as an attribute: other threads read it
        self._models = {
            name: _DRAFTS + _DRAFT_SIZE * index
            for index, name in enumerate(name for name, cost in profile.drafters.items() if cost.step_seconds)
        }
        self._whole = frozenset(name for name in self._models if profile.drafters[name].together)
        self._rounds = 0
        self._waiting: list[tuple[RoundWork, Timing]] = []
        self._residuals: dict[tuple[bool, int], list[float]] = {}  # logarithms, by kind of round
        self._contradicted: dict[tuple[bool, int], int] = {}  # kinds of rounds, and since which round
        self._quiet_until = 0
        guess = self._first_guess(profile)
        self._log = np.log(guess)
        self._fit(profile.plausible())
        self._tabulate()
        self._prior: FloatArray = self._prior_covariance(np.log(guess) - self._log)
        self._covariance: FloatArray = self._prior.copy()
        self._drift: FloatArray = np.full(len(self._log), _DRIFT)
        self._drift[[_PACE, _RAGGED]] = _PACE_DRIFT, _RAGGED_DRIFT

    def learned_profile(self, rows: Sequence[int], tokens: Sequence[int]) -> CostProfile:
        """The profile that would lead to the present prices, for passes of `rows` rows and `tokens` tokens per row."""
        drafters = dict(self.profile.drafters)
        plain = self.overhead_seconds(1, drafting=False)
        for name, at in self._models.items():
            cost = drafters[name]
            prices = [self.draft_prices(name, count) for count in cost.rows]
            first_pass = self._pace * float(self._values[at + _START])
            drafters[name] = replace(
                cost,
                step_seconds=tuple(
                    price.step + price.step_row * count for price, count in zip(prices, cost.rows, strict=True)
                ),
                catch_up_per_token=prices[0].catch_up_token,
                start_seconds=first_pass + self.overhead_seconds(1, drafting=True) - plain,
            )
        return CostProfile(
            tuple(rows),
            tuple(tokens),
            tuple(tuple(self.verify_seconds(count, count * width) for width in tokens) for count in rows),
            drafters,
            per_cached_token=self.verify_seconds(1, 1, 1.0) - self.verify_seconds(1, 1),
            overhead=plain,
        )

    # --- prices -------------------------------------------------------------------------------------------------

    def verify_seconds(self, rows: int, tokens: float, context: float = 0.0) -> float:
        """Seconds of a target pass over `tokens` packed tokens of `rows` rows.

        `context`: cached tokens that all rows together attend to.
        """
        price = self._values.item
        fixed = price(_BASE) + price(_ROW) * (rows - 1) + price(_CONTEXT) * context
        return self._pace * (fixed + _interpolate_one(self._token_curve, tokens))

    def verify_curve(self, rows: int, tokens: FloatArray, context: float = 0.0) -> FloatArray:
        """`verify_seconds` of `tokens`, any shape, in the same shape. It never falls."""
        fixed = self._values[_BASE] + self._values[_ROW] * (rows - 1) + self._values[_CONTEXT] * context
        return np.asarray(self._pace * (fixed + _interpolate(self._token_curve, tokens)))

    def runs_whole_drafts(self, drafter: str) -> bool:
        """Whether all planned passes of a draft run over all rows, so that stopping early saves none."""
        return drafter in self._whole

    def draft_prices(self, drafter: str, rows: int) -> DraftPrices:
        """Prices in a round of `rows` rows; a pass is a line through its seconds at 1 and at `rows` active rows."""
        at = self._models.get(drafter)
        if at is None:
            return DraftPrices(0.0, 0.0, 0.0, self._pace * float(self._values[self._index_of_model_free(drafter)]), 0.0)
        values, pace = self._values, self._pace
        max_rows = rows if rows > 1 else _DRAFT_NODES
        curve = values[at + _PASS] + _interpolate(self._row_curves[drafter], [1.0, max_rows])
        single, full = curve.tolist()
        if drafter in self._whole:
            step, step_row = (full if rows > 1 else single), 0.0
        else:
            step_row = (full - single) / (max_rows - 1)
            step = single - step_row
        start = float(values[at + _START])
        if self.profile.drafters[drafter].reads_along:  # plain rounds include the first pass
            start -= step + step_row * rows
        return DraftPrices(pace * start, pace * step, pace * step_row, 0.0, pace * float(values[at + _CATCH_UP]))

    def catch_up_seconds(self, drafter: str, tokens: float) -> float:
        """Seconds of reading `tokens` tokens that the drafter has missed; 0 where it runs no model."""
        at = self._models.get(drafter)
        return 0.0 if at is None else self._pace * float(self._values[at + _CATCH_UP]) * tokens

    def overhead_seconds(self, rows: int, *, drafting: bool) -> float:
        """Seconds of a round outside its passes."""
        price = self._values.item
        first, row = price(_OVERHEAD), price(_OVERHEAD + 1)
        if drafting:
            first, row = first + price(_DRAFT_OVERHEAD), row + price(_DRAFT_OVERHEAD + 1)
        return self._pace * (first + row * (rows - 1))

    @property
    def ragged_seconds(self) -> float:
        """Additional seconds of a pass whose rows verify different numbers of tokens."""
        return self._pace * float(self._values[_RAGGED])

    def seconds(self, work: RoundWork) -> float:
        """Seconds of a whole round."""
        price = self._values.item  # numpy's dot product of all features takes ten times as long
        parts = price(_PREFILL) * work.prefill_tokens + price(_RAGGED) * work.ragged
        for draft in work.drafts:
            at = self._models.get(draft.drafter)
            if at is None:
                parts += price(self._index_of_model_free(draft.drafter)) * draft.rows
                continue
            parts += price(at + _START) + price(at + _CATCH_UP) * draft.catch_up_tokens
            curve = self._row_curves[draft.drafter]
            for rows in set(draft.passes):
                parts += draft.passes.count(rows) * (price(at + _PASS) + _interpolate_one(curve, rows))
        verify = self.verify_seconds(work.rows, work.verify_tokens, work.context_tokens)
        return verify + self._pace * parts + self.overhead_seconds(work.rows, drafting=bool(work.drafts))

    def plain_seconds(self, rows: int, context: float = 0.0) -> float:
        """Seconds of a round without drafts, in which each of `rows` rows verifies one token."""
        return self.verify_seconds(rows, rows, context) + self.overhead_seconds(rows, drafting=False)

    def prefill_tokens_within(self, seconds: float) -> int:
        """The number of prompt tokens that are read in `seconds`."""
        return int(seconds / (self._pace * float(self._values[_PREFILL])))

    def draft_round_seconds(
        self, drafter: str, rows: int, steps: FloatArray, drafted: FloatArray, context: float = 0.0
    ) -> FloatArray:
        """Seconds of rounds that run `steps` draft passes and draft `drafted` tokens in all rows together.

        Arrays of one shape, which the result has too. Rounds that draft nothing are plain.
        """
        prices = self.draft_prices(drafter, rows)
        start = self.overhead_seconds(rows, drafting=True) + prices.start
        fixed = np.where(drafted > 0, start, self.overhead_seconds(rows, drafting=False))
        drafting = prices.step * steps + prices.step_row * drafted
        return np.asarray(fixed + drafting + self.verify_curve(rows, rows + drafted, context))

    # --- sums of rounds -----------------------------------------------------------------------------------------

    def features(self, works: Sequence[RoundWork]) -> FloatArray:
        """Counts of whole rounds [n, F], without the prompts that they read; `ratio` prices sums of them."""
        if not works:
            return np.zeros((0, len(self._log)))
        features = self._pass_features(works) + self._draft_features(works) + self._overhead_features(works)
        features[:, _PREFILL] = 0.0
        return features

    def ratio(self, work: FloatArray, base: FloatArray) -> Ratio:
        """Seconds of `work` over those of `base`, both sums of `features` [F]; exactly 1 for equal sums.

        The pace cancels, so a machine that becomes faster or slower changes nothing. Raises ValueError: `base` is
        empty.
        """
        seconds = float(base @ self._values)
        if seconds <= 0.0:
            raise ValueError("the base has no rounds")
        value = float(work @ self._values) / seconds
        # Derivatives by the logarithms of the coefficients, of which the covariance is.
        gradient = (work - value * base) * self._values / seconds
        variance = max(float(gradient @ self._covariance @ gradient), 0.0)
        return Ratio(value, math.sqrt(variance), float(np.abs(gradient).sum()))

    # --- learning -----------------------------------------------------------------------------------------------

    def observe(self, work: RoundWork, timing: Timing) -> None:
        """Learn from a timed round: from its parts, or from the whole where they were not timed (NaN).

        Rounds with timed parts that read a prompt update only the price of a prompt token: the prompt dominates the
        target's pass, and such an engine also has rounds without. Other rounds without decoding rows change nothing.
        """
        if not _MIN_SECONDS <= timing.total <= _MAX_SECONDS:
            return
        if work.prefill_tokens and timing.has_parts:
            self._learn_prompt(work, timing.verify)
            return
        if not work.rows:
            return
        self._rounds += 1
        self._waiting.append((work, timing))
        if len(self._waiting) >= min(_BATCH, 1 + self._rounds // _ROUNDS_PER_STEP):
            self._learn()

    def fit(self, rounds: Sequence[tuple[RoundWork, Timing]]) -> None:
        """Fit the prices to timed rounds before service, closer than `observe` does.

        They are as certain as a profile's, so the first rounds of requests count more.
        """
        self._covariance[_PACE] = 0.0  # these rounds define the pace 1
        self._covariance[:, _PACE] = 0.0
        works = [work for work, _ in rounds]
        parts = self._pass_features(works), self._draft_features(works), self._overhead_features(works)
        for _ in range(_FIT_SWEEPS):
            for index, (work, timing) in enumerate(rounds):
                features = [part[index : index + 1] for part in parts]
                self._update_parts(work, features, np.array([timing]), _FIT_SD**2)
        self._tabulate()
        self._covariance = self._prior.copy()

    def inflate_variance(self) -> None:
        """Reset the variances to those of a profile, so that the next rounds count most. Prices stay."""
        self.resets += 1
        self._residuals.clear()
        self._covariance = self._prior.copy()

    def _learn(self) -> None:
        """Learn from the waiting rounds, similar ones together."""
        waiting, self._waiting = self._waiting, []
        diagonal = np.diagonal(self._covariance)
        room = np.maximum(np.diagonal(self._prior) - diagonal, 0.0)
        drift = self._drift * _NOISE_SD**2 * len(waiting)
        self._covariance[np.diag_indices(len(diagonal))] += np.minimum(drift, room)
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, (work, timing) in enumerate(waiting):
            groups.setdefault(_similarity(work, timing), []).append(index)
        works = [work for work, _ in waiting]
        parts = self._pass_features(works), self._draft_features(works), self._overhead_features(works)
        seconds = np.array([timing for _, timing in waiting])
        for chosen in groups.values():
            passes, drafts, overhead = (features[chosen] for features in parts)
            self._learn_group(works[chosen[0]], passes, drafts, overhead, seconds[chosen])
        self.uncertain = any(self._rounds - since < _UNCERTAIN_ROUNDS for since in self._contradicted.values())
        self._tabulate()

    def _learn_prompt(self, work: RoundWork, seconds: float) -> None:
        """Update the price of a prompt token from a pass of the target that took `seconds`.

        Other prices keep their values: the filter is updated as if they were known.
        """
        others = self._pace * float(self._values[_BASE])
        if work.rows:
            others = self.verify_seconds(work.rows, work.verify_tokens, work.context_tokens)
        prompt = self._pace * float(self._values[_PREFILL]) * work.prefill_tokens
        variance = float(self._covariance[_PREFILL, _PREFILL]) + _PREFILL_DRIFT * _NOISE_SD**2
        limit = _CLIP * math.sqrt(variance + _NOISE_SD**2)
        # At least a tenth of the pass is credited to the prompt, in case the price of the other tokens is wrong.
        innovation = math.log(max(seconds - others, 0.1 * seconds, _MIN_SECONDS) / prompt)
        gain = variance / (variance + _NOISE_SD**2)
        self._log[_PREFILL] += gain * min(max(innovation, -limit), limit)
        self._covariance[_PREFILL] = 0.0
        self._covariance[:, _PREFILL] = 0.0
        self._covariance[_PREFILL, _PREFILL] = (1.0 - gain) * variance
        self._set_values()
        self._tabulate()

    def _learn_group(
        self, work: RoundWork, passes: FloatArray, drafts: FloatArray, overhead: FloatArray, seconds: FloatArray
    ) -> None:
        """Learn from rounds similar to `work`: features of their parts [n, F], `seconds` [n, 3] in `Timing`'s order."""
        features, total, noise = passes + drafts + overhead, seconds[:, 2], _NOISE_SD**2
        residuals = np.log(total / (self._pace * (features @ self._values))).tolist()
        if np.isnan(seconds).any():
            self._update(features, total, noise)
        else:
            self._update_parts(work, (passes, drafts, overhead), seconds, noise)
        if not work.prefill_tokens:
            for residual in residuals:
                self._compare((bool(work.drafts), batch_bucket(work.rows)), residual)

    def _update_parts(self, work: RoundWork, features: Sequence[FloatArray], seconds: FloatArray, noise: float) -> None:
        """One step of the filter for each part of rounds similar to `work`; see `_learn_group`."""
        draft, verify, total = seconds.T
        rest = total - verify - draft * bool(work.drafts)
        for part, taken in zip(features, (verify, draft, np.maximum(rest, _MIN_SECONDS)), strict=True):
            self._update(part, taken, noise)

    def _update(self, features: FloatArray, seconds: FloatArray, noise: float, clip: float = _CLIP) -> None:
        """One step of the filter: similar rounds, whose features are [n, F], took `seconds` [n].

        They are one observation with less noise: the mean of their logarithms, and the mean of its derivatives.
        """
        shares = features * self._values
        predicted = shares.sum(axis=1)
        timed = (seconds > 0.0) & (predicted > 0.0)
        if not timed.all():
            shares, predicted, seconds = shares[timed], predicted[timed], seconds[timed]
        count = len(seconds)
        if not count:
            return
        gradient = (1.0 / (count * predicted)) @ shares
        gradient[_PACE] = 1.0
        spread = self._covariance @ gradient
        variance = float(gradient @ spread)
        limit = clip * math.sqrt(variance + noise)
        innovations = np.log(seconds / predicted) - self._log[_PACE]
        innovation = float(np.minimum(np.maximum(innovations, -limit), limit).sum()) / count
        gain = spread / (variance + noise / count)
        self._covariance -= np.outer(gain, spread)
        self._log = self._log + gain * innovation
        self._set_values()

    def _compare(self, kind: tuple[bool, int], residual: float) -> None:
        """Reset the variances where rounds of a kind keep contradicting their price, at most once in many rounds.

        Medians are compared, since on a busy machine a single stall moves the mean of eight residuals.
        """
        residuals = self._residuals.setdefault(kind, [])
        residuals.append(residual)
        if len(residuals) < _RESIDUALS:
            return
        middle = statistics.median(residuals)
        spread = statistics.median([abs(residual - middle) for residual in residuals])
        residuals.clear()
        # With normal noise a standard deviation is 1.48 x the spread, and the error of a median 1.25 x that of a mean.
        if abs(middle) - 2.0 * 1.25 * 1.48 * spread / math.sqrt(_RESIDUALS) > _CONTRADICTION:
            self._contradicted[kind] = self._rounds
            if self._rounds >= self._quiet_until:  # rounds that fit no coefficients must not reset for ever
                self._quiet_until = self._rounds + _UNCERTAIN_ROUNDS
                self.inflate_variance()
                _log.warning(
                    "costs are unsure: measuring again (rounds of %s take %.2f times what the cost model predicts)",
                    "drafts" if kind[0] else "plain decoding",
                    math.exp(middle),
                )
        else:
            self._contradicted.pop(kind, None)

    # --- features and priors ------------------------------------------------------------------------------------

    def _index_of_model_free(self, drafter: str) -> int:
        return _FREE + (_MODEL_FREE.index(drafter) if drafter in _MODEL_FREE else len(_MODEL_FREE))

    def _pass_features(self, works: Sequence[RoundWork]) -> FloatArray:
        """Counts of the target's passes [n, F]."""
        features: FloatArray = np.zeros((len(works), len(self._log)))
        features[:, _BASE] = 1.0
        features[:, [_ROW, _CONTEXT, _PREFILL, _RAGGED]] = [
            (work.rows - 1, work.context_tokens, work.prefill_tokens, work.ragged) for work in works
        ]
        tokens = np.array([work.verify_tokens for work in works], dtype=np.float64)
        features[:, _INCREMENTS : _INCREMENTS + _NUM_RANGES] = _counts_by_range(tokens)
        return features

    def _draft_features(self, works: Sequence[RoundWork]) -> FloatArray:
        """Counts of the drafters' work [n, F]."""
        features: FloatArray = np.zeros((len(works), len(self._log)))
        for row, work in zip(features, works, strict=True):
            for draft in work.drafts:
                at = self._models.get(draft.drafter)
                if at is None:
                    row[self._index_of_model_free(draft.drafter)] += draft.rows
                    continue
                row[[at + _START, at + _CATCH_UP, at + _PASS]] += 1.0, draft.catch_up_tokens, len(draft.passes)
                active = np.maximum(np.array(draft.passes, dtype=np.float64), 1.0)
                row[at + _PASS_ROWS : at + _DRAFT_SIZE] += _counts_by_range(active).sum(axis=0)
        return features

    def _overhead_features(self, works: Sequence[RoundWork]) -> FloatArray:
        """Counts of the rounds' overhead [n, F]."""
        features: FloatArray = np.zeros((len(works), len(self._log)))
        counts = np.array([(1.0, work.rows - 1) for work in works])
        features[:, _OVERHEAD : _OVERHEAD + 2] = counts
        features[:, _DRAFT_OVERHEAD : _DRAFT_OVERHEAD + 2] = counts * [[bool(work.drafts)] for work in works]
        return features

    def _first_guess(self, profile: CostProfile) -> FloatArray:
        """Coefficients from the corners of a profile, before all of it is fitted."""
        guess: FloatArray = np.full(_DRAFTS + _DRAFT_SIZE * len(self._models), _MIN_SECONDS)
        guess[_PACE] = 1.0
        first, last = profile.verify[0][0], profile.verify[-1][-1]
        tokens = profile.rows[-1] * profile.tokens[-1] - profile.rows[0] * profile.tokens[0]
        guess[_BASE], guess[_ROW] = first, 0.02 * first
        guess[_INCREMENTS : _INCREMENTS + _NUM_RANGES] = _seconds_of_next(first, last, tokens) * _WIDTHS
        guess[_PREFILL], guess[_RAGGED] = _PREFILL_SHARE * _seconds_of_next(first, last, tokens), _RAGGED_SHARE * first
        guess[_CONTEXT] = max(profile.per_cached_token, 1e-6 * first)
        guess[_OVERHEAD] = max(profile.overhead, _MIN_SECONDS)
        guess[_OVERHEAD + 1] = guess[_DRAFT_OVERHEAD] = max(0.1 * profile.overhead, _MIN_SECONDS)
        guess[_DRAFT_OVERHEAD + 1] = max(0.02 * profile.overhead, 0.1 * _MIN_SECONDS)
        guess[_FREE:_DRAFTS] = _MODEL_FREE_SECONDS
        for name, at in self._models.items():
            cost = profile.drafters[name]
            steps = cost.step_seconds
            guess[at + _START] = max(cost.start_seconds, _MIN_SECONDS)
            guess[at + _CATCH_UP] = max(cost.catch_up_per_token, 0.01 * _MIN_SECONDS)
            guess[at + _PASS] = steps[0]
            guess[at + _PASS_ROWS : at + _DRAFT_SIZE] = (
                _seconds_of_next(steps[0], steps[-1], cost.rows[-1] - cost.rows[0]) * _WIDTHS
            )
        return guess

    def _fit(self, profile: CostProfile) -> None:
        """Learn the passes of a profile."""
        self._set_values()
        self._covariance = np.diag(np.full(len(self._log), _PROFILE_VARIANCE))
        self._covariance[_PACE, _PACE] = 0.0  # a profile defines the pace 1
        timed = [
            (self._pass_features([RoundWork(rows, rows * tokens)]), seconds)
            for rows, line in zip(profile.rows, profile.verify, strict=True)
            for tokens, seconds in zip(profile.tokens, line, strict=True)
        ]
        for name, at in self._models.items():
            cost = profile.drafters[name]
            for rows, seconds in zip(cost.rows, cost.step_seconds, strict=True):
                features = self._draft_features([RoundWork(rows, rows, 0.0, (DraftWork(name, rows, (rows,)),))])
                features[0, at + _START] = 0.0
                timed.append((features, seconds))
        for features, seconds in timed * _SWEEPS:
            self._update(features, np.array([seconds]), _PROFILE_SD**2, _PROFILE_CLIP)

    def _prior_covariance(self, lowered: FloatArray) -> FloatArray:
        """The covariance before the first round [n, n]. `lowered` [n]: logarithms by which the fit lowered the guess.

        An increment that is small in the profile may have been mismeasured: its standard deviation is at least what the
        fit lowered it by, or rounds could hardly raise it again.
        """
        spread = np.full(len(self._log), _PRIOR_SD)
        spread[[_PREFILL, _RAGGED, *range(_OVERHEAD, _DRAFTS)]] = _UNMEASURED_SD
        if not self.profile.per_cached_token:
            spread[_CONTEXT] = _UNMEASURED_SD
        covariance: FloatArray = np.diag(spread**2)
        blocks = [(slice(_BASE, _CONTEXT), slice(_INCREMENTS, _CONTEXT))]
        blocks += [
            (slice(at + _PASS, at + _DRAFT_SIZE), slice(at + _PASS_ROWS, at + _DRAFT_SIZE))
            for at in self._models.values()
        ]
        for block, increments in blocks:
            spread[increments] = np.maximum(_INCREMENT_SD, lowered[increments])
            size = block.stop - block.start
            distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
            within = np.exp(-distance / _CORRELATION_RANGES)
            covariance[block, block] = within * np.outer(spread[block], spread[block])
        return covariance

    def _set_values(self) -> None:
        """Update coefficients and pace from the logarithms."""
        values = np.exp(self._log)
        self._pace = float(values[_PACE])
        values[_PACE] = 0.0
        self._values: FloatArray = values

    def _tabulate(self) -> None:
        """Update the curves of tokens and of rows of a draft pass."""
        values = self._values
        self._token_curve = _cumulative(values[_INCREMENTS : _INCREMENTS + _NUM_RANGES])
        self._row_curves = {
            name: _cumulative(values[at + _PASS_ROWS : at + _DRAFT_SIZE]) for name, at in self._models.items()
        }


def _similarity(work: RoundWork, timing: Timing) -> tuple[object, ...]:
    """Equal for rounds that are learned together: sizes that differ little, and parts that were timed alike."""
    drafts = tuple((draft.drafter, len(draft.passes), int(draft.catch_up_tokens).bit_length()) for draft in work.drafts)
    sizes = int(work.context_tokens).bit_length(), work.prefill_tokens.bit_length()
    tokens = bisect.bisect_left(_KNOTS, work.verify_tokens)
    return work.rows, tokens, work.ragged, drafts, sizes, timing.has_parts


def _seconds_of_next(first: float, last: float, count: float) -> float:
    """Mean seconds of each of `count` more tokens or rows, at least a hundredth of the first."""
    return max((last - first) / count if count else 0.0, 0.01 * first)


def _counts_by_range(counts: FloatArray) -> FloatArray:
    """The share of each range that counts [n] pass through [n, K]; of the last one it may exceed 1."""
    return np.asarray(np.clip((counts[:, None] - _STARTS) / _WIDTHS, 0.0, _MAX_SHARES))


def _cumulative(increments: FloatArray) -> FloatArray:
    """Seconds at the knots, and of one more beyond the last [K + 2]."""
    return np.concatenate(([0.0], np.cumsum(increments), increments[-1:] / _WIDTHS[-1]))


def _interpolate_one(curve: FloatArray, count: float) -> float:
    """`_interpolate` of one count, in a tenth of its time."""
    if count >= _KNOTS[-1]:
        return curve.item(_NUM_RANGES) + (count - _KNOTS[-1]) * curve.item(_NUM_RANGES + 1)
    below = max(bisect.bisect_right(_KNOTS, count) - 1, 0)
    first = _KNOTS[below]
    share = max(count - first, 0.0) / (_KNOTS[below + 1] - first)
    return curve.item(below) + share * (curve.item(below + 1) - curve.item(below))


def _interpolate(curve: FloatArray, counts: FloatArray | Sequence[float]) -> FloatArray:
    """Seconds of counts, any shape, on a `_cumulative` curve [K + 2]."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(np.interp(counts, _KNOTS, curve[:-1]) + np.maximum(counts - float(_KNOTS[-1]), 0.0) * curve[-1])
