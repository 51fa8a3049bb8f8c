"""Teacher forcing: what each drafter would have proposed at every position of a text that the target wrote.

One pass of target and draft over prompt and output gives the scores at all positions; processors, noise and choices are
the engine's own. `record_tape` makes tapes of what is found here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.decision import TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.cross_tokenizer import CrossTokenizerDrafter
from adaptspec.drafting.drafter import Drafter, DraftJob, ModelDrafter, RowStart
from adaptspec.errors import ConfigError
from adaptspec.models.noise import Floats
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch, entropies, leading
from adaptspec.request import SamplingParams
from adaptspec.simulation.tape import MAX_REACH, UNRANKED, AfterMiss, DraftView

# So many tokens after each wrong one are drafted, too: to the depth of 12, the deepest of every policy that ships.
_AFTER_MISS = 11


@dataclass(frozen=True)
class Written:
    """One request and what the target wrote: P tokens, the first `length` of them emitted."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    length: int
    sampling: SamplingParams  # with its seed

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]


class Judge:
    """Computes each drafter's proposals for texts that the target wrote. All model rows must be free."""

    def __init__(self, target: Runner, drafters: Sequence[Drafter], *, history: bool = True) -> None:
        """With `history`, drafters that learn from other requests go by those of the same temperature judged before."""
        other = next((one for one in drafters if isinstance(one, CrossTokenizerDrafter)), None)
        if other is not None:
            raise ConfigError(
                f"{other.runner.info.name} has another tokenizer than the target: what it drafts depends on more than "
                "the position, which a tape cannot hold; record with --draft none, or with a draft of the same one"
            )
        self._target = target
        # No text shows what a drafter learns from passes over its own nodes.
        self._drafters = tuple(drafter for drafter in drafters if not drafter.learns_from_choices)
        self._history = history

    @torch.inference_mode()
    def views(self, text: Written) -> Mapping[str, DraftView]:
        """Each drafter's view of the text, by its name.

        Raises:
            ConfigError: the models' caches have no room for it.
        """
        size = len(text.output)
        # A batch whose one row stands at the end of the prompt: position t of the output is t drafted tokens on.
        sampling = self._sampling(text, list(text.prompt))
        scores = self._scores(self._target, text, sampling, size)
        shares = sampling.probabilities(scores, np.zeros(size, dtype=np.int64))
        return {
            drafter.name: self._of_model(drafter, text, sampling, shares)
            if isinstance(drafter, ModelDrafter)
            else self._of_model_free(drafter, text, sampling, shares)
            for drafter in self._drafters
        }

    def _row(self, text: Written, tokens: list[int]) -> RowSampling:
        ends = self._target.info.eos_token_ids
        return RowSampling(text.sampling, text.sampling.seed or 0, tokens, len(text.prompt), ends)

    def _sampling(self, text: Written, tokens: list[int]) -> SamplingBatch:
        """A batch whose one row stands behind these tokens."""
        return SamplingBatch([self._row(text, tokens)], self._target.info.vocab_size)

    def _of_model(self, drafter: ModelDrafter, text: Written, sampling: SamplingBatch, shares: Floats) -> DraftView:
        runner, size, prompt = drafter.runner, len(text.output), len(text.prompt)
        known = max(0, min(size, _readable(runner, text) - prompt + 1))
        agreed = np.zeros(size, dtype=np.bool_)
        drafted: IntArray = np.zeros(0, dtype=np.int64)
        confidence, entropy, chance = (np.full(size, np.nan), np.full(size, np.nan), np.zeros(size))
        rank, top = np.full(size, UNRANKED), np.zeros((size, min(CANDIDATES, sampling.vocab_size)))
        if known:
            index, offsets = np.zeros(known, dtype=np.int64), np.arange(known)
            scores = self._scores(runner, text, sampling, known)
            noisy = sampling.perturbed(scores, index, offsets)
            candidates, top[:known] = leading(noisy, CANDIDATES)
            drafted = candidates[:, 0]
            agreed[:known] = drafted == np.array(text.output[:known])
            confidence[:known], entropy[:known] = top[:known, 0], entropies(scores)
            rank[:known] = _ranks(noisy, text.output[:known])
            both = np.minimum(shares[:known], sampling.probabilities(scores, index)).sum(axis=1)
            chance[:known] = np.minimum(both, 1.0)
        view = DraftView.of_agreement(agreed, confidence, entropy, chance)
        # A draft model of a shorter context than the target's drafts no further than its own.
        left = np.clip(runner.info.context - prompt - np.arange(size), 0, MAX_REACH)
        after_miss, ended = self._after_miss(drafter, text, np.flatnonzero(~agreed[:known]))
        ends = [int(token) in drafter.eos_token_ids for token in drafted]
        reach = np.where(np.arange(size) < known, np.minimum(left, _until_end(agreed[:known], ends, ended, size)), 0)
        run = np.minimum(view.run, reach)
        # An own token that ends the context is none that it could have drafted.
        rank = np.where((rank == 0) & (run == 0), UNRANKED, rank)
        return replace(view, reach=reach, run=run, rank=rank, after_miss=after_miss, top=top)

    def _of_model_free(self, drafter: Drafter, text: Written, sampling: SamplingBatch, shares: Floats) -> DraftView:
        scope = f"temperature {text.sampling.temperature:g}" if self._history else None
        start = RowStart(self._row(text, list(text.prompt)), scope=scope)
        view, first = view_of_model_free(drafter, start, sampling, text.output, _AFTER_MISS)
        chance = shares[np.arange(len(first)), np.maximum(first, 0)]
        return replace(view, rejection=np.where(first < 0, 0.0, np.minimum(chance, 1.0)))

    def _after_miss(self, drafter: ModelDrafter, text: Written, wrong: IntArray) -> tuple[AfterMiss, Mapping[int, int]]:
        """What the drafter itself goes on with where its token is wrong: no pass over the true text shows it.

        Also by position how many tokens such a draft has, the wrong one included, where it comes to an end.
        """
        ended: dict[int, int] = {}
        runner, prompt = drafter.runner, len(text.prompt)
        confidence, entropy = np.full((2, len(text.output), _AFTER_MISS), np.nan)
        try:
            if len(wrong):
                _read(runner, text.tokens[: prompt + int(wrong[-1])], 1)
            # Backwards: what the cache holds of the text before is never spoilt.
            for at in wrong[::-1].tolist():
                tokens = text.tokens[: prompt + at]
                drafter.commit(0, len(tokens) - 1, tokens)
                batch = self._sampling(text, tokens)
                job = DraftJob(np.zeros(1, dtype=np.int64), [tokens], np.array([1 + _AFTER_MISS]), batch)
                draft = drafter.propose(job).tree
                count = max(0, len(draft.token) - 1)
                if len(draft.token) and int(draft.token[count]) in drafter.eos_token_ids:
                    ended[at] = 1 + count
                confidence[at, :count] = draft.confidence[1:]
                entropy[at, :count] = draft.entropy[1:]
        finally:
            drafter.free(0)
        return AfterMiss(confidence, entropy), ended

    def _scores(self, runner: Runner, text: Written, sampling: SamplingBatch, count: int) -> Floats:
        """Scores [count, V] of the first `count` positions of the output, given the true text before each."""
        try:
            logits = _read(runner, text.tokens[: len(text.prompt) + count - 1], count)
            paths = [text.output[:length] for length in range(count)]
            scores: Floats = sampling.process(logits, np.zeros(count, dtype=np.int64), paths)
            return np.array(scores)  # the runner may use its buffer again
        finally:
            runner.free(0)


