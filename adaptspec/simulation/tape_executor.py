"""What stands in for models in a simulated engine: a tape says what drafts meet, a cost table what passes take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.control.policy import Decision
from adaptspec.control.rows import some
from adaptspec.engine.executor import Kept, Offers, Outcome, Pending
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.scheduler import Batch, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.draft import Draft
from adaptspec.request import Request
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_drafters import TapeModel, TapeModelFree
from adaptspec.simulation.tape_trees import RIGHT, TapeJob, right_path, united_on_tape
from adaptspec.trees import Tree
from adaptspec.types import Completion, Delta, FinishReason, IntArray, SpeculationStats, Timings
from adaptspec.verification.method import Method, VerifyResult


class TapeSequence(Seq):
    """A recorded request on its way through the engine: it counts tokens, and has none."""

    def __init__(self, request: Request, method: Method, tape: Tape, index: int, emitted: int) -> None:
        """Request `index` of the tape, of which so many tokens are there already."""
        self.request = request
        self.method = method
        self.index = index
        self.row = None
        self.finish = None
        self.error = None
        self.max_tokens = int(tape.max_tokens[index])
        self.timings = Timings(arrived=0.0, admitted=None, first_token=None, finished=0.0)
        self._prompt = int(tape.prompt_tokens[index])
        self._whole = int(tape.lengths[index])
        self._emitted, self._gained = emitted, 0
        self._delta = Delta(request.id, "", ())

    @property
    def length(self) -> int:
        return self._prompt + self._emitted

    @property
    def emitted(self) -> int:
        return self._emitted

    def take(self, tokens: list[int], now: float, drafters: Sequence[str] = ()) -> None:  # noqa: ARG002
        self._gained = min(len(tokens), self._whole - self._emitted)
        self._emitted += self._gained
        if self._emitted == self._whole:
            self.finish = FinishReason.LENGTH

    def read(self) -> int:
        return self._gained

    def count_round(self, drafted: int, accepted: int, nodes: int) -> None:
        """See `Sequence.count_round`; nobody reads it here."""

    def delta(self) -> Delta:
        return self._delta

    def completion(self, now: float) -> Completion:  # noqa: ARG002 - nobody reads it here
        finish = self.finish or FinishReason.ABORT
        return Completion(self.request.id, "", (), self._prompt, finish, SpeculationStats(), self.timings)


class TapeInputs(InputProcessor):
    """Makes sequences of recorded requests. `request_of(id)` says which request of the tape goes by an id."""

    def __init__(self, tape: Tape, request_of: Callable[[str], int], *, emitted: int) -> None:
        self._tape = tape
        self._request_of = request_of
        self._emitted = emitted

    def with_task(self, request: Request) -> Request:
        """There is no prompt to read a task off."""
        return request

    def sequence(self, request: Request, method: Method) -> TapeSequence:
        return TapeSequence(request, method, self._tape, self._request_of(request.id), self._emitted)


class TapeCache:
    """The target's cache: how many tokens of each row are in it. There is always room."""

    free_memory = 1.0

    def __init__(self, rows: int) -> None:
        self.lengths = [0] * rows

    def reserve(self, row: int, length: int) -> bool:  # noqa: ARG002 - there is room
        return True

    def length(self, row: int) -> int:
        return self.lengths[row]

    def free(self, row: int) -> None:
        self.lengths[row] = 0


