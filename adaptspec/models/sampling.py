"""Drawing tokens for a batch of rows: scores from logits, and a choice from scores.

Sampling is argmax(score + Gumbel noise), the noise a pure function of (request seed, position, token). The
target under any depth, plain decoding, and a draft that guesses with the target's noise thus make
the same choice from the same scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from adaptspec.errors import RequestError
from adaptspec.models.noise import Stream, gumbel, gumbel_at, position_keys, seed_keys, uniform
from adaptspec.models.processors import Paths, Positions, Rules, SamplingRow, build
from adaptspec.progress import report_progress
from adaptspec.request import SamplingParams
from adaptspec.types import BoolArray, FloatArray, IntArray

Floats = npt.NDArray[np.float32]
# Positions that a CPU scores at a time: with 50,000 tokens a part takes some 50 ms and 25 MB per intermediate result.
PART = 64


@dataclass(frozen=True)
class Certainty:
    """How sure a model was: probability of the token it chose and entropy in nats, both [N]."""

    confidence: FloatArray
    entropy: FloatArray


class SamplingBatch:
    """How a batch draws its tokens: built when the batch's members change, used every round.

    Flattened arguments: N positions, each belongs to batch row index[n]; offsets[n] is how many
    drafted tokens of this round come before it, so its position is len(row.tokens) + offsets[n]. The
    rows' token lists are read at every call and may only have grown since the last.

    Logits wider than `vocab_size` (a padded head) are cut, narrower ones (a draft with fewer tokens)
    are filled up with -inf, so that scores are always [N, vocab_size].
    """

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> None:
        """`sampled` [B] says which rows draw, and do not just take the likeliest token; `plain_greedy`, that none does
        and nothing changes its logits. `constraints` are the rows' grammars at work, `constrained`: there is one.
        """
        self.rows = tuple(rows)
        self.vocab_size = vocab_size
        self.device = device
        self.rules = [Rules(row, vocab_size) for row in rows]
        self._processors = build(self.rules, vocab_size, device)
        self.sampled: BoolArray = np.array([not row.params.greedy for row in rows], dtype=np.bool_)
        self._seeds = seed_keys(np.array([row.seed for row in rows], dtype=np.int64))
        self._few_left = all(one.row.params.greedy or one.truncates for one in self.rules)
        self.plain_greedy = not self._processors and not bool(self.sampled.any())
        self.constraints = [row.constraint for row in rows]
        self.constrained = any(constraint is not None for constraint in self.constraints)

    @property
    def temperatures(self) -> FloatArray:
        """[B] the rows' temperatures, 0 for those that take the likeliest token."""
        return np.array([0.0 if row.params.greedy else row.params.temperature for row in self.rows])

    def keys(self, steps: int) -> IntArray:
        """[B, steps] of the noise at each row's next positions."""
        index, offsets = np.divmod(np.arange(len(self.rows) * steps), steps)
        return self._keys(index, offsets, Stream.CHOICE).reshape(-1, steps)

    def take(self, members: IntArray) -> SamplingBatch:
        """A batch of some of the rows, by position. Built anew: for rounds that mix verification methods."""
        return SamplingBatch([self.rows[i] for i in members], self.vocab_size, self.device)

    def process(self, logits: torch.Tensor, index: IntArray, offsets: IntArray, paths: Paths) -> torch.Tensor:
        """Scores [N, vocab_size] in float32: logits after every processor; softmax of it is the distribution.

        `paths` are this round's drafted tokens before each position: penalties and grammars see them. `logits` is not
        written on, but may itself be returned when nothing applies.
        """
        scores = self._fit(logits)
        if not self._processors:
            return scores
        at = Positions(index, offsets, paths)
        parts = self._parts(len(scores))
        if len(parts) < 2:
            return self._processed(scores, at)
        return torch.cat([self._processed(scores[part], at.take(part)) for part in parts])

    def _processed(self, scores: torch.Tensor, at: Positions) -> torch.Tensor:
        for processor in self._processors:
            report_progress()
            scores = processor(scores, at)
        return scores

    def choose(self, scores: torch.Tensor, index: IntArray, offsets: IntArray) -> torch.Tensor:
        """Token ids [N]: the one choice a position ever gets, argmax(score + noise); no noise for greedy rows."""
        return argmax(self.perturbed(scores, index, offsets))

    def sample(self, scores: torch.Tensor, index: IntArray, offsets: IntArray, stream: Stream) -> torch.Tensor:
        """Token ids [N] drawn independently of other streams and their rounds; greedy rows: the argmax."""
        return argmax(self.perturbed(scores, index, offsets, stream))

    def perturbed(
        self, scores: torch.Tensor, index: IntArray, offsets: IntArray, stream: Stream = Stream.CHOICE
    ) -> torch.Tensor:
        """Scores and noise [N, vocab_size], whose largest is the token drawn; those of greedy rows have no noise.

        `scores` is not written on, but is itself returned where nobody draws. The k largest are k draws without
        replacement (Gumbel-top-k): the likeliest to be what whoever has the same noise draws from similar scores.
        """
        if self.plain_greedy or not self.sampled[index].any():
            return scores
        parts = self._parts(len(scores))
        if len(parts) < 2:
            return self._with_noise(scores, index, offsets, stream)
        noisy = [self._with_noise(scores[part], index[part], offsets[part], stream) for part in parts]
        return torch.cat(noisy)

    def _with_noise(self, scores: torch.Tensor, index: IntArray, offsets: IntArray, stream: Stream) -> torch.Tensor:
        report_progress()
        noisy = np.flatnonzero(self.sampled[index])
        keys = self._keys(index[noisy], offsets[noisy], stream)
        if self._few_left and scores.is_cpu:
            return _add_sparsely(scores, noisy, keys)
        noise = gumbel(keys, scores.shape[1], self.device)
        if len(noisy) == len(scores):
            return noise.add_(scores)
        return scores.index_add(0, torch.from_numpy(noisy).to(self.device), noise)

    def uniform(self, index: IntArray, offsets: IntArray, stream: Stream) -> FloatArray:
        """Numbers [N] in [0, 1), independent between positions, streams and rounds."""
        return uniform(self._keys(index, offsets, stream))

    def probabilities(self, scores: torch.Tensor, index: IntArray) -> torch.Tensor:
        """What each position is drawn from, [N, vocab_size]: softmax of scores; for greedy rows 1 at the argmax."""
        if not self.sampled.any():
            return _one_hot(scores)
        result = scores.softmax(1)
        greedy = np.flatnonzero(~self.sampled[index])
        if len(greedy):
            where = torch.from_numpy(greedy).to(self.device)
            result.index_copy_(0, where, _one_hot(scores.index_select(0, where)))
        return result

    def _parts(self, count: int) -> list[slice]:
        """The positions 0 to `count` in parts. Positions do not depend on each other."""
        size = PART if self.device.type == "cpu" else max(count, 1)
        return [slice(first, first + size) for first in range(0, count, size)]

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.to(self.device)  # a draft model may be on another one
        missing = self.vocab_size - logits.shape[1]
        if missing == 0:
            return logits
        return logits[:, : self.vocab_size] if missing < 0 else functional.pad(logits, (0, missing), value=-torch.inf)

    def _keys(self, index: IntArray, offsets: IntArray, stream: Stream) -> IntArray:
        lengths = np.array([len(row.tokens) for row in self.rows], dtype=np.int64)[index]
        # Only the final choice of a position is unique; everything else may be drawn again in a later round.
        rounds = 0 if stream is Stream.CHOICE else lengths
        return position_keys(self._seeds[index], lengths + offsets, stream, rounds)


