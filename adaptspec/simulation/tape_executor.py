"""The executor of a simulated engine: a tape holds the outcome of drafts, a machine the seconds of passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.decision import Decision, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting import tree_builder
from adaptspec.drafting.drafter import Draft
from adaptspec.engine.executor import CommittedTokens, LaunchedRound, Lookups, VerifiedRound
from adaptspec.engine.scheduler import Batch, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_drafters import RIGHT, TapeJob, TapeLookup, TapeModel
from adaptspec.verification.method import VerifyResult


class TapeCache:
    """The target's cache: the number of cached tokens of each row. There is always room, and nothing is shared."""

    def __init__(self, rows: int) -> None:
        self.lengths = [0] * rows
        self.evict: Callable[[], bool] = bool

    def share_of(self, rows: Collection[int]) -> float:  # noqa: ARG002 - there is room
        return 0.0

    def copy_prefix(self, source: int, target: int, length: int) -> int:  # noqa: ARG002 - a tape has no texts
        return 0

    def reserve(self, row: int, length: int) -> bool:  # noqa: ARG002 - there is room
        return True

    def length(self, row: int) -> int:
        return self.lengths[row]

    def free(self, row: int) -> None:
        self.lengths[row] = 0


class TapeExecutor:
    """An `Executor` over a tape. `now` counts the seconds of passes, `firsts` the first tokens of prompts read.

    `request_of(id)` is the index on the tape of a request. `factors()` multiply a round's drafting, its verify pass and
    its overhead.
    """

    anticipating = ()
    overlaps = False

    def __init__(
        self,
        tape: Tape,
        machine: Machine,
        drafters: Sequence[str],
        rows: int,
        *,
        catch_up_tokens: int,
        request_of: Callable[[str], int],
        factors: Callable[[], tuple[float, float, float]],
    ) -> None:
        self.drafters = tuple(drafters)
        self.caches = TapeCache(rows)
        self.now, self.firsts = 0.0, 0
        self._tape = tape
        self._machine = machine
        self._request_of = request_of
        self._factors = factors
        self._round_factors = (1.0, 1.0, 1.0)
        self._lookups = {
            number: TapeLookup(name, tape.views[name], machine.drafters[name].per_row)
            for number, name in enumerate(self.drafters)
            if machine.drafters[name].step is None
        }
        self._drafters = [
            self._lookups.get(number) or TapeModel(name, tape.views[name], machine, rows, catch_up_tokens)
            for number, name in enumerate(self.drafters)
        ]
        self._requests: IntArray = np.zeros(rows, dtype=np.int64)  # index on the tape, by row
        self._batch: Batch | None = None
        # Of the emitting rows of that batch, [E]: cached text, its next position on the tape, and their requests.
        self._context = self._at = self._request = self._requests[:0]

    def start(self, sequence: Seq) -> None:
        row = held_row(sequence)
        self._requests[row] = self._request_of(sequence.request.id)
        self.caches.lengths[row] = sequence.length - 1 if sequence.emitted else 0

    def leave(self, row: int) -> None:
        for drafter in self._drafters:
            drafter.free(row)

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        self._locate(batch)
        size = len(batch.decoding)
        return [drafter.cache_gap(batch.rows[:size], self._context[:size]) for drafter in self._drafters]

    def look_up(self, batch: Batch, max_depth: int, drafters: Collection[int]) -> Lookups:
        self._locate(batch)
        size, confidence = len(batch.decoding), None
        found: list[list[int]] = [[0] * size] * len(self._drafters)
        for number in drafters if max_depth else ():
            lookup = self._lookups.get(number)
            if lookup is None:
                continue
            reach = np.minimum(lookup.view.reach[self._at[:size]], np.minimum(batch.limits, max_depth))
            found[number] = reach.tolist()
            if lookup.view.top is not None:
                if confidence is None:
                    confidence = np.full((len(self._drafters), size, max_depth), np.nan)
                last = self._tape.offsets[self._request[:size] + 1] - 1
                stated = lookup.confidence(self._at[:size], last, max_depth)
                confidence[number] = np.where(np.arange(max_depth) < reach[:, None], stated, np.nan)
        return Lookups(found, confidence)

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        self._locate(batch)
        self._round_factors = self._factors()
        draft = self._drafted(batch, decision, decision.drafter, decision.depths)
        union, tree = decision.union, decision.tree
        if union is not None and tree is not None and union.depths.any():
            chains = replace(decision, stop=None, tree=None)
            extra = self._drafted(batch, chains, union.drafter, tree.within(union.depths))
            draft = merge_drafts(draft, extra, tree)
        return LaunchedRound(batch, draft)

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        batch, tree = launched.batch, launched.draft.tree
        size = len(batch.decoding)
        tokens = size + len(tree.token) + batch.prefill_tokens
        cached = float(self._context[:size].sum())
        self.now += self._machine.verify_seconds(size, tokens, cached) * self._round_factors[1]
        for chunk in batch.chunks:
            self.caches.lengths[held_row(chunk.sequence)] += chunk.count
            self.firsts += chunk.last
        accepted, path = right_path(tree)
        return VerifiedRound(launched.draft, VerifyResult(accepted, np.zeros_like(accepted), path))

    def commit(self, committed: Sequence[CommittedTokens]) -> None:
        by_drafter: dict[int, list[tuple[int, int]]] = {}
        for sequence, before, nodes, drafter in committed:
            row, length = held_row(sequence), before + len(nodes)
            self.caches.lengths[row] = length
            by_drafter.setdefault(drafter, []).append((row, length))
        by_drafter.pop(-1, None)
        for drafter, lengths in by_drafter.items():
            self._drafters[drafter].keep(*np.array(lengths).T)
        self.now += self._machine.overhead * self._round_factors[2]

    def score_lookups(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """See `Executor.score_lookups`: lookups are scored where they did not draft themselves."""
        watched = [number for number in self._lookups if number in decision.watched]
        size = len(context)
        if not watched or not size:
            return None
        gained = np.array([sequence.length for sequence in batch.decoding]) - context
        drafted, accepted = np.full((2, len(self._drafters), size), -1, dtype=np.int64)
        for number in watched:
            idle = (decision.drafter != number) | (decision.depths == 0)
            view, at = self._lookups[number].view, self._at[:size]
            drafted[number] = np.where(idle, np.minimum(view.reach[at], gained), -1)
            accepted[number] = np.where(idle, np.minimum(view.run[at], gained), -1)
        return drafted, accepted

    def _locate(self, batch: Batch) -> None:
        """Find the tape's positions of a new batch."""
        if batch is self._batch:
            return
        self._batch = batch
        self._request = self._requests[batch.rows]
        self._context = np.array([sequence.length for sequence in batch.emitting], dtype=np.int64)
        self._at = self._tape.offsets[self._request] + self._context - self._tape.prompt_tokens[self._request]

    def _drafted(self, batch: Batch, decision: Decision, drafter: IntArray, depths: IntArray) -> Draft:
        """The drafts of these drafters [B] for the decoding rows, `depths` [B] deep; their time passes."""
        emitting, size = len(batch.emitting), len(batch.decoding)
        if not depths.any():
            return Draft(DraftTree.empty(emitting))
        if emitting > size:  # rows whose prompt ends in this round draft nothing
            drafter, depths = (np.pad(part, (0, emitting - size)) for part in (drafter, depths))
        tape, request = self._tape, self._request
        job = TapeJob(
            batch.rows,
            depths,
            self._context,
            self._at,
            end=tape.offsets[request] + tape.lengths[request] - 1,
            last=tape.offsets[request + 1] - 1,
            decoding=size,
            stop=decision.stop,
            tree=decision.tree,
        )
        drafts, spent = [], 0.0
        for number in sorted(set(drafter[depths > 0].tolist())):
            draft, seconds = self._drafters[number].propose(replace(job, depths=np.where(drafter == number, depths, 0)))
            drafts.append(draft)
            spent += seconds
        self.now += spent * self._round_factors[0]
        tree = DraftTree.merged([draft.tree for draft in drafts]) if len(drafts) > 1 else drafts[0].tree
        work = tuple(work for draft in drafts for work in draft.work)
        return Draft(replace(tree, drafter=drafter[tree.row]), work)


def right_path(tree: DraftTree) -> tuple[IntArray, IntArray]:
    """The number of right nodes of each row [B], and their indices [B, deepest], parents first, -1 beyond them.

    At most one node of each depth is right, as equal tokens after the same node are one node.
    """
    right = np.flatnonzero(tree.token >= RIGHT)
    accepted = np.bincount(tree.row[right], minlength=len(tree.chain))
    path = np.full((len(accepted), int(accepted.max(initial=0))), -1)
    path[tree.row[right], tree.depth[right] - 1] = tree.index[right]
    return accepted, path


def merge_drafts(draft: Draft, extra: Draft, table: TreeTable) -> Draft:
    """The nodes of two drafts for the same rows; see `tree_builder.merge_drafts`.

    Right tokens of both are the same nodes. Wrong ones count as different, as a tape holds no tokens.
    """
    first = replace(draft.tree, token=np.minimum(draft.tree.token, RIGHT))
    second = replace(extra.tree, token=np.where(extra.tree.token >= RIGHT, RIGHT, -1))
    return Draft(tree_builder.merge_drafts(first, second, table), (*draft.work, *extra.work))