class TapeExecutor:
    """An `Executor` over a tape. `now` are the seconds that have passed, `firsts` the first tokens of prompts read.
    `factors()` multiply a round's drafting, its verify pass and its overhead.
    """

    anticipating = ()
    overlaps = False

    def __init__(
        self,
        tape: Tape,
        costs: MachineCosts,
        drafters: Sequence[str],
        rows: int,
        *,
        catch_up_tokens: int,
        factors: Callable[[], tuple[float, float, float]],
    ) -> None:
        self.drafters = tuple(drafters)
        self.cache = TapeCache(rows)
        self.now, self.firsts = 0.0, 0
        self._tape = tape
        self._costs = costs
        self._drafters = [
            TapeModelFree(tape.views[name], costs.drafters[name].per_row)
            if costs.drafters[name].step is None
            else TapeModel(name, tape.views[name], costs, rows, catch_up_tokens)
            for name in self.drafters
        ]
        self._ngrams = [which for which, drafter in enumerate(self._drafters) if isinstance(drafter, TapeModelFree)]
        self._request: IntArray = np.zeros(rows, dtype=np.int64)  # on the tape, by row
        self._factors = factors
        self._slower = (1.0, 1.0, 1.0)
        self._rows = self._context = self._at = self._request[:0]  # of the decoding rows of this round

    def start(self, sequence: Seq) -> None:
        assert isinstance(sequence, TapeSequence), "made by `TapeInputs`"
        row = held_row(sequence)
        self._request[row] = sequence.index
        self.cache.lengths[row] = sequence.length - 1 if sequence.emitted else 0

    def leave(self, row: int) -> None:
        for drafter in self._drafters:
            drafter.free(row)

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        self._rows = batch.rows[: len(batch.decoding)]
        self._context = np.array([sequence.length for sequence in batch.decoding], dtype=np.int64)
        request = self._request[self._rows]
        self._at = self._tape.offsets[request] + self._context - self._tape.prompt_tokens[request]
        return [drafter.cache_gap(self._rows, self._context) for drafter in self._drafters]

    def offers(self, batch: Batch, most: int, asked: Collection[int]) -> Offers:
        size, stated = len(batch.decoding), None
        found: list[list[int]] = [[0] * size] * len(self._drafters)
        for which in asked if most else ():
            drafter = self._drafters[which]
            if not isinstance(drafter, TapeModelFree):
                continue
            reach = np.minimum(drafter.view.reach[self._at], np.minimum(batch.limits, most))
            found[which] = reach.tolist()
            if drafter.view.top is not None:
                stated = np.full((len(self._drafters), size, most), np.nan) if stated is None else stated
                sure = drafter.stated(self._at, self._tape.offsets[self._request[self._rows] + 1] - 1, most)
                stated[which] = np.where(np.arange(most) < reach[:, None], sure, np.nan)
        return Offers(found, stated)

    def launch(self, batch: Batch, decision: Decision) -> Pending:
        self._slower, union = self._factors(), decision.union
        draft = self._drafted(decision, decision.drafter, decision.depths)
        if union is not None and decision.tree is not None and some(union.depths):
            beside, depths = replace(decision, stop=None, tree=None), decision.tree.within(union.depths)
            free = self._drafted(beside, union.drafter, depths)
            draft = united_on_tape(draft, free, decision.tree, (decision.drafter, union.drafter))
        beyond = len(batch.emitting) - len(batch.decoding)
        return Pending(batch, _padded(draft, beyond) if beyond else draft)

    def _drafted(self, decision: Decision, drafter: IntArray, depths: IntArray) -> Draft:
        """What these drafters draft for the decoding rows, this deep; the time passes."""
        if not some(depths):
            return Draft.empty(len(depths))
        used = sorted(set(drafter[depths > 0].tolist()))
        request = self._request[self._rows]
        end, last = self._tape.offsets[request] + self._tape.lengths[request] - 1, self._tape.offsets[request + 1] - 1
        drafts, spent = [], 0.0
        for which in used:
            mine = depths if len(used) == 1 else np.where(drafter == which, depths, 0)
            job = TapeJob(self._rows, mine, self._context, self._at, end, last, decision.stop, decision.tree)
            draft, seconds = self._drafters[which].propose(job)
            drafts.append(draft)
            spent += seconds
        self.now += spent * self._slower[0]
        whole = drafts[0] if len(drafts) == 1 else Draft.merged(drafts)
        if whole.tree is None:
            return whole
        owners = np.broadcast_to(drafter[:, None], whole.tokens.shape).copy()
        return replace(whole, tree=replace(whole.tree, drafters=owners))

    def finish(self, pending: Pending) -> Outcome:
        batch, draft = pending.batch, pending.draft
        size, costs = len(batch.decoding), self._costs
        tokens = size + int(draft.counts.sum()) + batch.prefill_tokens
        cached = float(self._context.sum()) if costs.per_cached_token else 0.0
        self.now += costs.verify_seconds(size, tokens, cached) * self._slower[1]
        for chunk in batch.chunks:
            self.cache.lengths[held_row(chunk.sequence)] += chunk.count
            self.firsts += chunk.last
        if draft.tree is not None:
            accepted, path = right_path(draft)
            return Outcome(draft, VerifyResult(accepted, np.zeros_like(accepted), path=path))
        right = (draft.tokens >= RIGHT).sum(axis=1)
        return Outcome(draft, VerifyResult(np.minimum(right, draft.counts), np.zeros_like(right)))

    def keep(self, kept: Sequence[Kept]) -> None:
        by_drafter: dict[int, list[tuple[int, int]]] = {}
        for sequence, before, places, drafter in kept:
            row, length = held_row(sequence), before + len(places)
            self.cache.lengths[row] = length
            by_drafter.setdefault(drafter, []).append((row, length))
        by_drafter.pop(-1, None)
        for which, mine in by_drafter.items():
            self._drafters[which].keep(*np.array(mine).T)
        self.now += self._costs.overhead * self._slower[2]

    def shadows(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """See `Executor.shadows`: n-grams are scored where they did not draft themselves."""
        watched = [which for which in self._ngrams if which in decision.watched]
        if not watched or not len(context):
            return None
        gained = np.array([sequence.length for sequence in batch.decoding]) - context
        drafted, accepted = np.full((2, len(self._drafters), len(context)), -1, dtype=np.int64)
        for which in watched:
            idle, view = (decision.drafter != which) | (decision.depths == 0), self._drafters[which].view
            drafted[which] = np.where(idle, np.minimum(view.reach[self._at], gained), -1)
            accepted[which] = np.where(idle, np.minimum(view.run[self._at], gained), -1)
        return drafted, accepted


def _padded(draft: Draft, beyond: int) -> Draft:
    """The same, and so many rows without drafts."""
    rows = ((0, beyond), (0, 0))
    return replace(
        draft,
        tokens=np.pad(draft.tokens, rows),
        counts=np.pad(draft.counts, (0, beyond)),
        confidence=np.pad(draft.confidence, rows, constant_values=np.nan),
        entropy=np.pad(draft.entropy, rows, constant_values=np.nan),
        tree=None if draft.tree is None else _padded_tree(draft.tree, beyond),
    )


def _padded_tree(tree: Tree, beyond: int) -> Tree:
    rows = ((0, beyond), (0, 0))
    parents, ranks, drafters = (np.pad(part, rows) for part in (tree.parents, tree.ranks, tree.drafters))
    return Tree(parents, np.pad(tree.chain, (0, beyond)), ranks, drafters)
