"""What drafts of one fixed shape earn for a request alone: the best chain, the best comb, the best tree of ranks.

A shape says which ranks it submits after which; a tape's ranks say which of its paths is the text's, so the replay of
any shape is exact: the children of a node on the text's own path are the first candidates of that position, whatever
the shape. Shapes are picked in hindsight, each kind alike. Where the text ends all shapes are thought to be drafted in
full: a drafter that stops at an end token saves a little more.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.errors import TapeError
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.tape import Tape
from adaptspec.tables import Table

_DEPTHS = range(1, 13)
_NODES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96)
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
WIDTHS = (1, 2, 4, 8)
_WIDEST = WIDTHS[-1]

_Path = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """The ranks on the way to each node; with a node, all before it. No path: plain decoding."""

    kind: str
    paths: tuple[_Path, ...] = ()

    @property
    def depth(self) -> int:
        return max(map(len, self.paths), default=0)

    def __str__(self) -> str:
        return f"{len(self.paths)} nodes, {self.depth} deep"

    @cached_property
    def _children(self) -> IntArray:
        """[nodes + 1, ranks + 1] number of the child of each rank; -1: none. 0 is the newest token."""
        numbers = {path: i for i, path in enumerate(self.paths, start=1)} | {(): 0}
        children = np.full((len(numbers), _WIDEST + 1), -1)
        for path in self.paths:
            children[numbers[path[:-1]], path[-1]] = numbers[path]
        return children

    def accepted(self, rank: IntArray, ends: IntArray) -> IntArray:
        """How many tokens of a draft are kept that starts at each position [P], before the `ends` [P] of requests."""
        at = np.arange(len(rank))
        node, kept = np.zeros_like(at), np.zeros_like(at)
        for step in range(self.depth):
            here = at + step
            inside = (node >= 0) & (here < ends)
            which = np.minimum(rank[np.minimum(here, len(rank) - 1)], _WIDEST)
            node = np.where(inside, self._children[node, which], -1)
            kept += node >= 0
        return kept

    def seconds(self, machine: Machine, drafter: str, limit: int) -> tuple[float, float]:
        """A round of one row that drafts at most `limit` deep: seconds, and those for each token of its context."""
        own, paths = machine.drafters[drafter], [path for path in self.paths if len(path) <= limit]
        spent = machine.overhead + machine.verify_seconds(1, 1 + len(paths), 0.0)
        if not paths:
            return spent, machine.per_cached_token
        # Each step reads the nodes that have children.
        fed = Counter(len(before) for before in {path[:-1] for path in paths})
        for step, rows in fed.items():
            spent += machine.step_seconds(drafter, rows, rows * step)
        each = machine.per_cached_token + own.per_cached_token * fed.total()
        return spent + own.start + own.per_row, each


def chains() -> Iterator[Shape]:
    """Every depth that is tried."""
    for depth in _DEPTHS:
        yield Shape("chain", _chain(depth))


def combs(chances: FloatArray) -> Iterator[Shape]:
    """Chains with the likeliest siblings of their tokens, by the chances of ranks."""
    for depth in _DEPTHS:
        sides = [
            (-(chances[0] ** step * chances[rank]), (*(0,) * step, rank))
            for step in range(depth)
            for rank in range(1, _WIDEST)
        ]
        likeliest = [path for _, path in sorted(sides)]
        for leaves in _LEAVES:
            yield Shape("comb", (*_chain(depth), *likeliest[:leaves]))


def trees(chances: FloatArray) -> Iterator[Shape]:
    """The likeliest nodes down to a depth, by the chances of ranks."""
    for depth in _DEPTHS[1:]:
        for nodes in _NODES:
            yield Shape("tree", _likeliest(chances, nodes, depth))


def _chain(depth: int) -> tuple[_Path, ...]:
    return tuple((0,) * length for length in range(1, depth + 1))


def _likeliest(chances: FloatArray, nodes: int, depth: int) -> tuple[_Path, ...]:
    waiting: list[tuple[float, _Path]] = [(-float(chance), (rank,)) for rank, chance in enumerate(chances)]
    heapq.heapify(waiting)
    found: list[_Path] = []
    while waiting and len(found) < nodes:
        chance, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < depth:
            for rank, own in enumerate(chances):
                heapq.heappush(waiting, (chance * float(own), (*path, rank)))
    return tuple(found)


def hit_rates(tape: Tape, drafter: str) -> dict[int, float]:
    """By k: how often the target's token is among the first k candidates, where a round may start."""
    rank = tape.views[drafter].rank[tape.emitted_positions]
    return {width: float((rank < width).mean()) for width in WIDTHS}