def certainty(scores: torch.Tensor, chosen: torch.Tensor) -> Certainty:
    """How sure scores [N, V] were of the `chosen` [N] tokens, as float64 arrays.

    Of tokens drawn with noise that others share, that noise is known too: see `leading` of the perturbed scores.
    """
    if scores.is_cpu:
        return _certainty_on_cpu(scores.numpy(), chosen.numpy())
    shares, logs = scores.softmax(1), scores.log_softmax(1)
    confidence = shares.gather(1, chosen.unsqueeze(1)).squeeze(1)
    # A bound where the share is 0 in float32 anyway, so that removed tokens (-inf) add 0 and not NaN.
    entropy = -(shares * logs.clamp_(min=-200.0)).sum(1)
    both = torch.stack((confidence, entropy)).double().cpu().numpy()
    return Certainty(both[0], both[1])


def entropies(scores: torch.Tensor) -> FloatArray:
    """Entropy in nats of the distributions whose scores [N, V] these are, as float64."""
    if scores.is_cpu:
        return _entropy_on_cpu(*_weighed(scores.numpy()))
    return certainty(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device)).entropy


def leading(scores: torch.Tensor, width: int) -> tuple[IntArray, FloatArray]:
    """The tokens of the `width` largest scores of each position, largest first, and their softmax; both [N, width].

    Fewer where the vocabulary is smaller. On a CPU of equal scores the lower token comes first.
    """
    width = min(width, scores.shape[1])
    if not scores.is_cpu:
        best = torch.topk(scores, width, dim=1)
        likely = (best.values - scores.logsumexp(1, keepdim=True)).exp_()
        return best.indices.cpu().numpy(), likely.double().cpu().numpy()
    array, rows = scores.numpy(), np.arange(len(scores))
    first = array.argmax(1)
    weights = np.exp(array - array[rows, first][:, None])
    totals = weights.sum(axis=1).astype(np.float64)[:, None]
    if width == 1:
        return first[:, None], 1.0 / totals
    tokens, shares = np.empty((len(array), width), dtype=np.int64), np.ones((len(array), width))
    tokens[:, 0] = first
    # Where few are wanted an argmax for each takes less than a partition: 1 against 14 us on [1, 4096].
    for rank in range(1, width):
        weights[rows, tokens[:, rank - 1]] = -1.0
        tokens[:, rank] = weights.argmax(1)
        shares[:, rank] = weights[rows, tokens[:, rank]]
    return tokens, shares / totals


