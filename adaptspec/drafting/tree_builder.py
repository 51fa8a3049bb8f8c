"""Building draft trees: which candidates are submitted, which nodes are expanded, how two drafts are merged.

Siblings of a chain's tokens cost no pass of the draft model. With a stop table that prices a step, nodes off the main
chain are expanded too, all nodes of one depth in one pass (a beam).
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
        """The tokens on the path to a node, inclusive."""
        path: list[int] = []
        while number != ROOT:
            path.append(self.tokens[number])
            number = self.parents[number]
        return path[::-1]

    def best(self, limit: int) -> list[int]:
        """The main chain, then the likeliest other nodes, `limit` nodes in total. Ties go to the node drafted first.

        A node is at most as likely as its parent and has a higher number, so no node comes before its parent.
        """
        if len(self.chain) == len(self.tokens):
            return self.chain
        main = set(self.chain)
        others = [number for number in range(len(self.tokens)) if number not in main]
        others.sort(key=lambda number: -self.chances[number])
        return self.chain + others[: max(limit - len(self.chain), 0)]


Candidates = tuple[Iterable[tuple[int, float]], float]
"""(token, confidence) of the candidates after a node, likeliest first, and the entropy of their distribution."""


class TreeBuilder:
    """Collects the nodes of several rows and packs the submitted ones into a `DraftTree`."""

    def __init__(self, num_rows: int, table: TreeTable | None = None) -> None:
        """`table` decides which candidates are submitted; None: drafts are chains."""
        self.table = table
        self.rows: dict[int, RowNodes] = {}
        self._num_rows = num_rows

    def row(self, row: int) -> RowNodes:
        """The nodes of a row, initially none."""
        return self.rows.get(row) or self.rows.setdefault(row, RowNodes())

    def width(self, row: int) -> int:
        """Maximum number of children of a node of this row."""
        return 1 if self.table is None else int(self.table.width[row])

    def limit(self, row: int) -> int:
        """Maximum number of nodes that this row submits, unless its main chain is longer."""
        return len(self.row(row).tokens) if self.table is None else int(self.table.nodes[row])

    def submit(self, row: int, parent: int, candidates: Candidates) -> range:
        """Add candidates after a node while they are likely enough; return the numbers of the new nodes.

        The first choice after the main chain is always added: a sampled token must not be dropped because of its value
        (see `Drafter.propose`).
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
    """P(a candidate is accepted if its parent is); 0 if its confidence is unknown or 0 (removed by sampling rules)."""
    if not confidence > 0.0:
        return 0.0
    _, ranks, bins = table.calibration.shape
    return table.calibration.item(row, min(rank, ranks - 1), min(int(confidence * bins), bins - 1))


class Node(NamedTuple):
    """A node by its row and its number within the row."""

    row: int
    number: int


class CandidateSource(Protocol):
    """Proposes candidates after the nodes of a frontier: a draft model, or a tape."""

    beams: bool  # whether it can expand nodes off the main chain
    lag: int  # steps that are computed already when it is decided whether a draft goes on

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        """Candidates after each node of the frontier, which is at depth `step`."""

    def has_room(self, row: int, more: int) -> bool:
        """Whether the cache has room to expand `more` further nodes of a row off its main chain."""


class TreeGrowth:
    """Drafts step by step: all expanded nodes of one depth share a pass."""

    def __init__(
        self, builder: TreeBuilder, source: CandidateSource, depths: IntArray, eos_token_ids: Collection[int] = ()
    ) -> None:
        """Rows [B] draft at most `depths` [B] deep, and not beyond one of `eos_token_ids`."""
        self._builder, self._source, self._eos_token_ids = builder, source, eos_token_ids
        self._depths: list[int] = depths.tolist()
        self._survival = dict.fromkeys(range(len(depths)), 1.0)  # P(the whole main chain is accepted), by row

    def run(self, rows: Iterable[int], stop: StopTable | None) -> list[int]:
        """Draft for `rows`; return the number of expanded nodes of each step."""
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
        """The nodes of depth `step` that are expanded."""
        rows = self._builder.rows
        frontier = [
            node
            for node in added
            if self._depths[node.row] > step and rows[node.row].tokens[node.number] not in self._eos_token_ids
        ]
        if stop is None or not self._source.beams:
            frontier = [node for node in frontier if self._on_chain(node)]
        if stop is None or not frontier:
            return frontier
        return self._with_room(self._continuing(frontier, step, stop))

    def _on_chain(self, node: Node) -> bool:
        return self._builder.rows[node.row].chain_end == node.number

    def _continuing(self, frontier: Sequence[Node], step: int, stop: StopTable) -> list[Node]:
        """The nodes that the stop table does not stop."""
        main = [self._on_chain(node) for node in frontier]
        index = np.array([row for row, _ in frontier], dtype=np.int64)
        nodes = [(self._builder.rows[row], number) for row, number in frontier]
        confidence, entropy = np.array([(of_row.confidence[n], of_row.entropy[n]) for of_row, n in nodes]).T
        chances = stop.chances(step, index, confidence).tolist()
        survival = []
        for (row, _), (of_row, number), on_chain, chance in zip(frontier, nodes, main, chances, strict=True):
            if on_chain:
                self._survival[row] *= chance
            survival.append(self._survival[row] if on_chain else of_row.chances[number])
        on_chains = None if all(main) else np.array(main, dtype=np.bool_)
        expected = np.array(survival)
        if self._source.lag:  # tokens under way are taken to be as likely as those before them
            expected **= (step + self._source.lag) / step
        continues = stop.continues(step, index, confidence, entropy, survival=expected, main=on_chains)
        return [node for node, expand in zip(frontier, continues.tolist(), strict=True) if expand]

    def _with_room(self, frontier: list[Node]) -> list[Node]:
        """Remove nodes off the main chains that will not be submitted, or for which the cache has no room."""
        side: dict[int, set[int]] = {}
        for node in frontier:
            if not self._on_chain(node):
                side.setdefault(node.row, set()).add(node.number)
        for row, numbers in side.items():
            kept = numbers.intersection(self._builder.rows[row].best(self._builder.limit(row)))
            if not self._source.has_room(row, len(kept)):
                kept = set()
            frontier = [node for node in frontier if node.row != row or node.number not in numbers - kept]
        return frontier


