"""Drafting and judging for a whole round, whatever mix of drafters and methods its rows use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.control.arrays import some
from adaptspec.control.policy import Decision
from adaptspec.draft_tables import CANDIDATES
from adaptspec.drafting.drafter import Drafter, DraftJob, ModelFreeDrafter
from adaptspec.engine.prevalidation import cut_refused
from adaptspec.engine.shadow_scores import Shadows, ShadowScores
from adaptspec.models.draft import Draft
from adaptspec.models.processors import SamplingRow
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import FloatArray, IntArray
from adaptspec.verification.draft_scores import score_temperatures
from adaptspec.verification.method import Method, VerifyResult


@dataclass(frozen=True)
class Ask:
    """The rows of a round that will emit: E of them, decoding rows first (the decision's order).

    Rows beyond the decision have just read the end of their prompt and draft nothing.
    """

    rows: IntArray  # [E]
    tokens: Sequence[list[int]]  # [E] live
    sampling: SamplingBatch
    methods: IntArray  # [E] index into the speculator's methods


class Speculator:
    """Splits a round among drafters and methods, and puts the parts together again."""

    def __init__(self, drafters: Sequence[Drafter], methods: Sequence[Method], vocab_size: int, device: torch.device):
        self.drafters = tuple(drafters)
        self.lookups = {
            which: drafter for which, drafter in enumerate(drafters) if isinstance(drafter, ModelFreeDrafter)
        }
        self._methods = tuple(methods)
        self._scores = ShadowScores(self.lookups, len(self.drafters))
        self._vocab_size = vocab_size
        self._device = device
        self._last_sampling: tuple[tuple[SamplingRow, ...], SamplingBatch] | None = None

    def use(self, method: Method) -> int:
        """The index of a method, which is added if no equal one is here yet."""
        if method not in self._methods:
            self._methods = (*self._methods, method)
        return self._methods.index(method)

    def sampling(self, rows: Sequence[SamplingRow]) -> SamplingBatch:
        """The batch's way of drawing tokens, made anew only when its members changed."""
        last = self._last_sampling
        if last is not None and len(last[0]) == len(rows) and all(a is b for a, b in zip(last[0], rows, strict=True)):
            return last[1]
        batch = SamplingBatch(rows, self._vocab_size, self._device)
        self._last_sampling = (tuple(rows), batch)
        return batch

    def propose(self, ask: Ask, decision: Decision) -> Draft:
        """Draft for every row with a depth; rows of one drafter and method together."""
        if not some(decision.depths):
            return _nothing(len(ask.rows))
        depths, drafter = decision.depths, decision.drafter
        beyond = len(ask.rows) - len(depths)
        if beyond:
            depths, drafter = np.pad(depths, (0, beyond)), np.pad(drafter, (0, beyond))
        lanes = sorted({(int(drafter[i]), int(ask.methods[i])) for i in np.flatnonzero(depths)})
        # Nothing can be gained where every row takes the likeliest token.
        temperature = None if ask.sampling.plain_greedy else decision.temperature
        parts = []
        for which, how in lanes:
            method = self._methods[how]
            mine = depths if len(lanes) == 1 else np.where((drafter == which) & (ask.methods == how), depths, 0)
            job = DraftJob(
                ask.rows,
                ask.tokens,
                mine,
                ask.sampling,
                shares_noise=method.shares_noise,
                keep_distribution=method.needs_distribution and not ask.sampling.plain_greedy,
                stop=decision.stop,
                temperature=temperature,
            )
            parts.append(self.drafters[which].propose(job))
        draft = parts[0] if len(parts) == 1 else _merge(parts)
        return cut_refused(draft, ask.sampling.constraints) if ask.sampling.constrained else draft

    def judge(self, logits: torch.Tensor, ask: Ask, draft: Draft) -> VerifyResult:
        """Verify each row by its own method. `logits` [sum(counts + 1), V]."""
        used: list[int] = sorted(set(ask.methods.tolist()))
        if len(used) == 1:
            return self._methods[used[0]].verify(logits, draft, ask.sampling)
        accepted, following = np.zeros_like(draft.counts), np.zeros_like(draft.counts)
        owner = torch.from_numpy(np.repeat(ask.methods, draft.counts + 1)).to(logits.device)
        for how in used:
            mine = np.flatnonzero(ask.methods == how)
            part = self._methods[how].verify(logits[owner == how], _take(draft, mine), ask.sampling.take(mine))
            accepted[mine], following[mine] = part.accepted, part.following
        return VerifyResult(accepted, following)

    def temperature_scores(
        self, logits: torch.Tensor, ask: Ask, draft: Draft, verdict: VerifyResult
    ) -> FloatArray | None:
        """What the candidate draft temperatures would have come to (see `RoundRecord`), where scores were kept."""
        if draft.scores is None:
            return None
        shares = np.array([method.shares_noise for method in self._methods], dtype=np.bool_)[ask.methods]
        return score_temperatures(logits, draft, verdict, ask.sampling, shares_noise=shares, temperatures=CANDIDATES)

    def shadows(self, ask: Ask, decision: Decision, context: IntArray) -> Shadows | None:
        """After commit: what the watched drafters would have got where they did not draft. `context` [B]: before."""
        return self._scores.of(decision, ask.rows, ask.tokens, context)

    def lossy(self, how: int) -> bool:
        """Whether the method of this index may change the text."""
        return self._methods[how].lossy


def _nothing(rows: int) -> Draft:
    empty = np.zeros((rows, 0))
    return Draft(np.zeros((rows, 0), dtype=np.int64), np.zeros(rows, dtype=np.int64), empty, empty)


def _merge(parts: Sequence[Draft]) -> Draft:
    """Parts that draft for different rows become one; point masses where only some parts have a distribution."""
    deepest = max(part.tokens.shape[1] for part in parts)
    wide = [_pad(part, deepest) for part in parts]
    owner = [part.counts > 0 for part in wide]
    first = wide[0]
    tokens, confidence, entropy = first.tokens.copy(), first.confidence.copy(), first.entropy.copy()
    for part, mine in zip(wide[1:], owner[1:], strict=True):
        tokens[mine], confidence[mine], entropy[mine] = part.tokens[mine], part.confidence[mine], part.entropy[mine]
    return Draft(
        tokens,
        np.sum([part.counts for part in wide], axis=0),
        confidence,
        entropy,
        _merge_distributions(wide),
        scores=_merge_scores(wide),
        steps=sum(part.steps for part in parts),
        caught_up=sum(part.caught_up for part in parts),
    )


def _merge_distributions(parts: Sequence[Draft]) -> torch.Tensor | None:
    kept = [part for part in parts if part.distribution is not None]
    if not kept:
        return None
    whole = torch.zeros_like(_known(kept[0].distribution))
    for part in parts:
        mine = torch.from_numpy(part.counts > 0)
        if part.distribution is not None:
            whole[mine] = part.distribution[mine]
        else:
            point = torch.nn.functional.one_hot(torch.from_numpy(part.tokens[part.counts > 0]), whole.shape[-1])
            whole[mine] = point.to(whole)
    return whole


def _merge_scores(parts: Sequence[Draft]) -> torch.Tensor | None:
    """Scores of the parts that kept them; what stands elsewhere is never read, as no entropy is known there."""
    kept = [part for part in parts if part.scores is not None]
    if not kept:
        return None
    whole = torch.zeros_like(_known(kept[0].scores))
    for part in kept:
        mine = torch.from_numpy(part.counts > 0)
        whole[mine] = _known(part.scores)[mine]
    return whole


def _known(tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError("no distribution was kept")
    return tensor


def _pad(draft: Draft, deepest: int) -> Draft:
    width = [(0, 0), (0, deepest - draft.tokens.shape[1])]
    if not width[1][1]:
        return draft
    distribution, scores = (
        None if kept is None else torch.nn.functional.pad(kept, (0, 0, 0, width[1][1]))
        for kept in (draft.distribution, draft.scores)
    )
    return Draft(
        np.pad(draft.tokens, width),
        draft.counts,
        np.pad(draft.confidence, width, constant_values=np.nan),
        np.pad(draft.entropy, width, constant_values=np.nan),
        distribution,
        draft.steps,
        draft.caught_up,
        scores=scores,
    )


def _take(draft: Draft, rows: IntArray) -> Draft:
    return Draft(
        draft.tokens[rows],
        draft.counts[rows],
        draft.confidence[rows],
        draft.entropy[rows],
        None if draft.distribution is None else draft.distribution[torch.from_numpy(rows)],
    )
