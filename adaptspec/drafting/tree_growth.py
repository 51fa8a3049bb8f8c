"""Growing drafts that branch: of each token's candidates the likely ones beside the first, and what follows on those.

The next candidates beside a chain (a comb) cost no pass of the draft model. Where the stop table says what a step
costs, nodes off the main chain are drafted on from too, all nodes of one depth in one pass (a beam). Under the target's
noise g a position's candidates are the largest of log q + g: draws without replacement, a chain's own the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adaptspec.decision_tables import RowStop, TreeTable
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.draft import Draft
from adaptspec.models.processors import NO_PATHS, Paths
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import entropies, leading, tempered, top_candidates
from adaptspec.types import BoolArray, IntArray, Tree

_NOBODY: IntArray = np.zeros(0, dtype=np.int64)


class FedNodes(NamedTuple):
    """Drafted tokens that a draft model has read behind the first `base` of a row, parents first; None: a chain."""

    base: int
    tokens: list[int]
    parents: list[int] | None = None  # place of the token before each; -1: the last of those `base`

    def kept(self, text: Sequence[int]) -> list[int]:
        """The places of those with which the text went on behind `base`, as far as they go."""
        path: list[int] = []
        if self.parents is None:
            for place, (own, token) in enumerate(zip(self.tokens, text, strict=False)):
                if own != token:
                    break
                path.append(place)
            return path
        after = {pair: place for place, pair in enumerate(zip(self.parents, self.tokens, strict=True))}
        place = -1
        for token in text:
            place = after.get((place, token), -1)
            if place < 0:
                break
            path.append(place)
        return path


class RowTree:
    """One row's nodes, in the order they were drafted in. Number -1 stands for its newest token."""

    def __init__(self, job: DraftJob, table: TreeTable, row: int, depth: int) -> None:
        self.row, self.base = row, len(job.tokens[row])
        self.width = int(table.width[row])
        self.most, self.depth = int(table.nodes[row]), depth
        self.stop = None if job.stop is None else RowStop(job.stop, row)
        self.floor = float(table.floor[row])
        self._calibration: list[list[float]] = table.calibration[row].tolist()
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.entropy: list[float] = []
        self.chance: list[float] = []  # that all tokens up to it are kept
        self.main: list[int] = []
        self.fed = FedNodes(self.base, [], [])
        self._places: dict[int, int] = {-1: -1}  # where the nodes that were drafted on from were fed

    def submit(self, before: int, tokens: list[int], confidence: list[float], entropy: float) -> list[int]:
        """Take in the candidates after a node that are likely enough, and a chain's own in any case; their numbers."""
        chain = before == (self.main[-1] if self.main else -1)
        alive = 1.0 if before < 0 else self.chance[before]
        first = len(self.tokens)
        for rank, (token, sure) in enumerate(zip(tokens[: self.width], confidence, strict=False)):
            known = self._calibration[min(rank, len(self._calibration) - 1)]
            # Without a number there is no chance; what scores -inf was removed, and has none.
            chance = alive * known[min(int(sure * len(known)), len(known) - 1)] if sure > 0.0 else 0.0
            if rank == 0 and chain:
                self.main.append(len(self.tokens))
            elif not (sure > 0.0 and chance > self.floor):
                continue
            self.parents.append(before)
            self.ranks.append(rank)
            self.tokens.append(token)
            self.confidence.append(sure)
            self.entropy.append(entropy)
            self.chance.append(chance)
        return list(range(first, len(self.tokens)))

    def best(self) -> list[int]:
        """What is submitted: the main chain, then the likeliest others within the ceiling, parents first.

        A node is no likelier than its parent, and comes later, so that no child stays without one.
        """
        main = set(self.main)
        others = [number for number in range(len(self.tokens)) if number not in main]
        others.sort(key=lambda number: -self.chance[number])
        return self.main + others[: max(self.most - len(self.main), 0)]

    def path(self, number: int) -> list[int]:
        """The tokens up to a node, itself last."""
        way: list[int] = []
        while number >= 0:
            way.append(self.tokens[number])
            number = self.parents[number]
        return way[::-1]

    def feed(self, numbers: Sequence[int]) -> BoolArray | None:
        """Note that these nodes are fed now; which of the tokens fed so far each sees, None while that is a chain."""
        assert self.fed.parents is not None
        for number in numbers:
            self._places[number] = len(self.fed.tokens)
            self.fed.tokens.append(self.tokens[number])
            self.fed.parents.append(self._places[self.parents[number]])
        total = len(self.fed.tokens)
        parents = self.fed.parents
        if parents == list(range(-1, total - 1)):
            return None
        seen = np.zeros((len(numbers), total), dtype=np.bool_)
        for line, number in zip(seen, numbers, strict=True):
            place = self._places[number]
            while place >= 0:
                line[place] = True
                place = parents[place]
        return seen


_Nodes = list[tuple[RowTree, int]]


