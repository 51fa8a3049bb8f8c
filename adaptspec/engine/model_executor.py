"""Drafts and verifies with models in this process; rows may use different drafters and methods."""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.decision import Decision, TreeTable, Union
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob, NodeChoices, RowStart
from adaptspec.drafting.fault_guard import GuardedDrafter
from adaptspec.drafting.tree_builder import merge_drafts
from adaptspec.engine.executor import CommittedTokens, LaunchedRound, Lookups, VerifiedRound
from adaptspec.engine.logprobs import output_logprobs, take_prompt_logprobs
from adaptspec.engine.row_caches import RowCaches
from adaptspec.engine.scheduler import Batch, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.async_runner import AsyncTarget, Mark
from adaptspec.models.grammars import Constraint
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import PendingChoices, RowSampling, SamplingBatch
from adaptspec.progress import report_progress
from adaptspec.rounds import DraftWork
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import Method, Positions, VerifyResult, walk

_log = logging.getLogger(__name__)
NOT_NUMBERS = "the model's scores for it were not numbers (NaN or infinite)"


class _TargetPass(NamedTuple):
    """A pass of the target over drafts and prompt chunks.

    `choices`: the tokens chosen at the positions [N + E] of emitting rows, if all of them are chosen on the device.
    """

    logits: torch.Tensor
    choices: PendingChoices | None = None


@dataclass(frozen=True)
class _RunningRound(LaunchedRound):
    """A round whose target pass was launched on a device. `marks`: before drafting, between, and after the pass."""

    target_pass: _TargetPass
    marks: tuple[Mark, Mark, Mark]


