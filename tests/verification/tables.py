"""Tiny models as tables, whole rounds on thousands of rows at once, and the exact distribution they must give.

A table's next-token logits depend on the last three tokens, so that for the three tokens under test every prefix has a
distribution of its own. The expected distribution is computed by a reference of a few lines of float64 numpy
that shares nothing with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from scipy import stats

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable
from adaptspec.draft_tree import DraftTree
from adaptspec.models.noise import Floats, Stream
from adaptspec.models.sampling import RowSampling, SamplingBatch, argmax, certainty, entropies, tempered
from adaptspec.request import SamplingParams
from adaptspec.verification.method import Method

VOCAB = 5
EOS = 4
PROMPT = (1, 3, 1)
OUT = 3


class Table:
    """A language model that is a table of random logits."""

    def __init__(self, seed: int, spread: float = 1.5, near: Table | None = None) -> None:
        random = np.random.default_rng(seed)
        self._logits = random.normal(0.0, spread, ((VOCAB + 1) ** 3, VOCAB)).astype(np.float32)
        if near is not None:  # a draft worth having agrees in part
            self._logits = 0.5 * self._logits + 0.8 * near._logits

    def logits(self, last: IntArray) -> torch.Tensor:
        """Next-token logits [N, VOCAB] after contexts that end in these three tokens, [N, 3]."""
        return torch.from_numpy(self._logits[last @ np.array([(VOCAB + 1) ** 2, VOCAB + 1, 1])])


TARGET = Table(1)
DRAFT = Table(2, near=TARGET)

Depths = Callable[[int, IntArray], IntArray]
"""Round number and tokens accepted in the round before, [B] -> depths [B]."""


def adaptive_depths(number: int, accepted: IntArray) -> IntArray:
    """Depths 0 to 3 that differ between rows, change every round and depend on what was accepted before."""
    rows = np.arange(len(accepted))
    return (rows + 2 * accepted + number) % 4


@dataclass(frozen=True)
class Drafter:
    """Drafts chains from a table: sampled, or (`point`) always the likeliest token, as lookups do.

    `drop_below` breaks the rule of non-anticipating drafts: a sampled token of lower confidence is not submitted.
    `stop_below` is the allowed form: the token is submitted, and none after it. So is `drop_above`: no token is
    submitted where the entropy of its distribution is higher. `claims` is another mistake: the likeliest token with the
    distribution of a sampled one. `temperature` gives draft temperatures by entropy; `hides_temperature` is the mistake
    of returning the distribution before it. `stop` makes the stop table of a round of so many rows.
    """

    table: Table = DRAFT
    point: bool = False
    drop_below: float = 0.0
    drop_above: float = np.inf
    stop_below: float = 0.0
    claims: bool = False
    temperature: Callable[[IntArray, FloatArray], FloatArray] | None = None
    hides_temperature: bool = False
    stop: Callable[[int], StopTable | None] | None = None

    def propose(
        self, rows: Sequence[RowSampling], sampling: SamplingBatch, depths: IntArray, method: Method
    ) -> DraftTree:
        """One round's draft for all rows."""
        batch, deepest = len(rows), int(depths.max(initial=0))
        tokens = np.zeros((batch, deepest), dtype=np.int64)
        counts = np.zeros(batch, dtype=np.int64)
        keep = method.needs_distribution and (self.claims or not self.point)
        distribution = np.zeros((batch, deepest, VOCAB), dtype=np.float32) if keep else None
        active = np.flatnonzero(depths)
        stop = None if self.stop is None else self.stop(batch)
        survival: FloatArray = np.ones(batch)
        contexts = np.concatenate((last_three(rows), tokens), axis=1)
        for step in range(deepest):
            if not len(active):
                break
            logits = self.table.logits(contexts[active, step : step + 3])
            offsets = np.full(len(active), step)
            scores = sampling.process(logits, active, tokens[active, :step].tolist())
            plain = scores
            if self.temperature is not None:
                scores = tempered(scores, self.temperature(active, entropies(scores)))
            if self.point:
                drawn = argmax(logits)
            elif method.shares_noise:
                drawn = sampling.choose(scores, active, offsets)
            else:
                drawn = sampling.choose(scores, active, offsets, Stream.DRAFT)
            if distribution is not None:
                drawn_from = plain if self.hides_temperature else scores
                distribution[active, step] = sampling.probabilities(drawn_from, active)
            tokens[active, step] = contexts[active, step + 3] = drawn
            known = certainty(plain, drawn)
            confidence, entropy = known.confidence, known.entropy
            submitted = (confidence >= self.drop_below) & (entropy <= self.drop_above)
            counts[active[submitted]] += 1
            going = submitted & (confidence >= self.stop_below) & (depths[active] > step + 1)
            active, confidence, entropy = active[going], confidence[going], entropy[going]
            if stop is not None and len(active):
                survival[active] *= stop.chances(step + 1, active, confidence)
                continues = stop.continues(step + 1, active, confidence, entropy, survival=survival[active])
                active = active[continues]
        return chain_draft(tokens, distribution, counts)