def tempered(scores: torch.Tensor, temperatures: FloatArray) -> torch.Tensor:
    """Scores [N, V] of the distributions sharpened (below 1) or flattened (above 1) by a temperature each, [N]."""
    if (temperatures == 1.0).all():
        return scores
    return scores / torch.from_numpy(temperatures).to(scores).unsqueeze(1)


def _certainty_on_cpu(scores: Floats, chosen: IntArray) -> Certainty:
    """The same in a third of the time: every draft step pays it, and on a few rows numpy has less overhead."""
    below, weights, totals = _weighed(scores)
    confidence = weights[np.arange(len(chosen)), chosen] / totals
    return Certainty(confidence, _entropy_on_cpu(below, weights, totals))


def _weighed(scores: Floats) -> tuple[Floats, Floats, FloatArray]:
    """How far scores [N, V] are below the largest of their position, the exponentials [N, V], and these summed [N]."""
    below = scores - scores.max(axis=1, keepdims=True)
    np.maximum(below, -200.0, out=below)
    weights = np.exp(below)
    return below, weights, weights.sum(axis=1).astype(np.float64)


def _entropy_on_cpu(below: Floats, weights: Floats, totals: FloatArray) -> FloatArray:
    return np.asarray(np.log(totals) - np.vecdot(weights, below) / totals)


def top_certainty(scores: Floats, top: int) -> tuple[float, float]:
    """`certainty` of one row [V] in its most likely token: confidence, and entropy in nats."""
    below = scores - scores[top]
    if below[-1] == -np.inf:  # tokens that this model does not have, at the end
        np.maximum(below, -200.0, out=below)
    weights = np.exp(below)
    total = float(weights.sum())
    return 1.0 / total, math.log(total) - float(weights @ below) / total


def top_candidates(scores: Floats) -> tuple[Iterator[tuple[int, float]], float]:
    """`likeliest` of one row [V], and the entropy in nats."""
    top = int(scores.argmax())
    below = scores - scores[top]
    if below[-1] == -np.inf:  # as above
        np.maximum(below, -200.0, out=below)
    weights = np.exp(below)
    total = float(weights.sum())
    return _by_weight(top, weights, total), math.log(total) - float(weights @ below) / total


def likeliest(scores: Floats) -> Iterator[tuple[int, float]]:
    """`leading` of one row [V], token by token as far as one looks."""
    top = int(scores.argmax())
    weights = np.exp(scores - scores[top])
    return _by_weight(top, weights, float(weights.sum()))


def _by_weight(top: int, weights: Floats, total: float) -> Iterator[tuple[int, float]]:
    for _ in range(len(weights)):
        yield top, float(weights[top]) / total
        weights[top] = -1.0
        top = int(weights.argmax())


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the vocabulary does not have. Raises RequestError; call it when a request arrives."""
    check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)
    check_tokens("logit_bias", params.logit_bias, vocab_size)


def check_tokens(name: str, tokens: Collection[int], vocab_size: int) -> None:
    """The same for the token ids of one field. None is told: one may have thousands of digits."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        raise RequestError(f"{name} has a token id that does not exist; ids go from 0 to {vocab_size - 1}", name)


def _add_sparsely(scores: torch.Tensor, noisy: IntArray, keys: IntArray) -> torch.Tensor:
    """Scores plus noise at the tokens left of the `noisy` positions: after top-k and the like a few of thousands."""
    array = scores.numpy()
    row, token = np.divmod(np.flatnonzero(array[noisy] > -np.inf), array.shape[1])  # nonzero takes five times as long
    result = array.copy()
    result[noisy[row], token] += gumbel_at(keys[row], token, array.shape[1]).numpy()
    return torch.from_numpy(result)


def argmax(scores: torch.Tensor) -> torch.Tensor:
    """The token [N] of the largest of scores [N, V], the first of equals."""
    # On a CPU only numpy's argmax is vectorised: 5 against 60 us on [8, 4096]. Both take the first of equals.
    return torch.from_numpy(scores.numpy().argmax(1)) if scores.is_cpu else scores.argmax(1)


def _one_hot(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores).scatter_(1, argmax(scores).unsqueeze(1), 1.0)
