"""What offers of a lookup come to, looked up: they are of few kinds, and what each is worth changes seldom.

Pure arithmetic on expected tokens and prices; knows neither rows nor rounds.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray


class _ByKind:
    """What is known of K kinds of offers of 0 ... D tokens, [(D + 1) * K]; depths before kinds: numpy goes along the

    last axis fastest, and there are more kinds than depths.
    """

    def __init__(self, gains: FloatArray) -> None:
        """`gains` [K, D]: tokens expected to be kept of 1 ... D drafted."""
        self._kinds, depth = gains.shape
        kept: FloatArray = np.zeros((1 + depth, self._kinds))
        kept[1:] = gains.T
        self.kept: FloatArray = kept.reshape(-1)

    def places(self, kinds: IntArray, tokens: IntArray) -> IntArray:
        """Where to read of offers of these kinds and sizes, all [B]."""
        places: IntArray = tokens * self._kinds + kinds
        return places


class OfferTable(_ByKind):
    """Of K kinds of offers, each of 0 ... D tokens, at each of P prices: how deep to take it, and what that is worth.

    An offer of n tokens is taken to the allowed depth d <= n with the largest (1 + gains_d) / (1 + price x d), where
    that is above 1: its rate, the logarithm of which is its worth. `depths`, `rates` and `worth` are [P, (D + 1) * K],
    to be read at `places`; `kept` [(D + 1) * K] is the expected number of tokens kept of a draft, to be read at the
    places of what is taken.
    """

    def __init__(self, gains: FloatArray, allowed: BoolArray, prices: FloatArray) -> None:
        """`gains` [K, D]: tokens expected to be kept of 1 ... D drafted; `allowed` [D]; `prices` [P] of a token."""
        super().__init__(gains)
        kinds, depth = gains.shape
        shape = len(prices), 1 + depth, kinds
        steps = np.arange(1, depth + 1)[:, None]
        values = np.log1p(gains.T) - np.log1p(prices[:, None, None] * steps)
        values[:, ~allowed] = -np.inf
        worth: FloatArray = np.zeros(shape)
        taken: IntArray = np.zeros(shape, dtype=np.int64)
        for below in range(depth):
            here, before = values[:, below], worth[:, below]
            np.maximum(here, before, out=worth[:, below + 1])
            taken[:, below + 1] = taken[:, below]
            np.copyto(taken[:, below + 1], below + 1, where=here > before)
        self.worth: FloatArray = worth.reshape(len(prices), -1)
        self.rates: FloatArray = np.exp(self.worth)
        self.depths: IntArray = taken.reshape(len(prices), -1)


class NetTable(_ByKind):
    """The same at what tokens cost one round more: how deep to take an offer, and what that nets, in tokens.

    An offer of n tokens is taken to the allowed depth d <= n with the largest gains_d - spent_d, if that is above
    `least`. `depths` and `worth` (0 for an offer that is left) are to be read at `places`, `kept` at those of what is
    taken.
    """

    def __init__(self, gains: FloatArray, allowed: BoolArray, spent: FloatArray, least: float) -> None:
        """`gains` [K, D]: tokens expected to be kept of 1 ... D drafted; `allowed` [D]; `spent` [D] in tokens."""
        super().__init__(gains)
        kinds, depth = gains.shape
        net = np.full((1 + depth, kinds), least)
        np.subtract(gains.T, spent[:, None], out=net[1:], where=allowed[:, None])
        most = np.maximum.accumulate(net, axis=0)
        better = net[1:] > most[:-1]
        depths: IntArray = np.zeros(net.shape, dtype=np.int64)
        np.maximum.accumulate(better * np.arange(1, 1 + depth)[:, None], axis=0, out=depths[1:])
        self.depths: IntArray = depths.reshape(-1)
        self.worth: FloatArray = np.where(depths > 0, most, 0.0).reshape(-1)
        self.gains = gains