def chain_draft(
    tokens: IntArray, distribution: Floats | None = None, counts: Sequence[int] | IntArray | None = None
) -> DraftTree:
    """Chains of these tokens [B, D], `counts` [B] of each (None: all), drawn from `distribution` [B, D, V]."""
    batch, deepest = tokens.shape
    lengths = np.full(batch, deepest) if counts is None else np.array(counts, dtype=np.int64)
    chains = DraftTree.from_chains(tokens, lengths)
    drawn_from = None if distribution is None else distribution[np.arange(deepest) < lengths[:, None]]
    return replace(chains, distribution=drawn_from)


def make_rows(params: SamplingParams, seeds: Sequence[int]) -> list[RowSampling]:
    """Rows that have read the prompt and emitted nothing."""
    return [RowSampling(params, seed, list(PROMPT), len(PROMPT), (EOS,)) for seed in seeds]


def last_three(rows: Sequence[RowSampling]) -> IntArray:
    """What a table's prediction depends on, [B, 3]."""
    return np.array([row.tokens[-3:] for row in rows], dtype=np.int64)


def target_logits(rows: Sequence[RowSampling], draft: DraftTree) -> torch.Tensor:
    """The target's logits [N + B, VOCAB] at all packed positions of the pass that verifies the draft."""
    paths = iter(draft.path_tokens())
    contexts = []
    for row, count in zip(rows, draft.counts.tolist(), strict=True):
        contexts += [[*row.tokens[-3:], *next(paths)][-3:] for _ in range(count + 1)]
    return TARGET.logits(np.array(contexts))


def speculate(rows: Sequence[RowSampling], method: Method, drafter: Drafter, depths: Depths, out: int) -> IntArray:
    """Whole rounds until each row has `out` tokens; returns them, [B, out]."""
    sampling = SamplingBatch(rows, VOCAB)
    accepted = np.zeros(len(rows), dtype=np.int64)
    number = 0
    while any(len(row.tokens) - row.prompt_length < out for row in rows):
        draft = drafter.propose(rows, sampling, depths(number, accepted), method)
        result = method.verify(target_logits(rows, draft), draft, sampling)
        accepted = result.accepted
        for i, row in enumerate(rows):
            row.tokens.extend(result.tokens(draft, i))
        number += 1
    return np.array([row.tokens[row.prompt_length : row.prompt_length + out] for row in rows])


def decode_plainly(rows: Sequence[RowSampling], out: int) -> IntArray:
    """Tokens [B, out] of decoding one token at a time, each row alone in its batch."""
    for row in rows:
        sampling = SamplingBatch([row], VOCAB)
        zero = np.zeros(1, dtype=np.int64)
        for _ in range(out):
            scores = sampling.process(TARGET.logits(last_three([row])), zero, [[]])
            row.tokens.append(sampling.choose(scores, zero, zero).item())
    return np.array([row.tokens[row.prompt_length :] for row in rows])


def reference(logits: FloatArray, params: SamplingParams, output: Sequence[int]) -> FloatArray:
    """The distribution [VOCAB] of the token after PROMPT + output, straight from the definitions."""
    scores = logits.astype(np.float64)
    for token in set(PROMPT) | set(output):
        factor = params.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(output):
        scores[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    if len(output) < params.min_tokens:
        scores[[EOS, *params.stop_token_ids]] = -np.inf
    if params.greedy:
        certain: FloatArray = np.eye(VOCAB)[scores.argmax()]
        return certain
    mass = np.exp((scores - scores.max()) / params.temperature)
    order = np.argsort(-mass)
    if params.top_k:
        mass[order[params.top_k :]] = 0.0
    mass /= mass.sum()
    above = np.cumsum(mass[order]) - mass[order]
    mass[order[above >= params.top_p]] = 0.0
    mass[mass < params.min_p * mass.max()] = 0.0
    kept: FloatArray = mass / mass.sum()
    return kept


def expected_joint(params: SamplingParams) -> FloatArray:
    """Exact probability of every sequence of OUT tokens, [VOCAB ** OUT]."""
    joint = []
    for sequence in product(range(VOCAB), repeat=OUT):
        probability = 1.0
        for n, token in enumerate(sequence):
            logits = TARGET.logits(np.array([[*PROMPT, *sequence[:n]][-3:]]))[0].numpy()
            probability *= reference(logits, params, sequence[:n])[token]
        joint.append(probability)
    return np.array(joint)


def g_test(tokens: IntArray, joint: FloatArray) -> float:
    """p-value of the G-test of emitted sequences [B, OUT] against their exact joint distribution.

    Sequences expected fewer than five times are pooled; an impossible sequence gives 0.
    """
    cells = tokens @ VOCAB ** np.arange(OUT)[::-1]
    observed = np.bincount(cells, minlength=len(joint)).astype(np.float64)
    expected = joint * len(tokens)
    if observed[joint == 0.0].any():
        return 0.0
    rare = (expected < 5.0) & (joint > 0.0)
    common = expected >= 5.0
    seen, wanted = observed[common], expected[common]
    if expected[rare].sum() >= 5.0:
        seen, wanted = np.append(seen, observed[rare].sum()), np.append(wanted, expected[rare].sum())
    else:  # too little to test by itself: counts with the smallest of the others
        least = wanted.argmin()
        seen[least] += observed[rare].sum()
        wanted[least] += expected[rare].sum()
    statistic = 2.0 * np.sum(np.where(seen > 0, seen * np.log(np.maximum(seen, 1.0) / wanted), 0.0))
    return float(stats.chi2.sf(statistic, len(seen) - 1)) if len(seen) > 1 else 1.0