def _until_end(agreed: BoolArray, ends: Sequence[bool], ended: Mapping[int, int], size: int) -> IntArray:
    """How many tokens a draft from each position has until its end, [size]; `MAX_REACH` where that is not known.

    `agreed`, and whether the drafter's token `ends` a text, by known position; `ended` after a miss.
    """
    reach: IntArray = np.full(size, MAX_REACH, dtype=np.int64)
    for at in range(len(agreed) - 1, -1, -1):
        if ends[at]:
            reach[at] = 1
        elif not agreed[at]:
            reach[at] = ended.get(at, MAX_REACH)
        elif at + 1 < len(agreed):
            reach[at] = min(MAX_REACH, 1 + reach[at + 1])
    return reach


def _ranks(scores: Floats, tokens: Sequence[int]) -> IntArray:
    """How many candidates come before each token in the order of scores [N, V], of equals the first; at most 127."""
    ranks = []
    for line, token in zip(scores, tokens, strict=True):
        own = line[token]
        before = np.count_nonzero(line > own) + np.count_nonzero(line[:token] == own)
        ranks.append(UNRANKED if np.isinf(own) else min(before, UNRANKED))
    return np.array(ranks, dtype=np.int64)


def _read(runner: Runner, tokens: Sequence[int], count: int) -> torch.Tensor:
    """Have row 0 read the tokens: logits [count, V] after the last of them."""
    if not runner.reserve(0, len(tokens)):
        raise ConfigError(
            f"{runner.info.name} has no room for {len(tokens)} tokens; give more cache tokens, or fewer --tokens"
        )
    one = np.ones(1, dtype=np.int64)
    return runner.forward(Packed(0 * one, len(tokens) * one, np.array(tokens, dtype=np.int64), count * one)).logits


