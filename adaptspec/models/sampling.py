"""Drawing tokens: scores from a model's logits by each request's rules, and one choice from scores.

Sampling is argmax(score + Gumbel noise), the noise a pure function of (request seed, position, token). The
target under any depth, plain decoding, and a draft that guesses with the target's noise thus make
the same choice from the same scores.

On a CPU all of this is numpy, one position at a time: its arrays stay in the cache, and no thread waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.errors import RequestError
from adaptspec.models.grammars import Constraint
from adaptspec.models.noise import Floats, Stream, gumbel, position_keys, seed_keys, token_keys, uniform
from adaptspec.progress import report_progress
from adaptspec.request import SamplingParams

# Below this float32 scores are so far apart that sampling is greedy; smaller divisors would overflow.
MIN_TEMPERATURE = 1e-5
_GROUPS = 1024  # of scores, for top-k
_LOWEST = float(np.finfo(np.float32).min)

Logits = torch.Tensor
"""Logits as a runner returns them: float32 [N, V], on its device."""


@dataclass(frozen=True)
class Certainty:
    """How sure a model was: probability of the token it chose and entropy in nats, both [N]."""

    confidence: FloatArray
    entropy: FloatArray


class Choices(NamedTuple):
    """The tokens chosen at N positions, W candidates each, largest scores first.

    `confidence` of each is its softmax among the scores with noise, `entropy` in nats that of the scores without; it is
    NaN where logits are NaN or infinite.
    """

    tokens: IntArray  # [N, W]
    confidence: FloatArray  # [N, W]
    entropy: FloatArray  # [N]


class PendingChoices(Protocol):
    """Choices that are computed on a device."""

    first: torch.Tensor  # int64 [N] on the device: the first candidates

    def wait(self) -> Choices:
        """Wait for the choices."""


class Chooser(Protocol):
    """Chooses tokens where the logits are, on another device than the CPU."""

    def start(
        self,
        logits: Logits,
        batch: SamplingBatch,
        index: IntArray,
        paths: Sequence[Sequence[int]],
        candidates: int = 1,
    ) -> PendingChoices:
        """Begin to choose `candidates` tokens at each of N positions of `batch` (see `SamplingBatch`)."""


@dataclass(eq=False)
class RowSampling:
    """How one request draws its tokens, for as long as it lives; compared by identity.

    `tokens` is the engine's live list (prompt + output so far), which only grows. Rules apply in the order of
    `transformers` and vLLM: repetition, frequency and presence penalties, logit bias, min_tokens, grammar, temperature,
    then top-k, top-p, min-p. Removed tokens score -inf.

    `penalties` are for repetition, frequency and presence; `cuts` are top-p and the logarithm of min-p, `top_k` 0 is
    all. A greedy row draws nothing, so nothing is cut off. `ruled`: a rule other than temperature changes its logits;
    `keeps_logits`: nothing does.
    """

    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_length: int
    eos_token_ids: tuple[int, ...]
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        params = self.params
        self.penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        self.penalised = self.penalties != (1.0, 0.0, 0.0)
        self.top_k, self.cuts = 0, (1.0, -math.inf)
        if not params.greedy:
            self.top_k = params.top_k
            self.cuts = params.top_p, math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self.truncates = self.top_k > 0 or self.cuts != (1.0, -math.inf)
        self._bias = list(params.logit_bias), np.array(list(params.logit_bias.values()), dtype=np.float32)
        self._ends = {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}
        ends_early = params.min_tokens > 0 and bool(self._ends)
        self.ruled = bool(self.penalised or params.logit_bias or ends_early or self.constraint or self.truncates)
        self.keeps_logits = not self.ruled and params.temperature in (0.0, 1.0)
        # How often the output has each token, and which tokens the prompt has, [V]: for penalties, once they are used.
        self._counts = np.zeros(0, dtype=np.float32)
        self._prompt = np.zeros(0, dtype=np.bool_)
        self._counted = self.prompt_length

    @property
    def takes_likeliest(self) -> bool:
        """Whether its tokens are those with the largest logits."""
        return self.params.greedy and not self.ruled

    @property
    def missing(self) -> int:
        """How many tokens it has yet to get before it may end."""
        return self.prompt_length + self.params.min_tokens - len(self.tokens)

    @property
    def needs_path(self) -> bool:
        """Whether its rules depend on the drafted tokens before a position."""
        return bool(self.penalised or self.constraint or self.missing > 0)

    def allowed(self, drafted: Sequence[int], vocab_size: int) -> BoolArray | None:
        """The tokens [vocab_size] that may follow the text and `drafted` tokens; None if all may."""
        early = self.early(vocab_size) if len(drafted) < self.missing else []
        if self.constraint is None and not early:
            return None
        allowed = np.ones(vocab_size, dtype=np.bool_) if self.constraint is None else self.constraint.mask(drafted)
        allowed[early] = False
        return allowed

    def early(self, vocab_size: int) -> list[int]:
        """Tokens that would end it before it has min_tokens; none if that left nothing to choose from."""
        early = [token for token in self._ends if token < vocab_size]
        return early if len(early) < vocab_size else []

    def scores(self, logits: Floats, drafted: Sequence[int]) -> Floats:
        """Scores [V] of the position behind `drafted`, this round's tokens on the way to it, from its logits [V].

        Their softmax is what is drawn from. The logits are not written on, but returned where nothing changes them.
        """
        if self.keeps_logits:
            return logits
        scores: Floats = logits.copy()
        if self.penalised:
            self._penalise(scores, drafted)
        tokens, values = self._bias
        if tokens:
            scores[tokens] += values
        allowed = self.allowed(drafted, len(scores))
        if allowed is not None:
            scores[~allowed] = -np.inf
        if not self.params.greedy:
            scores /= max(self.params.temperature, MIN_TEMPERATURE)
        if self.truncates:
            scores[scores < self._threshold(scores)] = -np.inf
        return scores

    def perturbed(self, scores: Floats, words: IntArray, key: int) -> Floats:
        """Scores [V] and the noise of a position with this key; `words` [V] are the keys of tokens.

        The largest is the token drawn. Of a greedy row the scores are returned themselves.
        """
        if self.params.greedy:
            return scores
        if not self.truncates:
            noise = gumbel(key, words)
            noise += scores
            return noise
        left = np.flatnonzero(scores > -np.inf)
        noisy: Floats = scores.copy()
        noisy[left] += gumbel(key, words[left])
        return noisy

    def _penalise(self, scores: Floats, drafted: Sequence[int]) -> None:
        """Repetition (prompt and output), frequency and presence (output only, as OpenAI defines them), in place.

        A score above 0 is divided by the repetition penalty, one below multiplied (Keskar et al. 2019, CTRL); then
        score -= frequency * count + presence * [count > 0]. A position also counts the drafted tokens before it.
        """
        if not len(self._counts):
            self._counts, self._prompt = np.zeros_like(scores), np.zeros(len(scores), dtype=np.bool_)
            self._prompt[self.tokens[: self.prompt_length]] = True
        np.add.at(self._counts, self.tokens[self._counted :], 1.0)
        self._counted = len(self.tokens)
        counts = self._counts
        if len(drafted):
            counts = counts.copy()
            np.add.at(counts, drafted, 1.0)
        repetition, frequency, presence = self.penalties
        seen = np.flatnonzero(self._prompt | (counts > 0.0))
        own, count = scores[seen], counts[seen]
        own = np.where(own > 0.0, own / repetition, own * repetition)
        scores[seen] = own - frequency * count - presence * np.minimum(count, 1.0)

    def _threshold(self, scores: Floats) -> float:
        """The least score that top-k, top-p and min-p keep; tokens that tie with the last one kept are kept, too.

        So the kept set depends on scores only, not on the order of token ids or of a sort. Top-p keeps the shortest
        prefix of the top-k tokens whose share of their mass reaches p; min-p keeps tokens with at least min_p times the
        mass of the likeliest.
        """
        top_p, log_min_p = self.cuts
        threshold, kept = -math.inf, scores
        if 0 < self.top_k < len(scores):
            threshold = _kth_largest(scores, self.top_k)
            kept = scores[~(scores < threshold)]
        if top_p < 1.0:
            threshold = max(threshold, _nucleus(kept, top_p))
        return max(threshold, float(scores.max()) + log_min_p)


class SamplingBatch:
    """A batch of rows as one. All state is the rows' own.

    Flattened arguments: N positions; each belongs to batch row index[n], and offsets[n] drafted tokens of this round
    come before it (paths[n] in `process`), so its position is len(row.tokens) + offsets[n].

    Logits wider than `vocab_size` (a padded head) are cut, narrower ones (a draft with fewer tokens)
    are filled up with -inf, so that scores are always [N, vocab_size].
    """

    def __init__(
        self,
        rows: Sequence[RowSampling],
        vocab_size: int,
        words: IntArray | None = None,
        chooser: Chooser | None = None,
    ) -> None:
        """`sampled` [B] says which rows draw, and do not just take the likeliest token; `plain_greedy`, that none does
        and nothing changes its logits. `words` [V] are keys of the tokens for noise; None: those of their ids.
        `chooser` chooses tokens on the device of the logits; None: they are chosen here.
        """
        self.rows = tuple(rows)
        self.vocab_size = vocab_size
        self.sampled: BoolArray = np.array([not row.params.greedy for row in rows], dtype=np.bool_)
        self.plain_greedy = all(row.takes_likeliest for row in rows)
        self.words = token_keys(vocab_size) if words is None else words
        self.chooser = chooser
        self._seeds = seed_keys(np.array([row.seed for row in rows], dtype=np.int64))

    def choice_keys(self, index: IntArray, offsets: IntArray) -> IntArray:
        """[N] keys of the noise of `choose`."""
        return self._keys(index, offsets, Stream.CHOICE)

    def take(self, members: IntArray) -> SamplingBatch:
        """A batch of some of the rows, by position."""
        return SamplingBatch([self.rows[i] for i in members], self.vocab_size, self.words, self.chooser)

    def process(self, logits: Logits, index: IntArray, paths: Sequence[Sequence[int]]) -> Floats:
        """Scores [N, vocab_size] from logits, behind the drafted tokens of each path; see `RowSampling.scores`.

        They may be the memory of `logits`, where no row changes any.
        """
        given, rows = self._fit(logits), self._rows(index)
        if all(row.keeps_logits for row in rows):
            return given
        scores = np.empty_like(given)
        for n, (row, path) in enumerate(zip(rows, paths, strict=True)):
            report_progress()
            scores[n] = row.scores(given[n], path)
        return scores

    def next_tokens(self, logits: Logits, index: IntArray, paths: Sequence[Sequence[int]]) -> IntArray:
        """Token ids [N]: what `choose` draws from the scores of `process`, without holding those of all positions.

        Without a chooser, rows of a device that take the likeliest token have it found there, and their logits are not
        copied.
        """
        if self.chooser is not None:
            return self.chooser.start(logits, self, index, paths).wait().tokens[:, 0]
        if logits.is_cpu:
            return self._next_tokens(logits, index, paths)
        tokens = argmax(logits[:, : self.vocab_size])
        others = [n for n, row in enumerate(self._rows(index)) if not row.takes_likeliest]
        if others:
            tokens[others] = self._next_tokens(logits[others], index[others], [paths[n] for n in others])
        return tokens

    def choose(self, scores: Floats, index: IntArray, offsets: IntArray, stream: Stream = Stream.CHOICE) -> IntArray:
        """Token ids [N], argmax(score + noise); no noise for greedy rows.

        Under `CHOICE` it is the one choice that a position ever gets; other streams are independent of it, and anew in
        each round.
        """
        rows, keys = self._rows(index), self._keys(index, offsets, stream)
        drawn: IntArray = np.zeros(len(scores), dtype=np.int64)
        for n, (row, key) in enumerate(zip(rows, keys, strict=True)):
            report_progress()
            drawn[n] = row.perturbed(scores[n], self.words, key).argmax()
        return drawn

    def perturbed(self, scores: Floats, index: IntArray, offsets: IntArray) -> Floats:
        """Scores with the noise of `choose` [N, vocab_size], or the given ones where no row draws.

        The k largest are k draws without replacement (Gumbel-top-k): the likeliest to be what a model with the same
        noise draws from similar scores.
        """
        if not self.sampled[index].any():
            return scores
        noisy, keys = np.empty_like(scores), self._keys(index, offsets, Stream.CHOICE)
        for n, (row, key) in enumerate(zip(self._rows(index), keys, strict=True)):
            report_progress()
            noisy[n] = row.perturbed(scores[n], self.words, key)
        return noisy

    def uniform(self, index: IntArray, offsets: IntArray, stream: Stream) -> FloatArray:
        """Numbers [N] in [0, 1), independent between positions, streams and rounds."""
        return uniform(self._keys(index, offsets, stream))

    def probabilities(self, scores: Floats, index: IntArray) -> Floats:
        """What each position is drawn from, [N, vocab_size]: softmax of scores; for greedy rows 1 at the argmax."""
        shares = np.zeros_like(scores)
        for line, line_shares, draws in zip(scores, shares, self.sampled[index], strict=True):
            report_progress()
            if draws:
                line_shares[:] = softmax(line)
            else:
                line_shares[line.argmax()] = 1.0
        return shares

    def _next_tokens(self, logits: Logits, index: IntArray, paths: Sequence[Sequence[int]]) -> IntArray:
        offsets = np.array([len(path) for path in paths], dtype=np.int64)
        keys = self._keys(index, offsets, Stream.CHOICE)
        drawn: IntArray = np.zeros(len(paths), dtype=np.int64)
        lines = zip(self._rows(index), self._fit(logits), paths, keys, strict=True)
        for n, (row, line, path, key) in enumerate(lines):
            report_progress()
            drawn[n] = row.perturbed(row.scores(line, path), self.words, key).argmax()
        return drawn

    def _rows(self, index: IntArray) -> list[RowSampling]:
        """[N] of each position."""
        return [self.rows[i] for i in index.tolist()]

    def _fit(self, logits: Logits) -> Floats:
        given: Floats = logits.cpu().numpy()
        if given.shape[1] >= self.vocab_size:
            return given[:, : self.vocab_size]
        whole: Floats = np.full((len(given), self.vocab_size), -np.inf, dtype=np.float32)
        whole[:, : given.shape[1]] = given
        return whole

    def _keys(self, index: IntArray, offsets: IntArray, stream: Stream) -> IntArray:
        lengths = np.array([len(row.tokens) for row in self.rows], dtype=np.int64)[index]
        # Only the final choice of a position is unique; everything else may be drawn again in a later round.
        rounds = 0 if stream is Stream.CHOICE else lengths
        return position_keys(self._seeds[index], lengths + offsets, stream, rounds)


def argmax(logits: Logits) -> IntArray:
    """The token [N] of the largest of logits [N, V], the first of equals."""
    # On a CPU numpy's is vectorised, and torch's is not: 5 against 60 us on [8, 4096].
    found: IntArray = logits.numpy().argmax(1) if logits.is_cpu else logits.argmax(1).cpu().numpy()
    return found


def certainty(scores: Floats, chosen: IntArray) -> Certainty:
    """How sure scores [N, V] were of the `chosen` [N] tokens.

    Of tokens drawn with noise that others share, that noise is known too: see `leading` of the perturbed scores.
    """
    confidence, entropy = np.empty((2, len(scores)))
    for n, (line, token) in enumerate(zip(scores, chosen.tolist(), strict=True)):
        weights, total, entropy[n] = _weights_and_entropy(line)
        confidence[n] = weights[token] / total
    return Certainty(confidence, entropy)


def entropies(scores: Floats) -> FloatArray:
    """Entropy in nats of the distributions whose scores [N, V] these are."""
    return np.array([_weights_and_entropy(line)[2] for line in scores])


def leading(scores: Floats, width: int) -> tuple[IntArray, FloatArray]:
    """The tokens of the `width` largest scores of each position, largest first, and their softmax; both [N, width].

    Fewer where the vocabulary is smaller. Of equal scores the lower token comes first.
    """
    width = min(width, scores.shape[1])
    tokens, shares = np.empty((len(scores), width), dtype=np.int64), np.empty((len(scores), width))
    for n, line in enumerate(scores):
        token = int(line.argmax())
        weights = np.exp(line - line[token])
        total = float(weights.sum())
        # Where few are wanted an argmax for each takes less than a partition: 3 against 240 us of 49,152 tokens.
        for rank in range(width):
            token = int(weights.argmax()) if rank else token
            tokens[n, rank], shares[n, rank] = token, float(weights[token]) / total
            weights[token] = -1.0
    return tokens, shares


def tempered(scores: Floats, temperatures: FloatArray) -> Floats:
    """Scores [N, V] of the distributions sharpened (below 1) or flattened (above 1) by a temperature each, [N]."""
    if (temperatures == 1.0).all():
        return scores
    return scores / temperatures.astype(np.float32)[:, None]


def softmax(scores: Floats) -> Floats:
    """The distribution [V] whose scores these are."""
    weights = _weights(scores)
    weights /= weights.sum()
    return weights


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the vocabulary does not have. Raises RequestError; call it when a request arrives."""
    check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)
    check_tokens("logit_bias", params.logit_bias, vocab_size)


