"""Rounds on a device: launched as a whole, and finished by one transfer of the results.

Drafts of the draft model may branch as a decision allows; those of other drafters are chains. Unsupported rounds
(methods other than `coupled`, prompt log-probabilities, trees of other drafters) run part by part as on a CPU, within
`launch`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import Decision, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob
from adaptspec.engine.executor import LaunchedRound, VerifiedRound
from adaptspec.engine.model_executor import NOT_NUMBERS, ModelExecutor
from adaptspec.engine.scheduler import Batch, held_row
from adaptspec.gpu.combs import packed_tree
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan, RoundResult
from adaptspec.gpu.staging import at_work
from adaptspec.models.runner import Packed
from adaptspec.results import TokenLogprob
from adaptspec.rounds import DraftWork
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import walk


@dataclass(frozen=True)
class RunningRound(LaunchedRound):
    """A round that runs on the device. `draft` has the drafts of other drafters than the draft model."""

    plan: RoundPlan
    drafter: IntArray  # [B]


@dataclass(frozen=True)
class RoundInParts(LaunchedRound):
    """A round that was run part by part in `launch`."""

    verified: VerifiedRound


class DeviceExecutor(ModelExecutor):
    """A `ModelExecutor` whose target and draft model are on a device."""

    overlaps = True
    runs_whole_drafts = True

    def __init__(self, target: DeviceDecoder, drafters: Sequence[Drafter], rows: int, steps: int) -> None:
        """For up to `rows` rows and drafts of up to `steps` tokens."""
        super().__init__(target, drafters)
        model = next((drafter for drafter in drafters if isinstance(drafter, DraftModelDrafter)), None)
        on_device = model is not None and isinstance(model.runner, DeviceDecoder)
        self._decoder, self._model = target, model if on_device else None
        self._model_number = -1 if self._model is None else drafters.index(self._model)
        draft = None if self._model is None else self._model.runner
        assert draft is None or isinstance(draft, DeviceDecoder)
        self._draft_runner = draft
        ends = () if self._model is None else self._model.eos_token_ids
        self._rounds = DeviceRounds(target, draft, rows, max(steps, 1), ends)
        self._steps = steps

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture CUDA graphs for all rounds."""
        self._rounds.capture()

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        if not self._fits(batch, decision):
            start = time.perf_counter()
            launched = super().launch(batch, decision)
            drafted = time.perf_counter()
            verified = super().finish(launched)
            seconds = drafted - start, time.perf_counter() - drafted
            return RoundInParts(batch, launched.draft, verified._replace(seconds=seconds))
        with at_work(self._decoder.device):
            plan, draft, begun = self._planned(batch, decision)
            self._rounds.launch(plan, begun=begun)
            states = self._rounds.hidden_states
            if states is not None and plan.decoding:
                self._observe_pass(plan.verified, (plan.lengths[: plan.decoding] - 1).tolist(), states)
            if batch.chunks:
                self._read_prompts(batch, plan.told)
            self._rounds.end()
        return RunningRound(batch, draft, plan, decision.drafter)

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        if isinstance(launched, RoundInParts):
            return launched.verified
        assert isinstance(launched, RunningRound)
        result = self._rounds.result(launched.plan)
        return self._verified(launched, result)

    def _fits(self, batch: Batch, decision: Decision) -> bool:
        """Whether the device can run the round as a whole."""
        emitting = batch.emitting
        scored = any(chunk.scored for chunk in batch.chunks)
        if not (emitting or batch.chunks) or scored or any(s.method != Coupled() for s in emitting):
            return False
        tree, others = decision.tree, (decision.drafter != self._model_number) & (decision.depths > 0)
        return tree is None or not (others & (tree.width > 1)).any()

    def _planned(self, batch: Batch, decision: Decision) -> tuple[RoundPlan, Draft, bool]:
        """The plan of the round, the drafts of other drafters than the draft model, and whether a model has run.

        Passes of a head, or of a draft model with another tokenizer, also count as drafting in the device's timing.
        """
        emitting, size = batch.emitting, len(batch.decoding)
        by_model = (decision.drafter == self._model_number) & (decision.depths > 0)
        others = np.where(by_model, 0, decision.depths)
        draft = Draft(DraftTree.empty(len(emitting)))
        begun = not self._model_free.keys() >= set(decision.drafter[others > 0].tolist())
        if begun or by_model.any():
            self._rounds.begin()
        if others.any():
            draft = self._propose(batch, decision, decision.drafter, others, table=None)
        depths = np.zeros(len(emitting), dtype=np.int64)
        tree = None if decision.tree is None else _unbranched_where_masked(decision.tree, batch)
        work, caught_up = draft.work, 0
        others, tokens = draft.tree.counts, _padded_tokens(draft.tree)
        if by_model.any():
            max_depths = decision.depths if tree is None else tree.within(decision.depths)
            texts = [s.tokens for s in batch.decoding]
            job = DraftJob(batch.rows[:size], texts, np.where(by_model, max_depths, 0), self._sampled(emitting))
            depths[:size], caught_up = self._drafters[self._model_number].catch_up(job)
            # All steps of the deepest row run over all rows, including stopped ones. Catching up is a separate pass
            # here, which is counted by its tokens, `caught_up`, and not in `passes`.
            passes = (size,) * int(depths.max(initial=0))
            work += (DraftWork(self.drafters[self._model_number], int(np.count_nonzero(by_model)), passes, caught_up),)
        nodes = depths if tree is None else self._nodes(batch, tree, depths, others)
        newest = np.array([(s.tokens[-2] if s.length > 1 else 0, s.tokens[-1]) for s in emitting], dtype=np.int64)
        plan = RoundPlan(
            batch.rows,
            np.array([s.length for s in emitting], dtype=np.int64),
            newest.reshape(len(emitting), 2),
            self._unread(batch, depths),
            depths,
            tokens,
            others,
            self._sampled(emitting),
            np.array([-1 if (top := s.request.sampling.logprobs) is None else top for s in emitting], dtype=np.int64),
            size,
            decision.stop,
            decision.draft_temperature,
            nodes,
            tree if (nodes != depths).any() else None,
        )
        return plan, draft._replace(work=work), begun or caught_up > 0

    def _nodes(self, batch: Batch, tree: TreeTable, depths: IntArray, others: IntArray) -> IntArray:
        """[E] number of nodes of drafts of these depths with branches, as far as the pass and the cache have room."""
        size, cache = len(batch.decoding), self._decoder.cache
        nodes: IntArray = depths.copy()
        branching = np.flatnonzero((depths[:size] > 0) & (tree.width > 1) & (tree.nodes > depths[:size])).tolist()
        share = self._rounds.spare(np.maximum(depths, others)[:size]) // max(len(branching), 1)
        for i in branching:
            sequence = batch.decoding[i]
            row, length = held_row(sequence), sequence.length
            room = min(int(tree.nodes[i]), int(depths[i]) + share, self._rounds.most_nodes, cache.context - length)
            if room > depths[i]:
                nodes[i] = room if self.caches.reserve(row, length + room) else depths[i]
        return nodes

    def _unread(self, batch: Batch, depths: IntArray) -> IntArray:
        runner = self._draft_runner
        if runner is None:
            return depths
        return np.array([min(2, s.length - runner.length(held_row(s))) for s in batch.emitting], dtype=np.int64)

    def _read_prompts(self, batch: Batch, top_logprobs: IntArray) -> None:
        chunks = batch.chunks
        tokens = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]]
        rows, counts, last, fed = (
            np.array(column, dtype=np.int64)
            for column in (
                [held_row(chunk.sequence) for chunk in chunks],
                [chunk.count for chunk in chunks],
                [chunk.last for chunk in chunks],
                tokens,
            )
        )
        packed = Packed(rows, counts, fed, last, prompts=len(rows))
        logits, states = self._decoder.forward(packed)
        if states is not None:
            self._observe_pass(packed, [chunk.start for chunk in chunks], states)
        if len(logits):
            self._rounds.choose_first(logits, len(batch.decoding), top_logprobs[len(batch.decoding) :])

    def _verified(self, running: RunningRound, found: RoundResult) -> VerifiedRound:
        batch, plan, given = running.batch, running.plan, running.draft.tree
        size, chain, by_model = len(batch.decoding), found.counts, plan.depths > 0
        counts = chain + (found.picks >= 0).sum(axis=1)
        width = int(counts.max(initial=0))
        drafter = np.pad(running.drafter, (0, len(chain) - size))
        confidence = np.where(by_model[:, None], found.confidence[:, :width], given.on_chain(given.confidence, width))
        entropy = np.where(by_model[:, None], found.entropy[:, :width], given.on_chain(given.entropy, width))
        tree = packed_tree(found.picks[:, :width], chain, found.drafted[:, :width], (confidence, entropy), drafter)
        broken = by_model[tree.row] & np.isnan(tree.entropy)
        if broken.any():
            tree = tree.keep(~np.isin(tree.row, tree.row[broken]))
        choices = [found.choices[i, : tree.counts[i] + 1] for i in range(size)] + [found.first[size:]]
        result = walk(tree, np.concatenate(choices))
        for i, sequence in enumerate(batch.emitting):
            if sequence.finish is not None:
                continue  # it has ended meanwhile
            if found.bad[i]:
                sequence.fail(NOT_NUMBERS)
            if found.told is not None and plan.told[i] >= 0:
                sequence.scored = _logprobs(found.told[i], result.tokens(tree, i), result.nodes(i), int(plan.told[i]))
            if i < size:
                row = held_row(sequence)
                self._decoder.cache.set_length(row, sequence.length + int(counts[i]))
                if by_model[i] and self._model is not None and self._draft_runner is not None:
                    self._draft_runner.cache.set_length(row, sequence.length + int(chain[i]) - 1)
                    self._model.record_chain(row, sequence.length, found.drafted[i, : chain[i]].tolist())
        if broken.any():  # after lengths were set: it frees the rows
            self._drafters[self._model_number].report_broken(held_row(s) for s in batch.decoding if s.row is not None)
        self._observe(batch, tree, result)
        verify_tokens = int(np.maximum(plan.nodes, plan.counts).sum())
        accepted = np.where(found.bad, 0, result.accepted)
        return VerifiedRound(
            Draft(tree, running.draft.work), replace(result, accepted=accepted), found.seconds, verify_tokens
        )


