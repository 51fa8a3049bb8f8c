"""Growing drafts that branch: of each token's candidates the likely ones beside the first, and what follows on those.

The next candidates beside a chain (a comb) cost no pass of the draft model. Where the stop table says what a step
costs, nodes off the main chain are drafted on from too, all nodes of one depth in one pass (a beam). Under the target's
noise g a position's candidates are the largest of log q + g: draws without replacement, a chain's own the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.decision import RowStop, StopTable, TreeTable, draft_temperatures
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.submitted_nodes import best_nodes, submitted
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import entropies, leading, tempered
from adaptspec.progress import report_progress

_ONE: IntArray = np.ones(1, dtype=np.int64)


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

    def __init__(self, table: TreeTable, stop: StopTable | None, row: int, depth: int, base: int) -> None:
        """For a row of `base` tokens, drafted at most `depth` deep."""
        self.row, self.base = row, base
        self.width = int(table.width[row])
        self.most, self.depth = int(table.nodes[row]), depth
        self.stop = None if stop is None else RowStop(stop, row)
        self.floor = float(table.floor[row])
        self._calibration = table.calibration
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.entropy: list[float] = []
        self.chance: list[float] = []  # that all tokens up to it are kept
        self.main: list[int] = []
        self.drafters: list[int] | None = None
        self.fed = FedNodes(self.base, [], [])
        self._places: dict[int, int] = {-1: -1}  # where the nodes that were drafted on from were fed,
        self._sights: list[bytes] = []  # and which of those each sees, a byte for each
        self._straight = True

    def submit(self, before: int, candidates: Iterable[tuple[int, float]], entropy: float) -> range:
        """Take in the candidates after a node, likeliest first, as long as they are likely enough; their numbers.

        Of a chain the first one stays in any case.
        """
        main, alive, first = self.main, 1.0 if before < 0 else self.chance[before], len(self.tokens)
        chain = before == (main[-1] if main else -1)
        for rank, (token, sure) in zip(range(self.width), candidates, strict=False):
            chance = alive * self._calibrated(rank, sure)
            if chain and not rank:
                main.append(first)
            elif not chance > self.floor:
                break
            self.parents.append(before)
            self.ranks.append(rank)
            self.tokens.append(token)
            self.confidence.append(sure)
            self.entropy.append(entropy)
            self.chance.append(chance)
        return range(first, len(self.tokens))

    def _calibrated(self, rank: int, sure: float) -> float:
        """The chance of a candidate of this rank; none without a number, or where it was removed."""
        if not sure > 0.0:
            return 0.0
        _, ranks, bins = (table := self._calibration).shape
        return table.item(self.row, min(rank, ranks - 1), min(int(sure * bins), bins - 1))

    def goes_on(self, steps: int) -> bool:
        """Whether the main chain does, by itself."""
        return self.stop is None or self.stop.goes(steps, self.confidence[self.main[-1]], self.entropy[self.main[-1]])

    def best(self) -> list[int]:
        """What is submitted."""
        return best_nodes(self.main, self.chance, self.most)

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
            at, before = len(self.fed.tokens), self._places[self.parents[number]]
            self._places[number] = at
            self.fed.tokens.append(self.tokens[number])
            self.fed.parents.append(before)
            self._sights.append((self._sights[before] if before >= 0 else b"").ljust(at, b"\0") + b"\1")
            self._straight = self._straight and before == at - 1
        if self._straight:
            return None
        seen = b"".join([line.ljust(len(self._sights), b"\0") for line in self._sights[-len(numbers) :]])
        return np.frombuffer(seen, dtype=np.bool_).reshape(len(numbers), -1)


Nodes = list[tuple[RowTree, int]]
# After a node: tokens that may follow, likeliest first, and how sure of each; the entropy of what they are drawn from.
Candidates = tuple[Iterable[tuple[int, float]], float]


class TreeGrowth:
    """The trees of one round's rows while they grow: what is submitted, and what is drafted on from."""

    def __init__(self, trees: Sequence[RowTree], ends: Collection[int], *, beams: bool) -> None:
        """Nothing is drafted on from at one of the tokens `ends`, nor off main chains without `beams`."""
        self.trees, self._ends, self._beams = trees, ends, beams
        self.fronts: list[int] = []  # nodes that each step has drafted on from

    def candidates(self, front: Nodes, steps: int) -> Sequence[Candidates]:
        """For each node of the front, all `steps` deep."""
        raise NotImplementedError

    def has_room(self, tree: RowTree, more: int) -> bool:
        """Whether so many nodes more can be drafted on from."""
        raise NotImplementedError

    def grow(self, rows: int) -> Draft:
        """Draft, step by step, for some of `rows` rows."""
        front: Nodes = [(tree, -1) for tree in self.trees]
        steps = 0
        while front:
            drawn = self.candidates(front, steps)
            self.fronts.append(len(front))
            steps += 1
            found: Nodes = []
            for (tree, before), (candidates, entropy) in zip(front, drawn, strict=True):
                report_progress()
                found += [(tree, number) for number in tree.submit(before, candidates, entropy)]
            front = self._going(found, steps)
        return submitted(self.trees, rows)

    def _going(self, found: Nodes, steps: int) -> Nodes:
        """Which of the latest nodes are drafted on from: all of them together must earn the step.

        Nodes off the main chain go by the bounds of survival alone: without a price nothing is known to earn more.
        """
        if len(found) == 1 and (tree := found[0][0]).main[-1] == (number := found[0][1]):
            goes = tree.depth > steps and tree.tokens[number] not in self._ends
            return found if goes and tree.goes_on(steps) else []
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
                    above, worth, price = stop.earning(steps, alive, main=main)
                    if not above > 0.0:
                        continue
                    together += worth
            if main or (price >= 0.0 and self._beams):
                going.append((tree, number, price))
        return self._with_room([(tree, number) for tree, number, price in going if together > price])

    def _with_room(self, going: Nodes) -> Nodes:
        """Less the nodes off main chains that will not be submitted, or that their row has no room for."""
        crowded = {id(tree): tree for tree, number in going if tree.main[-1] != number}
        for key, tree in crowded.items():
            best = set(tree.best())
            beside = {number for own, number in going if own is tree and tree.main[-1] != number}
            kept = beside & best
            if not self.has_room(tree, len(kept)):
                kept = set()
            going = [one for one in going if id(one[0]) != key or one[1] not in beside - kept]
        return going