def merge_drafts(first: DraftTree, extra: DraftTree, table: TreeTable) -> DraftTree:
    """Merge two drafts of the same B rows; equal tokens after the same node become one node.

    Only methods that accept trees may verify the result. Main chains are those of `first`, or of `extra` in rows where
    `first` has no nodes. A node of both drafts keeps the data of `first`. A node of `extra` helps only if all siblings
    of `first` are wrong, so its chance is multiplied by the probability of that. It must exceed the floor of `table`.
    Beyond the table's limit on nodes the least likely are dropped.
    """
    builder, added, gaining = TreeBuilder(len(first.chain), table), False, extra.counts > 0
    for row in np.flatnonzero(gaining).tolist():
        added |= _merge_row(builder.row(row), first, extra, table, row)
    if not added:
        return first
    # Other rows keep the distributions that their tokens were drawn from.
    return DraftTree.merged([first.keep(~gaining[first.row]), builder.build()])


def _merge_row(nodes: RowNodes, first: DraftTree, extra: DraftTree, table: TreeTable, row: int) -> bool:
    """Add the nodes of one row of both drafts; return whether `extra` has added any."""
    numbers: dict[tuple[int, int], int] = {}
    first_chance = {ROOT: 0.0}  # P(a child that the first drafter proposed is accepted), by parent
    for parent, token, rank, drafter, confidence, entropy in _nodes(first, row):
        # Unknown confidence counts as certainty.
        chance = 1.0 if isnan(confidence) else calibrated(table, row, rank, confidence)
        first_chance[parent] += chance
        number = nodes.add(
            parent,
            token,
            rank=rank,
            drafter=drafter,
            confidence=confidence,
            entropy=entropy,
            chance=nodes.chance(parent) * chance,
        )
        numbers[parent, token], first_chance[number] = number, 0.0
    count = len(nodes.tokens)
    nodes.chain = list(range(int(first.chain[row])))
    merged_numbers: list[int | None] = []  # of each node of `extra`; None: it was omitted
    for parent, token, rank, drafter, confidence, entropy in _nodes(extra, row):
        merged_parent = ROOT if parent == ROOT else merged_numbers[parent]
        merged_numbers.append(None)
        if merged_parent is None:
            continue
        path_chance = nodes.chance(merged_parent) * (1.0 if isnan(confidence) else confidence)
        known = numbers.get((merged_parent, token))
        if known is not None:
            nodes.chances[known] = max(nodes.chances[known], path_chance)
            merged_numbers[-1] = known
            continue
        chance = path_chance * max(1.0 - first_chance[merged_parent], 0.0)
        if count and not chance > table.floor[row]:
            continue
        number = nodes.add(
            merged_parent, token, rank=rank, drafter=drafter, confidence=confidence, entropy=entropy, chance=chance
        )
        merged_numbers[-1] = numbers[merged_parent, token] = number
        first_chance[number] = 0.0
    if not count:
        nodes.chain = list(range(int(extra.chain[row])))
    return len(nodes.tokens) > count


def _nodes(tree: DraftTree, row: int) -> Iterable[tuple[int, int, int, int, float, float]]:
    """Parent, token, rank, drafter, confidence and entropy of each node of a row."""
    at = tree.row_nodes(row)
    columns = tree.parent, tree.token, tree.rank, tree.drafter, tree.confidence, tree.entropy
    return zip(*(column[at].tolist() for column in columns), strict=True)
