"""Building draft trees: which candidates are submitted, from which nodes drafting goes on, how two drafts merge.

The next candidates after a chain's tokens cost no pass of the draft model. Where the stop table has a price of a step,
drafting also goes on from nodes off the main chain, all nodes of one depth in one pass (a beam).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import isnan, nan
from typing import Any, NamedTuple, Protocol

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree

ROOT = -1  # the number of a row's newest token


class RowNodes:
    """The nodes of one row by number, in the order in which they were drafted: parents come first."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.drafters: list[int] = []
        self.confidence: list[float] = []
        self.entropy: list[float] = []
        self.chances: list[float] = []  # P(the node and all before it are accepted)
        self.chain: list[int] = []  # the main chain
        self.distributions: list[Any] = []

    def add(
        self,
        parent: int,
        token: int,
        *,
        rank: int = 0,
        drafter: int = 0,
        confidence: float = nan,
        entropy: float = nan,
        chance: float = 1.0,
    ) -> int:
        """Add a node and return its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.ranks.append(rank)
        self.drafters.append(drafter)
        self.confidence.append(confidence)
        self.entropy.append(entropy)
        self.chances.append(chance)
        return len(self.tokens) - 1

    @property
    def chain_end(self) -> int:
        """The last node of the main chain."""
        return self.chain[-1] if self.chain else ROOT

    def chance(self, number: int) -> float:
        return 1.0 if number == ROOT else self.chances[number]

    def path(self, number: int) -> list[int]:
        """The tokens on the way to a node, its own the last."""
        path: list[int] = []
        while number != ROOT:
            path.append(self.tokens[number])
            number = self.parents[number]
        return path[::-1]

    def best(self, limit: int) -> list[int]:
        """The main chain, then the likeliest others, `limit` nodes in all; of equal chances the first drafted.

        A node is no likelier than its parent and has a higher number, so no node comes before its parent.
        """
        if len(self.chain) == len(self.tokens):
            return self.chain
        main = set(self.chain)
        others = [number for number in range(len(self.tokens)) if number not in main]
        others.sort(key=lambda number: -self.chances[number])
        return self.chain + others[: max(limit - len(self.chain), 0)]


Candidates = tuple[Iterable[tuple[int, float]], float]
"""Tokens that may follow a node with their confidence, likeliest first; the entropy of what they are drawn from."""


class TreeBuilder:
    """Collects the nodes of several rows and packs those that are submitted."""

    def __init__(self, num_rows: int, table: TreeTable | None = None) -> None:
        """`table` says which candidates are submitted; None: drafts are chains."""
        self.table = table
        self.rows: dict[int, RowNodes] = {}
        self._num_rows = num_rows

    def row(self, row: int) -> RowNodes:
        """The nodes of a row, at first none."""
        return self.rows.get(row) or self.rows.setdefault(row, RowNodes())

    def width(self, row: int) -> int:
        """Children that a node of this row may have."""
        return 1 if self.table is None else int(self.table.width[row])

    def limit(self, row: int) -> int:
        """Nodes that this row submits at most, if its chain is not longer."""
        return len(self.row(row).tokens) if self.table is None else int(self.table.nodes[row])

    def submit(self, row: int, parent: int, candidates: Candidates) -> range:
        """Add the candidates after a node as long as they are likely enough; their numbers.

        The first choice after the main chain is always added: a drawn token must not be dropped for what it is.
        """
        nodes, table, (likely, entropy) = self.row(row), self.table, candidates
        start, before = len(nodes.tokens), nodes.chance(parent)
        on_chain = parent == nodes.chain_end
        for rank, (token, confidence) in zip(range(self.width(row)), likely, strict=False):
            chance = before if table is None else before * calibrated(table, row, rank, confidence)
            if on_chain and not rank:
                nodes.chain.append(start)
            elif table is None or not chance > table.floor[row]:
                break
            nodes.add(parent, token, rank=rank, confidence=confidence, entropy=entropy, chance=chance)
        return range(start, len(nodes.tokens))

    def build(self) -> DraftTree:
        """The submitted nodes of all rows."""
        columns: tuple[list[int], ...] = ([], [], [], [], [])  # tokens, parents, depths, ranks, drafters
        confidence: list[float] = []
        entropy: list[float] = []
        distributions: list[Any] = []
        counts, chain = [0] * (self._num_rows + 1), [0] * self._num_rows
        for row, nodes in sorted(self.rows.items()):
            order = nodes.best(self.limit(row))
            counts[row + 1], chain[row] = len(order), len(nodes.chain)
            index = {number: i for i, number in enumerate(order)} | {ROOT: ROOT}
            depths = {ROOT: 0}
            for number in order:
                parent = nodes.parents[number]
                depths[number] = depths[parent] + 1
                values = (
                    nodes.tokens[number],
                    index[parent],
                    depths[number],
                    nodes.ranks[number],
                    nodes.drafters[number],
                )
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
                confidence.append(nodes.confidence[number])
                entropy.append(nodes.entropy[number])
            distributions += [nodes.distributions[number] for number in order] if nodes.distributions else ()
        token, parent, depth, rank, drafter = np.array(columns, dtype=np.int64)
        return DraftTree(
            np.cumsum(counts),
            np.array(chain, dtype=np.int64),
            token,
            parent,
            depth,
            rank,
            drafter,
            np.array(confidence, dtype=np.float64),
            np.array(entropy, dtype=np.float64),
            np.stack(distributions) if distributions else None,
        )


def calibrated(table: TreeTable, row: int, rank: int, confidence: float) -> float:
    """P(a candidate of this rank is accepted after its parent); 0 if it is unknown or the token was removed."""
    if not confidence > 0.0:
        return 0.0
    _, ranks, bins = table.calibration.shape
    return table.calibration.item(row, min(rank, ranks - 1), min(int(confidence * bins), bins - 1))


class Node(NamedTuple):
    """A node by its row and its number there."""

    row: int
    number: int


class CandidateSource(Protocol):
    """Proposes what follows the nodes of a frontier: a draft model, or a tape."""

    beams: bool  # whether it drafts from nodes off the main chain

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        """What may follow each node of the frontier, which is at depth `step`."""

    def has_room(self, row: int, more: int) -> bool:
        """Whether drafting can go on from `more` further nodes of a row off its main chain."""


class TreeGrowth:
    """Drafts step by step: all nodes of one depth from which drafting goes on share a pass."""

    def __init__(
        self, builder: TreeBuilder, source: CandidateSource, depths: IntArray, ends: Collection[int] = ()
    ) -> None:
        """Rows [B] draft at most `depths` [B] deep, and not beyond one of the tokens `ends`."""
        self._builder, self._source, self._ends = builder, source, ends
        self._depths: list[int] = depths.tolist()
        self._survival = dict.fromkeys(range(len(depths)), 1.0)  # of main chains, by the stop table

    def run(self, rows: Iterable[int], stop: StopTable | None) -> list[int]:
        """Draft for these rows; the number of nodes from which each step drafted."""
        builder, frontiers = self._builder, list[int]()
        frontier = [Node(row, ROOT) for row in rows]
        while frontier:
            proposed = self._source.candidates(frontier, len(frontiers))
            frontiers.append(len(frontier))
            added: list[Node] = []
            for (row, parent), candidates in zip(frontier, proposed, strict=True):
                added += [Node(row, number) for number in builder.submit(row, parent, candidates)]
            frontier = self._expandable(added, len(frontiers), stop)
        return frontiers

    def _expandable(self, added: Sequence[Node], step: int, stop: StopTable | None) -> list[Node]:
        """The nodes of depth `step` from which drafting goes on."""
        rows = self._builder.rows
        going = [
            node
            for node in added
            if self._depths[node.row] > step and rows[node.row].tokens[node.number] not in self._ends
        ]
        if stop is None or not self._source.beams:
            going = [node for node in going if self._on_chain(node)]
        if stop is None or not going:
            return going
        return self._with_room(self._continuing(going, step, stop))

    def _on_chain(self, node: Node) -> bool:
        return self._builder.rows[node.row].chain_end == node.number

    def _continuing(self, going: Sequence[Node], step: int, stop: StopTable) -> list[Node]:
        """Those of the nodes that the stop table lets go on."""
        main = [self._on_chain(node) for node in going]
        index = np.array([row for row, _ in going], dtype=np.int64)
        nodes = [(self._builder.rows[row], number) for row, number in going]
        confidence, entropy = np.array([(own.confidence[n], own.entropy[n]) for own, n in nodes]).T
        chances = stop.chances(step, index, confidence).tolist()
        survival = []
        for (row, _), (own, number), on_chain, chance in zip(going, nodes, main, chances, strict=True):
            if on_chain:
                self._survival[row] *= chance
            survival.append(self._survival[row] if on_chain else own.chances[number])
        on_chains = None if all(main) else np.array(main, dtype=np.bool_)
        continues = stop.continues(step, index, confidence, entropy, survival=np.array(survival), main=on_chains)
        return [node for node, goes in zip(going, continues.tolist(), strict=True) if goes]

    def _with_room(self, going: list[Node]) -> list[Node]:
        """Without nodes off main chains that will not be submitted, or for which their row has no room."""
        side: dict[int, set[int]] = {}
        for node in going:
            if not self._on_chain(node):
                side.setdefault(node.row, set()).add(node.number)
        for row, numbers in side.items():
            kept = numbers.intersection(self._builder.rows[row].best(self._builder.limit(row)))
            if not self._source.has_room(row, len(kept)):
                kept = set()
            going = [node for node in going if node.row != row or node.number not in numbers - kept]
        return going


def merge_drafts(first: DraftTree, extra: DraftTree, table: TreeTable) -> DraftTree:
    """The nodes of two drafts of the same B rows, equal tokens after the same node once.

    Only methods that accept trees may verify it. Main chains are those of `first`, or of `extra` in rows where `first`
    has no nodes. A node of both is the first draft's. A node of `extra` counts only where the first drafter is wrong,
    so its chance is lowered by theirs, and it must be above the floor of the `table`. Beyond the table's limit on nodes
    the least likely are dropped.
    """
    builder, added, gaining = TreeBuilder(len(first.chain), table), False, extra.counts > 0
    for row in np.flatnonzero(gaining).tolist():
        added |= _merge_row(builder.row(row), first, extra, table, row)
    if not added:
        return first
    # Other rows keep the distributions that their tokens were drawn from.
    return DraftTree.merged([first.keep(~gaining[first.row]), builder.build()])


def _merge_row(nodes: RowNodes, first: DraftTree, extra: DraftTree, table: TreeTable, row: int) -> bool:
    """Add the nodes of one row of both drafts; whether `extra` has added any."""
    numbers: dict[tuple[int, int], int] = {}
    right = {ROOT: 0.0}  # P(a child that the first drafter proposed is accepted), by parent
    for parent, token, rank, drafter, confidence, entropy in _nodes(first, row):
        # A drafter that states no confidence counts as certain.
        chance = 1.0 if isnan(confidence) else calibrated(table, row, rank, confidence)
        right[parent] += chance
        number = nodes.add(
            parent,
            token,
            rank=rank,
            drafter=drafter,
            confidence=confidence,
            entropy=entropy,
            chance=nodes.chance(parent) * chance,
        )
        numbers[parent, token], right[number] = number, 0.0
    count = len(nodes.tokens)
    nodes.chain = list(range(int(first.chain[row])))
    of_extra: list[int | None] = []  # the number of each node of `extra`; None: it was left out
    for parent, token, rank, drafter, confidence, entropy in _nodes(extra, row):
        before = ROOT if parent == ROOT else of_extra[parent]
        of_extra.append(None)
        if before is None:
            continue
        stated = nodes.chance(before) * (1.0 if isnan(confidence) else confidence)
        known = numbers.get((before, token))
        if known is not None:
            nodes.chances[known] = max(nodes.chances[known], stated)
            of_extra[-1] = known
            continue
        chance = stated * max(1.0 - right[before], 0.0)
        if count and not chance > table.floor[row]:
            continue
        number = nodes.add(
            before, token, rank=rank, drafter=drafter, confidence=confidence, entropy=entropy, chance=chance
        )
        of_extra[-1] = numbers[before, token] = number
        right[number] = 0.0
    if not count:
        nodes.chain = list(range(int(extra.chain[row])))
    return len(nodes.tokens) > count


def _nodes(tree: DraftTree, row: int) -> Iterable[tuple[int, int, int, int, float, float]]:
    """Parent, token, rank, drafter, confidence and entropy of each node of a row."""
    at = tree.row_nodes(row)
    columns = tree.parent, tree.token, tree.rank, tree.drafter, tree.confidence, tree.entropy
    return zip(*(column[at].tolist() for column in columns), strict=True)