class ModelTrees(TreeGrowth):
    """Trees that a draft model grows."""

    def __init__(
        self, runner: Runner, ends: Collection[int], job: DraftJob, active: IntArray, *, depths: IntArray, first: Packed
    ) -> None:
        """For the active rows [b], `depths` [B] deep; `first` is the pass that reads what came before."""
        assert job.tree is not None
        trees = [RowTree(job.tree, job.stop, row, int(depths[row]), len(job.tokens[row])) for row in active.tolist()]
        super().__init__(trees, ends, beams=runner.info.takes_trees)
        self._runner, self._job, self._first = runner, job, first

    def fed(self) -> dict[int, FedNodes]:
        """What the draft model has read behind the text of each row of its cache."""
        return {int(self._job.rows[tree.row]): tree.fed for tree in self.trees}

    def has_room(self, tree: RowTree, more: int) -> bool:
        """See `TreeGrowth.has_room`. What the main chain may come to stays reserved."""
        needed = tree.base + tree.depth + len(tree.fed.tokens) + more
        return needed <= self._runner.info.context and self._runner.reserve(int(self._job.rows[tree.row]), needed)

    def candidates(self, front: Nodes, steps: int) -> Sequence[Candidates]:
        """See `TreeGrowth.candidates`: one pass reads the whole front."""
        job = self._job
        logits = self._runner.forward(self._packed(front) if steps else self._first).logits
        index = np.array([tree.row for tree, _ in front], dtype=np.int64)
        offsets = np.full(len(front), steps, dtype=np.int64)
        scores = job.sampling.process(logits, index, [tree.path(number) for tree, number in front])
        spread, drawn_from = entropies(scores), scores
        if job.draft_temperature is not None:
            drawn_from = tempered(scores, draft_temperatures(job.draft_temperature[index], spread))
        perturbed = job.sampling.perturbed(drawn_from, index, offsets)
        tokens, confidence = leading(perturbed, max(tree.width for tree, _ in front))
        drawn = zip(tokens.tolist(), confidence.tolist(), spread.tolist(), strict=True)
        return [(zip(line, shares, strict=True), entropy) for line, shares, entropy in drawn]

    def _packed(self, front: Nodes) -> Packed:
        """The pass that reads the front, whose nodes are in order of their rows."""
        if len(front) == 1:
            tree, number = front[0]
            sight = tree.feed([number])
            tokens = np.array([tree.tokens[number]])
            return Packed(
                self._job.rows[tree.row : tree.row + 1], _ONE, tokens, _ONE, None if sight is None else [sight]
            )
        rows: dict[int, list[int]] = {}
        trees = {tree.row: tree for tree, _ in front}
        for tree, number in front:
            rows.setdefault(tree.row, []).append(number)
        counts = np.array([len(numbers) for numbers in rows.values()], dtype=np.int64)
        tokens = np.array([tree.tokens[number] for tree, number in front], dtype=np.int64)
        seen = [trees[row].feed(numbers) for row, numbers in rows.items()]
        branching = any(one is not None for one in seen)
        return Packed(self._job.rows[list(rows)], counts, tokens, counts, seen if branching else None)