class TreeGrowth:
    """The trees of one round's rows while they grow."""

    def __init__(self, runner: Runner, ends: Collection[int], job: DraftJob, table: TreeTable) -> None:
        """Nothing is drafted on from at one of the tokens `ends`."""
        self._runner, self._ends, self._job, self._table = runner, ends, job, table
        self._trees: list[RowTree] = []

    def grow(self, active: IntArray, depths: IntArray, packed: Packed, caught_up: int) -> Draft:
        """Draft from the logits of `packed` on, which are those of the active rows [b], `depths` [B] deep."""
        self._trees = [RowTree(self._job, self._table, row, int(depths[row])) for row in active.tolist()]
        front: _Nodes = [(tree, -1) for tree in self._trees]
        steps = 0
        while front:
            tokens, confidence, entropy = self._draw(packed, front, steps)
            steps += 1
            found: _Nodes = []
            for i, (tree, before) in enumerate(front):
                numbers = tree.submit(before, tokens[i], confidence[i], entropy[i])
                found += [(tree, number) for number in numbers]
            front = self._going(found, steps)
            packed = self._packed(front)
        return self._draft(steps, caught_up)

    def fed(self) -> dict[int, FedNodes]:
        """What the draft model has read behind the text of each row of its cache."""
        return {int(self._job.rows[tree.row]): tree.fed for tree in self._trees}

    def _draw(
        self, packed: Packed, front: _Nodes, steps: int
    ) -> tuple[list[list[int]], list[list[float]], list[float]]:
        """For each node of the front the likeliest candidates, how sure it was of each, and its entropy."""
        job, logits = self._job, self._runner.forward(packed)
        width = max(tree.width for tree, _ in front)
        if job.sampling.plain_greedy:
            scores = drawn_from = job.sampling.process(logits, _NOBODY, _NOBODY, NO_PATHS)
            if len(front) == 1 and scores.is_cpu:
                candidates = top_candidates(scores.numpy()[0], width)
                return [candidates[0]], [candidates[1]], [candidates[2]]
        else:
            index = np.array([tree.row for tree, _ in front], dtype=np.int64)
            offsets = np.full(len(front), steps, dtype=np.int64)
            paths = np.array([tree.path(number) for tree, number in front], dtype=np.int64).reshape(len(front), steps)
            scores = drawn_from = job.sampling.process(logits, index, offsets, Paths(paths, np.arange(len(front))))
            if job.temperature is not None:
                drawn_from = tempered(scores, job.temperature.at(index, entropies(scores)))
            drawn_from = job.sampling.perturbed(drawn_from, index, offsets)
        tokens, confidence = leading(drawn_from, width)
        return tokens.tolist(), confidence.tolist(), entropies(scores).tolist()

    def _going(self, found: _Nodes, steps: int) -> _Nodes:
        """Which of the latest nodes are drafted on from: all of them together must earn the step.

        Nodes off the main chain go by the bounds of survival alone: without a price nothing is known to earn more.
        """
        going: list[tuple[RowTree, int, float]] = []  # and the price that what they earn must be above
        together = 0.0
        for tree, number in found:
            main, stop = tree.main[-1] == number, tree.stop
            if tree.depth <= steps or tree.tokens[number] in self._ends:
                continue
            price = -1.0
            if stop is not None:
                if not stop.within(steps, tree.confidence[number], tree.entropy[number]):
                    continue
                if stop.priced:
                    alive = stop.follow(steps, tree.confidence[number]) if main else tree.chance[number]
                    above, worth, price = stop.earning(steps, alive)
                    if not above > 0.0:
                        continue
                    together += worth
            if main or (price >= 0.0 and self._runner.info.takes_trees):
                going.append((tree, number, price))
        return self._with_room([(tree, number) for tree, number, price in going if together > price])

    def _with_room(self, going: _Nodes) -> _Nodes:
        """Less the nodes off main chains that will not be submitted, or that their row has no room for."""
        crowded = {id(tree): tree for tree, number in going if tree.main[-1] != number}
        for key, tree in crowded.items():
            best = set(tree.best())
            beside = {number for own, number in going if own is tree and tree.main[-1] != number}
            kept = beside & best
            # What the main chain may come to stays reserved.
            needed = tree.base + tree.depth + len(tree.fed.tokens) + len(kept)
            if needed > self._runner.info.context or not self._runner.reserve(int(self._job.rows[tree.row]), needed):
                kept = set()
            going = [one for one in going if id(one[0]) != key or one[1] not in beside - kept]
        return going

    def _packed(self, front: _Nodes) -> Packed:
        """The pass that reads the front, whose nodes are in order of their rows."""
        rows: dict[int, tuple[RowTree, list[int]]] = {}
        for tree, number in front:
            rows.setdefault(tree.row, (tree, []))[1].append(number)
        counts = np.array([len(numbers) for _, numbers in rows.values()], dtype=np.int64)
        tokens = np.array([tree.tokens[number] for tree, number in front], dtype=np.int64)
        seen = [tree.feed(numbers) for tree, numbers in rows.values()]
        branching = any(one is not None for one in seen)
        return Packed(self._job.rows[list(rows)], counts, tokens, counts, seen if branching else None)

    def _draft(self, steps: int, caught_up: int) -> Draft:
        """What is submitted of it all."""
        return replace(submitted(self._trees, len(self._job.rows)), steps=steps, caught_up=caught_up)


def submitted(trees: Iterable[RowTree], rows: int) -> Draft:
    """A draft for `rows` rows of what the trees of some of them submit; chains, where nothing branches."""
    orders = [(tree, tree.best()) for tree in trees]
    draft = Draft.empty(rows, max((len(order) for _, order in orders), default=0))
    tree = Tree.of_chains(draft.counts, draft.tokens.shape[1], np.zeros_like(draft.counts))
    branching = False
    for own, order in orders:
        row, count = own.row, len(order)
        draft.tokens[row, :count] = [own.tokens[number] for number in order]
        draft.confidence[row, :count] = [own.confidence[number] for number in order]
        draft.entropy[row, :count] = [own.entropy[number] for number in order]
        draft.counts[row], tree.chain[row] = count, len(own.main)
        if count > len(own.main):
            branching, places = True, {number: place for place, number in enumerate(order)} | {-1: -1}
            tree.parents[row, :count] = [places[own.parents[number]] for number in order]
            tree.ranks[row, :count] = [own.ranks[number] for number in order]
    return replace(draft, tree=tree if branching else None)
