"""The speed-up over plain decoding: predicted seconds without drafts over predicted seconds of the rounds that ran.

Both come from the cost model, so a machine that becomes faster or slower cancels, and a stall of the machine changes
neither. Rounds without drafts count the same on both sides: where nothing was drafted the speed-up is exactly 1.
Reading prompts is in neither, since speculation does not change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.cost_model import CostModel
from adaptspec.rounds import RoundRecord, RoundWork

# Rounds are not exactly sums of their features, and a cost model cannot know by how much: relative error of each part.
_MODEL_ERROR = 0.05
# The cost model assumes that the seconds of a round are off by 30 %, so that stalls teach it little; they are usually
# off by a half of that or less.
_NOISE_SHARE = 0.5
_MAX_ERROR = 0.25  # of the value: an estimate that is less certain is not shown


@dataclass(frozen=True)
class Estimate:
    """A ratio, and an interval that contains it in about nine of ten cases.

    Of 120 simulated runs whose cost model began with true prices, the interval covered 99 %; of 120 runs that began
    with prices wrong by 28 % (one standard deviation), 83 %.
    """

    value: float
    low: float
    high: float


def round_features(costs: CostModel, records: Sequence[RoundRecord]) -> tuple[FloatArray, FloatArray]:
    """Cost features of rounds as they ran, and of plain rounds that emit the same tokens, both [n, F].

    A request that sat in a round spent all of its time there. For the request alone the plain rounds are therefore
    those of its emitted tokens: multiply the round's by its tokens and divide by the mean of the rows.
    """
    works = [record.work for record in records]
    ran = costs.features(works)
    plain = ran.copy()
    drafting = [index for index, work in enumerate(works) if work.drafts]
    if drafting:
        rows = [works[index] for index in drafting]
        emitted = np.array([records[index].emitted.mean() for index in drafting])
        plain_works = [RoundWork(work.rows, work.rows, work.context_tokens) for work in rows]
        plain[drafting] = emitted[:, None] * costs.features(plain_works)
    return ran, plain


def speedup(costs: CostModel, ran: FloatArray, plain: FloatArray) -> Estimate | None:
    """The speed-up of sums of `round_features` [F]; None: nothing ran, or it is not known closely enough.

    Any thread may call it. While the engine learns, the interval may rest on half of an update.
    """
    if not ran.any():
        return None
    ratio = costs.ratio(plain, ran)
    error = 2.0 * math.hypot(_NOISE_SHARE * ratio.stderr, _MODEL_ERROR * ratio.sensitivity)
    if not error <= _MAX_ERROR * ratio.value:
        return None
    return Estimate(ratio.value, ratio.value - error, ratio.value + error)