class ModelExecutor:
    """An `Executor` over a target and drafters.

    `launch` drafts and `finish` verifies. On a device, `launch` also launches the target's pass and the choice of
    tokens, for which `finish` waits.
    """

    overlaps = False

    def __init__(self, target: Runner, drafters: Sequence[Drafter], max_rows: int | None = None) -> None:
        """`max_rows`: the most requests at a time, which a target on a device must know; None: it works as on a CPU."""
        self._target = target
        self._device = target if max_rows is not None and isinstance(target, AsyncTarget) else None
        self._chooser = None if self._device is None or max_rows is None else self._device.make_chooser(max_rows)
        if self._device is not None:
            self.overlaps = True
        self._drafters = [GuardedDrafter(drafter) for drafter in drafters]
        self._names = tuple(drafter.name for drafter in drafters)
        self._models = {number: drafter for number, drafter in enumerate(self._drafters) if drafter.runs_model}
        self._model_free = {number: drafter for number, drafter in enumerate(self._drafters) if not drafter.runs_model}
        self.caches = RowCaches(target, list(self._models.values()))
        self._observing = {number for number, one in enumerate(self._drafters) if one.learns_from_choices}
        self._sampling: tuple[list[RowSampling], SamplingBatch] | None = None

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._names

    @property
    def anticipating(self) -> tuple[str, ...]:
        return tuple(drafter.name for drafter in self._drafters if not drafter.non_anticipating)

    def start(self, sequence: Seq) -> None:
        start = RowStart(sequence.sampling, sequence.prediction, sequence.scope, sequence.method.shares_noise)
        for drafter in self._drafters:
            report_progress()
            drafter.start(held_row(sequence), start)

    def leave(self, row: int) -> None:
        self._sampling = None  # the last batch holds the grammar of the request that has ended
        for drafter in self._drafters:
            drafter.leave(row)

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        gaps = [[0] * len(batch.decoding)] * len(self._drafters)
        for number, drafter in self._models.items():
            gaps[number] = [drafter.cache_gap(held_row(s), s.length) for s in batch.decoding]
        return gaps

    def look_up(self, batch: Batch, max_depth: int, drafters: Collection[int]) -> Lookups:
        size = len(batch.decoding)
        found, confidence = [[0] * size] * len(self._drafters), None
        for number, model in self._models.items():
            model.activate(active=number in drafters)
        for number in drafters if max_depth else ():
            drafter = self._model_free.get(number)
            if drafter is None:
                continue
            report_progress()
            looked_up = [
                drafter.look_up(held_row(s), s.tokens, min(limit, max_depth))
                for s, limit in zip(batch.decoding, batch.limits, strict=True)
            ]
            found[number] = list(map(len, looked_up))
            if confidence is None:
                confidence = np.full((len(self._drafters), size, max_depth), np.nan)
            for padded, values in zip(confidence[number], looked_up, strict=True):
                padded[: len(values)] = values
        return Lookups(found, confidence)

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        if self._device is None:
            return LaunchedRound(batch, self._draft(batch, decision))
        begun = self._device.mark()
        draft = self._draft(batch, decision)
        drafted = self._device.mark()
        target_pass = self._run_target(batch, draft.tree)
        return _RunningRound(batch, draft, target_pass, (begun, drafted, self._device.mark()))

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        batch, draft = launched.batch, launched.draft
        if not isinstance(launched, _RunningRound):
            return VerifiedRound(draft, self._verify(batch, draft.tree, self._run_target(batch, draft.tree)))
        result = self._verify(batch, draft.tree, launched.target_pass)
        begun, drafted, ended = launched.marks
        return VerifiedRound(draft, result, (drafted.seconds_since(begun), ended.seconds_since(drafted)))

    def _draft(self, batch: Batch, decision: Decision) -> Draft:
        """Drafts of E rows."""
        takes_trees = self._target.info.takes_trees
        table = decision.tree if takes_trees else None
        draft = self._propose(batch, decision, decision.drafter, decision.depths, table=table)
        if table is not None and decision.union is not None:
            draft = self._with_lookups(batch, decision, draft, table, decision.union)
        tree = draft.tree if takes_trees else draft.tree.main_chains()
        constraints = [sequence.sampling.constraint for sequence in batch.emitting]
        if len(tree.token) and any(constraints):
            tree = drop_refused(tree, constraints)
        return draft._replace(tree=self._within_room(batch, tree) if tree.branched else tree)

    def _with_lookups(self, batch: Batch, decision: Decision, draft: Draft, table: TreeTable, union: Union) -> Draft:
        """Merge the chains of the union's lookups into the draft, in rows that may branch or have no other draft."""
        may_add = (table.width > 1) | (decision.depths == 0)
        may_add &= [sequence.method.takes_trees for sequence in batch.decoding]
        depths = table.within(np.where(may_add, np.minimum(union.depths, batch.limits), 0))
        extra = self._propose(batch, replace(decision, stop=None), union.drafter, depths, table=None)
        if not len(extra.tree.token):
            return draft._replace(work=(*draft.work, *extra.work))
        try:
            return Draft(merge_drafts(draft.tree, extra.tree, table), (*draft.work, *extra.work))
        except Exception:  # noqa: BLE001 - a failure costs drafts, never answers
            _log.exception("two drafts could not be merged; only the first one is used")
            return draft

    def _propose(
        self, batch: Batch, decision: Decision, drafters: IntArray, depths: IntArray, *, table: TreeTable | None
    ) -> Draft:
        """Draft with `drafters` [B] up to `depths` [B]. Rows of the same drafter and method draft together."""
        emitting = batch.emitting
        if not depths.any():
            return Draft(DraftTree.empty(len(emitting)))
        if len(emitting) > len(depths):  # rows whose prompt ends in this round draft nothing
            depths, drafters = (np.pad(part, (0, len(emitting) - len(depths))) for part in (depths, drafters))
        groups = list(zip(drafters.tolist(), [s.method for s in emitting], strict=True))
        used = dict.fromkeys(groups[i] for i in np.flatnonzero(depths))
        parts = []
        for number, method in used:
            report_progress()
            group_depths = (
                depths if len(used) == 1 else np.where([group == (number, method) for group in groups], depths, 0)
            )
            group_table = table if method.takes_trees else None
            parts.append(self._propose_group(batch, decision, (number, method), group_depths, table=group_table))
        tree = parts[0].tree if len(parts) == 1 else DraftTree.merged([part.tree for part in parts])
        tree = replace(tree, drafter=drafters[tree.row])
        return Draft(tree, tuple(work for part in parts for work in part.work))

    def _propose_group(
        self, batch: Batch, decision: Decision, group: tuple[int, Method], depths: IntArray, *, table: TreeTable | None
    ) -> Draft:
        """Draft with one drafter for rows of one method; rows with depth 0 in `depths` [E] are skipped."""
        (number, method), sampling = group, self._sampled(batch.emitting)
        job = DraftJob(
            batch.rows,
            [s.tokens for s in batch.emitting],
            depths if table is None else table.within(depths),
            sampling,
            shares_noise=method.shares_noise,
            keep_distribution=method.needs_distribution and not sampling.plain_greedy,
            stop=decision.stop,
            # Without effect if every row takes the likeliest token.
            draft_temperature=None if sampling.plain_greedy else decision.draft_temperature,
            tree=table,
        )
        draft = self._drafters[number].propose(job)
        if number in self._model_free:
            draft = draft._replace(work=(DraftWork(self._names[number], int(np.count_nonzero(depths))),))
        return draft

    def _within_room(self, batch: Batch, tree: DraftTree) -> DraftTree:
        """Drop side nodes for which there is no room in the cache, or in the widest pass of a graph.

        Room for main chains is already reserved.
        """
        counts, chain = tree.counts.tolist(), tree.chain.tolist()
        fitting = list(counts)
        most = max(counts)
        if self._device is not None and self._device.widest is not None:
            num_branching = sum(count > length for count, length in zip(counts, chain, strict=True))
            most = max(0, self._device.widest - len(chain) - sum(chain)) // max(num_branching, 1)
        for i, sequence in enumerate(batch.decoding):
            if counts[i] > chain[i]:
                info = self._target.info
                room = min(info.context - sequence.length, info.max_nodes or counts[i], chain[i] + most)
                fitting[i] = max(min(counts[i], room), chain[i])  # the least likely nodes are last
                if not self.caches.reserve(held_row(sequence), sequence.length + fitting[i]):
                    fitting[i] = chain[i]
        return tree if fitting == counts else tree.first(np.array(fitting, dtype=np.int64))

    def _run_target(self, batch: Batch, draft: DraftTree) -> _TargetPass:
        """Run the target, or launch its pass on a device."""
        report_progress()
        packed = _packed(batch, draft)
        logits, states = self._target.forward(packed)
        if states is not None:
            starts = [s.length - 1 for s in batch.decoding] + [chunk.start for chunk in batch.chunks]
            self._observe_pass(packed, starts, states)
        emitting = batch.emitting
        is_coupled = all(sequence.method == Coupled() for sequence in emitting)
        if self._chooser is None or not emitting or not is_coupled or any(chunk.scored for chunk in batch.chunks):
            return _TargetPass(logits)
        at = Positions.of(draft)
        return _TargetPass(logits, self._chooser.start(logits, self._sampled(emitting), at.row, at.paths))

    def _verify(self, batch: Batch, draft: DraftTree, target_pass: _TargetPass) -> VerifyResult:
        logits, choices = target_pass
        emitting = batch.emitting
        if choices is None:
            logits, broken = zero_broken_logits(take_prompt_logprobs(batch, logits), draft.counts)
            result = self._verify_rows(emitting, logits, draft)
        else:
            chosen = choices.wait()
            broken = _owners(draft.counts, ~np.isfinite(chosen.entropy))
            result = walk(draft, chosen.tokens[:, 0])
        if len(broken):
            for i in broken.tolist():
                emitting[i].fail(NOT_NUMBERS)
            whole = np.isin(np.arange(len(emitting)), broken, invert=True)
            result = replace(result, accepted=np.where(whole, result.accepted, 0))
        output_logprobs(emitting, logits, draft, result)
        self._observe(batch, draft, result)
        return result

    def _observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        for drafter in self._models.values():
            drafter.observe_pass(packed, starts, states)

    def _observe(self, batch: Batch, draft: DraftTree, result: VerifyResult) -> None:
        """Pass the target's choices after their nodes to the drafters that learn from them."""
        if not self._observing or result.choices is None or not len(draft.token):
            return
        for i, sequence in enumerate(batch.decoding):
            if sequence.row is None:
                continue  # its request has ended while the round ran
            at = draft.row_nodes(i)
            for number in self._observing.intersection(draft.drafter[at].tolist()):
                choices = result.choices[at.start + i : at.stop + i + 1].tolist()
                self._drafters[number].observe(held_row(sequence), NodeChoices(draft, i, choices))

    def commit(self, committed: Sequence[CommittedTokens]) -> None:
        accepted = [(held_row(tokens.sequence), tokens.nodes) for tokens in committed]
        for model in self._models.values():
            model.observe_commit(accepted)
        for sequence, length, nodes, drafter in committed:
            report_progress()
            row, valid = held_row(sequence), length + len(nodes)
            if nodes and nodes[-1] >= len(nodes):
                self._target.keep(row, length, nodes)
            else:
                self._target.truncate(row, valid)
            if drafter >= 0:
                self._drafters[drafter].commit(row, valid, sequence.tokens)

    def score_lookups(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """See `Executor.score_lookups`. Only model-free drafters are scored, which costs almost no time."""
        watched = [number for number in decision.watched if number in self._model_free]
        if not watched:
            return None
        depths, drafter = decision.depths.tolist(), decision.drafter.tolist()
        drafted, right = np.full((2, len(self._drafters), len(depths)), -1, dtype=np.int64)
        known = False
        for number in watched:
            for i, sequence in enumerate(batch.decoding):
                if sequence.row is not None and (not depths[i] or drafter[i] != number):
                    row, start = int(batch.rows[i]), int(context[i])
                    drafted[number, i], right[number, i] = self._model_free[number].score(row, sequence.tokens, start)
                    known = True
        return (drafted, right) if known else None

    def _sampled(self, emitting: Sequence[Seq]) -> SamplingBatch:
        """The sampling of the batch; rebuilt only if its members change."""
        rows, last = [sequence.sampling for sequence in emitting], self._sampling
        if last is not None and len(last[0]) == len(rows) and all(map(operator.is_, last[0], rows)):
            return last[1]
        batch = SamplingBatch(rows, self._target.info.vocab_size, chooser=self._chooser)
        self._sampling = rows, batch
        return batch

    def _verify_rows(self, emitting: Sequence[Seq], logits: torch.Tensor, draft: DraftTree) -> VerifyResult:
        """Verify each row by its own method. `logits` [N + E, V] are of all packed positions."""
        methods, sampling = [s.method for s in emitting], self._sampled(emitting)
        used = list(dict.fromkeys(methods))
        if len(used) == 1:
            return used[0].verify(logits, draft, sampling)
        accepted, next_token = np.zeros((2, len(methods)), dtype=np.int64)
        path = np.full((len(methods), int(draft.depths.max(initial=0))), -1)
        choices = np.full(len(logits), -1, dtype=np.int64)
        for method in used:
            report_progress()
            uses_method = np.array([row_method == method for row_method in methods])
            rows, positions = np.flatnonzero(uses_method), np.repeat(uses_method, draft.counts + 1)
            at = torch.from_numpy(positions).to(logits.device)
            part = method.verify(logits[at], draft.take(rows), sampling.take(rows))
            accepted[rows], next_token[rows] = part.accepted, part.next_token
            path[rows, : part.path.shape[1]] = part.path
            if part.choices is not None:
                choices[positions] = part.choices
        return VerifyResult(accepted, next_token, path, choices)


def _packed(batch: Batch, draft: DraftTree) -> Packed:
    """The newest token and the draft of each decoding row, and chunks of prompts."""
    tokens: list[int] = []
    rows, counts, wanted = [], [], []
    visible: list[BoolArray | None] = []
    drafted, offsets = draft.token.tolist(), draft.offsets.tolist()
    for i, sequence in enumerate(batch.decoding):
        start, end = offsets[i : i + 2]
        tokens.append(sequence.tokens[-1])
        tokens += drafted[start:end]
        rows.append(sequence.row)
        counts.append(end - start + 1)
        wanted.append(end - start + 1)
    if draft.branched:
        visible = [*map(draft.visible, range(len(rows))), *[None] * len(batch.chunks)]
    for chunk in batch.chunks:
        tokens += chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
        rows.append(chunk.sequence.row)
        counts.append(chunk.count)
        wanted.append(chunk.count if chunk.scored else int(chunk.last))
    packed_rows, sizes, fed, num_logits = (np.array(part, dtype=np.int64) for part in (rows, counts, tokens, wanted))
    return Packed(packed_rows, sizes, fed, num_logits, visible or None, prompts=len(batch.chunks))


def drop_refused(draft: DraftTree, constraints: Sequence[Constraint | None]) -> DraftTree:
    """Drop nodes that the row's grammar refuses, before the target spends a pass on them.

    Draft models sample from masked scores, but n-gram drafters ignore grammars. A refused token has probability 0, and
    the matcher cannot compute masks after it. Outputs do not change under any lossless method: `coupled` rejects the
    token anyway, and an n-gram's token is a point mass, which is always rejected.
    """
    kept: BoolArray = np.ones(len(draft.token), dtype=np.bool_)
    for i, constraint in enumerate(constraints):
        if constraint is not None:
            start = int(draft.offsets[i])
            for path in draft.leaf_paths(i):
                report_progress()
                nodes = start + np.array(path, dtype=np.int64)
                kept[nodes[constraint.valid(draft.token[nodes].tolist()) :]] = False
    return draft.keep(kept)


def zero_broken_logits(logits: torch.Tensor, counts: IntArray) -> tuple[torch.Tensor, IntArray]:
    """Replace the logits of rows with NaN or infinite values by zeros, so that they can be verified with the others.
    Returns the logits and those rows.

    Row i of the round has counts[i] + 1 of the logits [sum(counts + 1), V].
    """
    # The maximum is NaN if a logit is NaN, inf if one is inf, -inf if all are masked.
    best = logits.numpy().max(axis=1) if logits.is_cpu else logits.amax(1).cpu().numpy()
    broken = _owners(counts, ~np.isfinite(best))
    if not len(broken):
        return logits, broken
    rows = np.repeat(np.arange(len(counts)), counts + 1)
    zeroed = logits.clone()
    zeroed[torch.from_numpy(np.isin(rows, broken)).to(logits.device)] = 0.0
    return zeroed, broken


def _owners(counts: IntArray, marked: BoolArray) -> IntArray:
    """The rows that have one of the `marked` positions [sum(counts + 1)]; row i has counts[i] + 1 of them."""
    owners: IntArray = np.unique(np.repeat(np.arange(len(counts)), counts + 1)[marked])
    return owners