def goodput(tape: Tape, drafter: str, machine: Machine, shape: Shape) -> float:
    """Tokens per second after first tokens, each request alone; a draft model reads the prompt in its first round."""
    sizes = np.diff(tape.offsets)
    kept = shape.accepted(tape.views[drafter].rank, np.repeat(tape.offsets[1:], sizes))
    spent = np.array([shape.seconds(machine, drafter, limit) for limit in range(shape.depth + 1)])
    at, left = np.ones_like(sizes), tape.lengths - 1  # left: tokens to emit
    reads = machine.drafters[drafter].catch_up_per_token if shape.paths else 0.0
    seconds = reads * float(np.maximum(tape.prompt_tokens - 1, 0).sum())
    going = np.flatnonzero(left > 0)
    while len(going):
        limit = np.minimum(tape.max_tokens[going] - at[going] - 1, shape.depth)
        own, each = spent[limit].T
        seconds += float(own.sum() + each @ (tape.prompt_tokens[going] + at[going]))
        at[going] += np.minimum(kept[tape.offsets[going] + at[going]], limit) + 1
        going = going[at[going] < tape.lengths[going]]
    return float(left.sum()) / seconds


@dataclass(frozen=True)
class Best:
    """The best shape of a kind, with its goodput over plain decoding's."""

    shape: Shape
    ratio: float


def best_shapes(tape: Tape, drafter: str, machine: Machine) -> dict[str, Best]:
    """The best chain, comb and tree, by kind; a comb or tree may be a chain, and a tree a comb."""
    rank = tape.views[drafter].rank[tape.emitted_positions]
    chances: FloatArray = np.array([(rank == k).mean() for k in range(_WIDEST)])
    plain = goodput(tape, drafter, machine, Shape("off"))
    best = Best(Shape("off"), 1.0)
    found = {}
    for kind, shapes in {"chain": chains(), "comb": combs(chances), "tree": trees(chances)}.items():
        for shape in shapes:
            ratio = goodput(tape, drafter, machine, shape) / plain
            if ratio > best.ratio:
                best = Best(shape, ratio)
        found[kind] = best
    return found


def compare_shapes(tape: Tape, drafter: str, machines: Sequence[Machine]) -> list[dict[str, Any]]:
    """Plain data, a line for each temperature and machine: hit rates, best shapes, gains over the best chain.

    Raises TapeError: the tape does not have this drafter, or it drafts where it finds something, whatever the shape.
    """
    if drafter not in tape.views:
        raise TapeError(f"the tape has no drafter {drafter!r}; it has: {', '.join(tape.drafters)}")
    if not (tape.views[drafter].reach > 0).all():
        raise TapeError(f"{drafter} does not always draft, so shapes say little of it; name a draft model")
    lines = []
    for temperature in np.unique(tape.temperatures).tolist():
        own = tape.at_temperature(temperature)
        rates = {f"hit_{width}": rate for width, rate in hit_rates(own, drafter).items()}
        for machine in machines:
            best = best_shapes(own, drafter, machine)
            line: dict[str, Any] = {"machine": machine.label, "temperature": float(f"{temperature:g}"), **rates}
            for kind, one in best.items():
                line |= {kind: one.ratio, f"{kind}_shape": str(one.shape)}
            lines.append(line | {f"{kind}_over_chain": best[kind].ratio / best["chain"].ratio for kind in best})
    return lines


def shapes_table(lines: Sequence[dict[str, Any]]) -> Table:
    """Goodput over plain decoding's of the best of each kind; in brackets over the best chain's."""
    hits = [f"hit {width}" for width in WIDTHS]
    table = Table("machine", "T", *hits, "chain", "comb", "tree", title="best fixed drafts, batch 1, over off", keys=2)
    for line in lines:
        rates = (f"{line[f'hit_{width}']:.3f}" for width in WIDTHS)
        kinds = (
            f"{line[kind]:.3f} ({line[f'{kind}_over_chain']:.3f}): {line[f'{kind}_shape']}"
            for kind in ("chain", "comb", "tree")
        )
        table.add_row(line["machine"], f"{line['temperature']:g}", *rates, *kinds)
    return table