def check_tokens(name: str, tokens: Collection[int], vocab_size: int) -> None:
    """The same for the token ids of one field. None is named in the message: one may have thousands of digits."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        raise RequestError(f"{name} has a token id that does not exist; ids go from 0 to {vocab_size - 1}", name)


def _weights(scores: Floats) -> Floats:
    """exp(score - largest), all 0 where no token is left."""
    weights: Floats = np.exp(scores - max(float(scores.max()), _LOWEST))
    return weights


def _weights_and_entropy(scores: Floats) -> tuple[Floats, float, float]:
    """The weights of scores [V], their sum, and the entropy in nats."""
    below = scores - scores.max()
    # A bound where the weight is 0 in float32 anyway, so that removed tokens (-inf) add 0 and not NaN. It takes as long
    # as the exponentials, and to look for one a sixth.
    if below.min() == -np.inf:
        np.maximum(below, -200.0, out=below)
    weights = np.exp(below)
    total = float(weights.sum())
    return weights, total, math.log(total) - float(weights @ below) / total


def _kth_largest(scores: Floats, k: int) -> float:
    """The k-th largest score."""
    # At least k scores are no less than the k-th largest peak of groups: few are left for the partition, which takes
    # 240 us of 49,152 scores, and this 25.
    if k <= _GROUPS <= len(scores):
        peaks = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
        scores = scores[~(scores < np.partition(peaks, -k)[-k])]
    return float(np.partition(scores, -k)[-k])


def _nucleus(scores: Floats, top_p: float) -> float:
    """The last score of the shortest prefix, largest first, whose share of the mass reaches `top_p`."""
    weights = _weights(scores)
    total = float(weights.sum(dtype=np.float64))
    # What is below comes to less than the rest, 1 - top_p: it need not be sorted.
    likely = np.sort(scores[~(weights < (1.0 - top_p) * total / len(scores))])[::-1]
    mass = _weights(likely).cumsum(dtype=np.float64)
    last = min(int(np.searchsorted(mass, top_p * total)), len(likely) - 1)
    return float(likely[last])