def _padded_tokens(tree: DraftTree) -> IntArray:
    """The tokens of chains [B, D], padded with 0."""
    tokens: IntArray = np.zeros((len(tree.chain), int(tree.counts.max(initial=0))), dtype=np.int64)
    tokens[tree.row, tree.index] = tree.token
    return tokens


def _unbranched_where_masked(tree: TreeTable, batch: Batch) -> TreeTable:
    """Turn drafts into chains in rows whose masks depend on their text: the device has such masks on chains only."""
    params = [s.request.sampling for s in batch.decoding]
    masked = np.array([sampling.grammar is not None or sampling.min_tokens > 0 for sampling in params], dtype=np.bool_)
    return replace(tree, width=np.where(masked, 1, tree.width))


def _logprobs(table: FloatArray, tokens: Sequence[int], nodes: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log-probabilities of the tokens of a row, from those of its positions [D + 1, 1 + 2 n] (`RoundResult`)."""
    result, max_top = [], table.shape[1] // 2
    for token, entry in zip(tokens, table[[0, *(node + 1 for node in nodes)]].tolist(), strict=True):
        logprobs, alternatives = entry[1 : 1 + top], map(int, entry[1 + max_top : 1 + max_top + top])
        result.append(TokenLogprob(token, entry[0], tuple(zip(alternatives, logprobs, strict=True))))
    return result