def _readable(runner: Runner, text: Written) -> int:
    """How many tokens of prompt and output a model can read: up to its context, and only those it knows."""
    tokens = text.tokens[: runner.info.context]
    unknown = (i for i, token in enumerate(tokens) if token >= runner.info.vocab_size)
    return next(unknown, len(tokens))


# The deepest draft that a policy may ask for.
_DEEPEST = 64
# Candidates per position whose confidence is recorded.
CANDIDATES = 8


def view_of_model_free(
    drafter: Drafter, start: RowStart, sampling: SamplingBatch, output: Sequence[int], beyond: int
) -> tuple[DraftView, IntArray]:
    """The view of P output tokens, its `rejection` left at 0, and what the drafter proposes first at each (-1: none).

    `start` has the prompt, and says how the request draws. At each position `CANDIDATES` are noted, and after each
    wrong token the confidence of the `beyond` tokens that would have been drafted next.
    """
    found = _Found(output, beyond)
    drafter.start(0, start)
    prompt, here, depths = start.sampling.tokens, np.zeros(1, dtype=np.int64), np.array([_DEEPEST])
    text = [*prompt, *output]
    width, nodes = np.array([CANDIDATES]), np.array([CANDIDATES * _DEEPEST])
    everything = TreeTable(width, nodes, np.zeros(1), np.ones((1, 1, 1)))
    for at in range(len(output)):
        job = DraftJob(here, [text[: len(prompt) + at]], depths, sampling, tree=everything)
        found.note(at, drafter.propose(job).tree)
    drafter.leave(0)
    return found.view(), found.first


class _Found:
    """What was found so far."""

    def __init__(self, output: Sequence[int], beyond: int) -> None:
        size = len(output)
        self._output = np.array(output, dtype=np.int64)
        self._run, self._reach, self._rank = np.zeros((3, size), dtype=np.int64)
        self._rank[:] = UNRANKED
        self._confidence: FloatArray = np.full(size, np.nan)
        self._after: FloatArray = np.full((size, beyond), np.nan)
        self._top: FloatArray = np.zeros((size, CANDIDATES))
        self.first: IntArray = np.full(size, -1)

    def note(self, at: int, draft: DraftTree) -> None:
        """Note what is drafted at a position: the main chain, and the candidates for its first token."""
        count = int(draft.chain[0])
        if not count:
            return
        proposed, confidence = draft.token[:count], draft.confidence
        true = self._output[at : at + count]
        wrong = np.flatnonzero(proposed[: len(true)] != true)
        self._reach[at], self._run[at] = count, wrong[0] if len(wrong) else len(true)
        self.first[at], self._confidence[at] = proposed[0], confidence[0]
        firsts = np.flatnonzero(draft.parent < 0)
        ranks = draft.rank[firsts]
        self._top[at, ranks] = confidence[firsts]
        right = ranks[draft.token[firsts] == true[0]]
        if len(right):
            self._rank[at] = right[0]
        if not self._run[at]:
            after = confidence[1 : min(count, 1 + self._after.shape[1])]
            self._after[at, : len(after)] = after

    def view(self) -> DraftView:
        unknown = np.full_like(self._confidence, np.nan)
        view = DraftView(self._run, self._reach, self._rank, self._confidence, unknown, np.zeros_like(self._confidence))
        return replace(view, after_miss=AfterMiss(self._after, np.full_like(self._after, np.nan)), top=self._top)
