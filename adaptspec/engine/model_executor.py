"""Drafting and verifying with models in this process, whatever mix of drafters and methods the rows use."""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.decision import Decision, TreeTable, Union
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter, DraftJob, ModelFreeDrafter, Observing, RowStart
from adaptspec.drafting.isolated_drafter import IsolatedDrafter, isolated
from adaptspec.drafting.united_drafts import united
from adaptspec.engine.committed_states import CommittedStates
from adaptspec.engine.executor import Kept, Offers, Outcome, Pending
from adaptspec.engine.row_caches import RowCaches
from adaptspec.engine.scheduler import Batch, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.draft import Draft, NodeChoices
from adaptspec.models.grammars import Constraint
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.progress import report_progress
from adaptspec.results import TokenLogprob
from adaptspec.rounds import DraftWork
from adaptspec.verification.method import VerifyResult, window_starts

_log = logging.getLogger(__name__)
NOT_NUMBERS = "the model's scores for it were not numbers (NaN or infinite)"


class ModelExecutor:
    """An `Executor` over a target and drafters: `launch` drafts, `finish` verifies."""

    overlaps = False
    runs_whole_drafts = False  # whether stopping a draft early saves none of its passes

    def __init__(self, target: Runner, drafters: Sequence[Drafter]) -> None:
        self._target = target
        self._drafters: list[IsolatedDrafter] = [isolated(drafter) for drafter in drafters]
        self._names = tuple(drafter.name for drafter in drafters)
        self._model_free = {
            i: drafter for i, drafter in enumerate(self._drafters) if isinstance(drafter, ModelFreeDrafter)
        }
        self.caches = RowCaches(target, [one for i, one in enumerate(self._drafters) if i not in self._model_free])
        head = next((d for d in drafters if isinstance(d, DraftModelDrafter) and d.head), None)
        self._head = -1 if head is None else drafters.index(head)
        self._states = None if head is None or head.head is None else CommittedStates(head.head)
        self._observing = {i for i, drafter in enumerate(drafters) if isinstance(drafter, Observing)}
        self._sampling: tuple[list[RowSampling], SamplingBatch] | None = None

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._names

    @property
    def anticipating(self) -> tuple[str, ...]:
        return tuple(drafter.name for drafter in self._drafters if not drafter.non_anticipating)

    def start(self, sequence: Seq) -> None:
        start = RowStart(sequence.sampling, sequence.prediction, sequence.scope, sequence.method.shares_noise)
        for drafter in self._model_free.values():
            report_progress()
            drafter.begin(held_row(sequence), start)

    def leave(self, row: int) -> None:
        self._sampling = None  # of the round before, which holds the grammar of the request that has ended
        for drafter in self._model_free.values():
            drafter.free(row)
        if self._states is not None:
            self._states.free(row)

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        lines = [[0] * len(batch.decoding)] * len(self._drafters)
        for which, drafter in enumerate(self._drafters):
            if which not in self._model_free:
                lines[which] = [drafter.cache_gap(held_row(s), s.length) for s in batch.decoding]
        return lines

    def offers(self, batch: Batch, most: int, asked: Collection[int]) -> Offers:
        size = len(batch.decoding)
        found, stated = [[0] * size] * len(self._drafters), None
        if self._states is not None:
            self._states.active = self._head in asked
        for which, drafter in self._model_free.items() if most else ():
            report_progress()
            if which in asked:
                offers = [
                    drafter.offer(held_row(s), s.tokens, min(limit, most))
                    for s, limit in zip(batch.decoding, batch.limits, strict=True)
                ]
                found[which] = list(map(len, offers))
                stated = np.full((len(self._drafters), size, most), np.nan) if stated is None else stated
                for line, sure in zip(stated[which], offers, strict=True):
                    line[: len(sure)] = sure
        return Offers(found, stated)

    def launch(self, batch: Batch, decision: Decision) -> Pending:
        return Pending(batch, self._draft(batch, decision))

    def finish(self, pending: Pending) -> Outcome:
        return Outcome(pending.draft, self._verify(pending.batch, pending.draft))

    def _draft(self, batch: Batch, decision: Decision) -> Draft:
        """Drafts of E rows. Rows of one drafter that are judged alike draft together."""
        emitting, tree = batch.emitting, decision.tree if self._target.info.takes_trees else None
        free = None if tree is None or decision.union is None else self._beside(batch, decision, tree, decision.union)
        if decision.depths.any():
            draft = self._propose(batch, decision, decision.drafter, decision.depths, tree=tree)
        else:
            draft = Draft.empty(len(emitting))
        if free is not None and tree is not None and decision.union is not None:
            who = _padded(decision.drafter, len(emitting)), _padded(decision.union.drafter, len(emitting))
            try:
                draft = united(draft, free, tree, who)
            except Exception:  # noqa: BLE001 - a failure costs drafts, never answers
                _log.exception("two drafts could not be united; the first one stays")
        if not self._target.info.takes_trees:
            draft = draft.straight()
        constraints = [sequence.sampling.constraint for sequence in emitting]
        if draft.counts.any() and any(constraints):
            draft = cut_refused(draft, constraints)
        return draft if draft.tree is None else self._fitted(batch, draft)

    def _beside(self, batch: Batch, decision: Decision, tree: TreeTable, union: Union) -> Draft | None:
        """What the free drafters of a union add: chains, where drafts may branch or nobody else drafts."""
        may = (tree.width > 1) | (decision.depths == 0)
        may &= [sequence.method.takes_trees for sequence in batch.decoding]
        depths = tree.within(np.where(may, np.minimum(union.depths, batch.limits), 0))
        if not depths.any():
            return None
        return self._propose(batch, replace(decision, stop=None), union.drafter, depths, tree=None)

    def _propose(
        self, batch: Batch, decision: Decision, drafter: IntArray, depths: IntArray, *, tree: TreeTable | None
    ) -> Draft:
        """What these drafters [B] draft so deep [B] for the decoding rows, where methods allow it by the tree table."""
        emitting = batch.emitting
        if len(emitting) > len(depths):
            depths, drafter = _padded(depths, len(emitting)), _padded(drafter, len(emitting))
        sampling, methods = self._sampled(emitting), [s.method for s in emitting]
        lanes = [(int(which), how) for which, how in zip(drafter, methods, strict=True)]
        used = dict.fromkeys(lanes[i] for i in np.flatnonzero(depths))
        parts = []
        for which, how in used:
            report_progress()
            mine = depths if len(used) == 1 else np.where([one == (which, how) for one in lanes], depths, 0)
            branching = tree if how.takes_trees else None
            job = DraftJob(
                batch.rows,
                [s.tokens for s in emitting],
                mine if branching is None else branching.within(mine),
                sampling,
                shares_noise=how.shares_noise,
                keep_distribution=how.needs_distribution and not sampling.plain_greedy,
                stop=decision.stop,
                # Nothing can be gained where every row takes the likeliest token.
                draft_temperature=None if sampling.plain_greedy else decision.draft_temperature,
                tree=branching,
            )
            part = self._drafters[which].propose(job)
            if which in self._model_free:
                part = replace(part, work=(DraftWork(self._names[which], int(np.count_nonzero(mine))),))
            parts.append(part)
        return _owned(parts[0] if len(parts) == 1 else Draft.merged(parts), drafter)

    def _fitted(self, batch: Batch, draft: Draft) -> Draft:
        """The draft without the branches for which there is no room: it was made for the depths, which chains need."""
        wanted, chain = draft.counts.tolist(), draft.chain.tolist()
        counts = list(wanted)
        for i, sequence in enumerate(batch.decoding):
            if counts[i] > chain[i]:
                room = self._target.info.context - sequence.length  # what comes last is least likely
                counts[i] = max(min(counts[i], room), chain[i])
                if not self.caches.reserve(held_row(sequence), sequence.length + counts[i]):
                    counts[i] = chain[i]
        return draft if counts == wanted else draft.cut(np.array(counts, dtype=np.int64))

    def _verify(self, batch: Batch, draft: Draft) -> VerifyResult:
        report_progress()
        packed = _packed(batch, draft)
        logits, states = self._target.forward(packed)
        if self._states is not None:
            starts = [s.length - 1 for s in batch.decoding] + [chunk.start for chunk in batch.chunks]
            self._states.on_pass(packed, starts, states)
        logits, broken = zero_broken_logits(score_prompts(batch, logits), draft.counts)
        emitting = batch.emitting
        verdict = self._judge(emitting, logits, draft)
        if len(broken):
            for i in broken.tolist():
                emitting[i].fail(NOT_NUMBERS)
            whole = np.isin(np.arange(len(emitting)), broken, invert=True)
            verdict = replace(verdict, accepted=np.where(whole, verdict.accepted, 0))
        score_output(emitting, logits, draft, verdict)
        self._observe(batch, draft, verdict)
        return verdict

    def _observe(self, batch: Batch, draft: Draft, verdict: VerifyResult) -> None:
        """Tell drafters that ask for it what the target chose after their nodes."""
        tree, choices = draft.tree, verdict.choices
        if tree is None or choices is None or not self._observing:
            return
        start = 0
        for i, (sequence, owners) in enumerate(zip(batch.decoding, tree.drafters.tolist(), strict=False)):
            count = int(draft.counts[i])
            # A request may have gone while its round ran.
            for which in self._observing.intersection(owners[:count]) if sequence.row is not None else ():
                known = NodeChoices(draft, i, choices[start : start + count + 1].tolist())
                self._drafters[which].absorb(held_row(sequence), known)
            start += count + 1

    def keep(self, kept: Sequence[Kept]) -> None:
        if self._states is not None:
            self._states.commit((held_row(one.sequence), one.places) for one in kept)
        for sequence, length, places, drafter in kept:
            report_progress()
            row, valid = held_row(sequence), length + len(places)
            if places and places[-1] >= len(places):
                self._target.keep(row, length, places)
            else:
                self._target.truncate(row, valid)
            if drafter >= 0:
                self._drafters[drafter].commit(row, valid, sequence.tokens)

    def shadows(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """See `Executor.shadows`: model-free drafters tell for next to nothing."""
        watched = [which for which in decision.watched if which in self._model_free]
        if not watched:
            return None
        depths, drafter = decision.depths.tolist(), decision.drafter.tolist()
        drafted, accepted = np.full((2, len(self._drafters), len(depths)), -1, dtype=np.int64)
        known = False
        for which in watched:
            for i, sequence in enumerate(batch.decoding):
                if sequence.row is not None and (not depths[i] or drafter[i] != which):
                    row, start = int(batch.rows[i]), int(context[i])
                    drafted[which, i], accepted[which, i] = self._model_free[which].shadow(row, sequence.tokens, start)
                    known = True
        return (drafted, accepted) if known else None

    def _sampled(self, emitting: Sequence[Seq]) -> SamplingBatch:
        """How the batch draws tokens, made anew only when its members change."""
        rows, last = [sequence.sampling for sequence in emitting], self._sampling
        if last is not None and len(last[0]) == len(rows) and all(map(operator.is_, last[0], rows)):
            return last[1]
        batch = SamplingBatch(rows, self._target.info.vocab_size)
        self._sampling = rows, batch
        return batch

    def _judge(self, emitting: Sequence[Seq], logits: torch.Tensor, draft: Draft) -> VerifyResult:
        """Verify each row by its own method. `logits` [sum(counts + 1), V]."""
        methods, sampling = [s.method for s in emitting], self._sampled(emitting)
        used = list(dict.fromkeys(methods))
        if len(used) == 1:
            return used[0].verify(logits, draft, sampling)
        accepted, following = np.zeros_like(draft.counts), np.zeros_like(draft.counts)
        path = np.broadcast_to(np.arange(draft.tokens.shape[1]), draft.tokens.shape).copy()
        choices = np.full(len(logits), -1, dtype=np.int64)
        for how in used:
            report_progress()
            judged = np.array([one == how for one in methods])
            mine = np.flatnonzero(judged)
            own = np.repeat(judged, draft.counts + 1)
            part = how.verify(logits[torch.from_numpy(own).to(logits.device)], draft.take(mine), sampling.take(mine))
            accepted[mine], following[mine] = part.accepted, part.following
            if part.path is not None:
                path[mine, : part.path.shape[1]] = part.path
            if part.choices is not None:
                choices[own] = part.choices
        if draft.tree is None:
            return VerifyResult(accepted, following)
        path[np.arange(path.shape[1]) >= accepted[:, None]] = -1
        return VerifyResult(accepted, following, path=path, choices=choices)


def _padded(values: IntArray, rows: int) -> IntArray:
    """For the decoding rows, and nothing for those whose prompt ends in this round."""
    return np.pad(values, (0, rows - len(values)))


def _owned(draft: Draft, drafter: IntArray) -> Draft:
    """The draft, the nodes of each row marked as those of its drafter [B]."""
    if draft.tree is not None:
        draft.tree.drafters[:] = drafter[:, None]
    return draft


def _packed(batch: Batch, draft: Draft) -> Packed:
    """The newest token and the draft of each decoding row, and chunks of prompts."""
    tokens: list[int] = []
    rows, counts, wanted = [], [], []
    seen: list[BoolArray | None] = []
    for i, sequence in enumerate(batch.decoding):
        count = int(draft.counts[i])
        tokens.append(sequence.tokens[-1])
        tokens.extend(draft.tokens[i, :count].tolist())
        rows.append(sequence.row)
        counts.append(count + 1)
        wanted.append(count + 1)
        if draft.tree is not None:
            seen.append(draft.tree.seen(i, count))
    for chunk in batch.chunks:
        tokens.extend(chunk.sequence.tokens[chunk.start : chunk.start + chunk.count])
        rows.append(chunk.sequence.row)
        counts.append(chunk.count)
        wanted.append(chunk.count if chunk.scored else int(chunk.last))
    who, sizes, fed, asked = (np.array(part, dtype=np.int64) for part in (rows, counts, tokens, wanted))
    branches = None if draft.tree is None else [*seen, *[None] * len(batch.chunks)]
    return Packed(who, sizes, fed, asked, branches, prompts=len(batch.chunks))


def cut_refused(draft: Draft, constraints: Sequence[Constraint | None]) -> Draft:
    """The draft, each row cut to what its grammar takes, before the target spends a pass on what cannot be kept.

    An n-gram drafter knows no grammar; a draft model draws from masked scores already. A refused token has probability
    0, and what follows it has no mask: the matcher cannot read on. Under every lossless method this changes no output:
    `coupled` would reject the token anyway, and an n-gram's token is a point mass, so leaving it out is leaving out
    what is sure to fail.
    """
    refused = np.zeros(draft.tokens.shape, dtype=np.bool_)
    for i, constraint in enumerate(constraints):
        if constraint is not None:
            for path in draft.paths(i):
                report_progress()
                taken = constraint.valid(draft.tokens[i, path].tolist())
                refused[i, path[taken:]] = True
    return draft.without(refused) if refused.any() else draft


def zero_broken_logits(logits: torch.Tensor, counts: IntArray) -> tuple[torch.Tensor, IntArray]:
    """Logits that can be judged, and the rows whose own could not: theirs are zeros now, so that others do not suffer.

    Row i of the round owns counts[i] + 1 of the logits [sum(counts + 1), V].
    """
    # NaN if one of them is, -inf if none is left, inf if one cannot be compared.
    best = logits.numpy().max(axis=1) if logits.is_cpu else logits.amax(1).cpu().numpy()
    bad = ~np.isfinite(best)
    if not bad.any():
        return logits, np.zeros(0, dtype=np.int64)
    owners = np.repeat(np.arange(len(counts)), counts + 1)
    broken = np.unique(owners[bad])
    mended = logits.clone()
    mended[torch.from_numpy(np.isin(owners, broken)).to(logits.device)] = 0.0
    return mended, broken


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], most: int) -> list[TokenLogprob]:
    """What `logits` [N, V] say of N tokens, with the `most` likeliest alternatives at each."""
    if not tokens:
        return []
    shares = logits.float().log_softmax(1)
    own = shares.gather(1, torch.tensor(tokens, device=shares.device).unsqueeze(1)).squeeze(1).tolist()
    best = torch.topk(shares, min(most, shares.shape[1]), dim=1)
    tops = [
        tuple(zip(row, values, strict=True))
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [TokenLogprob(*entry) for entry in zip(tokens, own, tops, strict=True)]


def score_output(emitting: Sequence[Seq], logits: torch.Tensor, draft: Draft, verdict: VerifyResult) -> None:
    """Before commit: score what each request is about to gain. `logits` are what was verified, [sum(counts + 1), V].

    After it would be too late: a round that fails in between leaves tokens whose logits are gone.
    """
    asking = [(i, s) for i, s in enumerate(emitting) if s.request.sampling.logprobs is not None]
    if not asking:
        return
    starts = window_starts(draft.counts).tolist()
    for i, sequence in asking:
        report_progress()
        places = verdict.places(i)
        tokens = [*draft.tokens[i, places].tolist(), int(verdict.following[i])]
        rows = logits[[starts[i], *(starts[i] + 1 + place for place in places)]]
        sequence.scored = token_logprobs(rows, tokens, sequence.request.sampling.logprobs or 0)


def score_prompts(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """Score prompt tokens, and return the logits of what emits alone. Scored chunks bring all of theirs.

    A prompt that is read again, its request having given way, is not scored twice.
    """
    if not batch.chunks:
        return logits
    chunks = batch.chunks
    if not any(chunk.scored for chunk in chunks):
        return logits
    at = len(logits) - sum(chunk.count if chunk.scored else chunk.last for chunk in chunks)
    kept = list(range(at))
    for chunk in chunks:
        report_progress()
        width = chunk.count if chunk.scored else int(chunk.last)
        if chunk.last:
            kept.append(at + width - 1)
        if chunk.scored:
            sequence = chunk.sequence
            first = max(chunk.start, len(sequence.prompt_logprobs))
            targets = sequence.tokens[first + 1 : min(chunk.start + width + 1, sequence.prompt_length)]
            rows = logits[at + first - chunk.start : at + first - chunk.start + len(targets)]
            sequence.prompt_logprobs += token_logprobs(rows, targets, sequence.request.sampling.prompt_logprobs or 0)
        at += width
    return logits[torch.from_numpy(np.array(kept, dtype=np.int64)).to(logits.device)]
