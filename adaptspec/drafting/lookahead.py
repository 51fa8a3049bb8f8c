"""Lookahead decoding: additional nodes of the verify pass generate n-grams, which are drafted later.

Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding". Lanes run Jacobi
iteration: in each round every lane grows by the token that the target chooses after it, and yields an n-gram once it
is long enough. Drafts are n-grams that begin with the newest token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from adaptspec.common_prefix import common_prefix
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob, Loaded, NodeChoices
from adaptspec.drafting.tree_builder import ROOT, TreeBuilder

_MAX_KEYS = 4096  # first tokens of n-grams that a row remembers


class LookaheadDrafter(Drafter):
    """Needs no model and no text to copy from. Its cost is the nodes of its lanes in every pass.

    A row has `window` lanes. The first tokens of the lanes form a chain of guesses, and lane i is a path of up to
    `size` - 1 tokens whose first token is the i-th guess. If the tree table allows branches, lanes are submitted in
    addition to n-grams. If drafts are chains, the latest n-gram is drafted and nothing is learned.
    """

    name = "lookahead"
    learns_from_choices = True

    def __init__(self, window: int = 5, size: int = 4, max_grams: int = 5) -> None:
        """N-grams have `size` tokens; at most `max_grams` of them are kept for each first token."""
        self._window, self._size, self._max_grams = window, size, max_grams
        self._rows: dict[int, _Row] = {}

    @classmethod
    def make(cls, _: Loaded) -> LookaheadDrafter:
        return cls()

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. The confidence is unknown."""
        builder = TreeBuilder(len(job.rows), job.tree)
        for i in np.flatnonzero(job.depths).tolist():
            branches, depth = builder.width(i) > 1, int(job.depths[i])
            row = self._rows.setdefault(int(job.rows[i]), _Row(self._window, self._size, self._max_grams))
            paths: list[Sequence[int]] = [*row.grams(job.tokens[i][-1])]
            # A lane grows only if all of it is submitted: lane i is a path of up to i + size - 1 tokens.
            num_lanes = max(depth + 2 - self._size, 0)
            paths = [*paths, *row.lanes(job.tokens[i])[:num_lanes]] if branches else paths[:1]
            _add_paths(builder, i, paths, depth, builder.limit(i) if branches else depth)
        return Draft(builder.build())

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:
        """See `Drafter.look_up`. Without an n-gram one token is reported, so that policies draft and lanes grow."""
        found = self._rows[row].grams(tokens[-1]) if row in self._rows else []
        return [float("nan")] * min(max_depth, len(found[0]) if found else 1)

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `Drafter.score`. The n-gram with the most matching tokens counts."""
        grams = self._rows[row].grams(tokens[start - 1]) if row in self._rows else []
        after = tokens[start:]
        matching = [common_prefix(list(gram), after) for gram in grams]
        return min(max(map(len, grams), default=0), len(after)), max(matching, default=0)

    def observe(self, row: int, choices: NodeChoices) -> None:
        """See `Drafter.observe`. Lanes grow by the tokens that the target chose after them."""
        if row in self._rows:
            self._rows[row].grow(choices)

    def leave(self, row: int) -> None:
        """See `Drafter.leave`."""
        self._rows.pop(row, None)


class _Row:
    """The lanes of one row and the n-grams they have yielded."""

    def __init__(self, window: int, size: int, max_grams: int) -> None:
        self._window, self._size, self._max_grams = window, size, max_grams
        self._lanes: list[list[int]] = []
        # By first token, the latest used last; the n-grams of each, the latest first.
        self._grams: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()

    def grams(self, newest: int) -> list[tuple[int, ...]]:
        """Continuations of this token in n-grams, the latest first."""
        return self._grams.get(newest, [])

    def lanes(self, tokens: list[int]) -> list[list[int]]:
        """Each lane with the guesses before it. Lanes begin with arbitrary tokens of the text."""
        if not self._lanes:
            self._lanes = [[tokens[-1 - i % len(tokens)]] for i in range(self._window)]
        guesses = [lane[0] for lane in self._lanes]
        return [guesses[:i] + lane for i, lane in enumerate(self._lanes)]

    def grow(self, choices: NodeChoices) -> None:
        """Append the target's choice after each lane, from the pass that contained these lanes."""
        guesses = [lane[0] for lane in self._lanes]
        for i, lane in enumerate(self._lanes):
            chosen = choices.after(guesses[:i] + lane)
            if chosen is None:
                continue  # the lane was cut by a node limit
            lane.append(chosen)
            if len(lane) == self._size:
                self._remember(lane[0], tuple(lane[1:]))
                del lane[0]

    def _remember(self, first: int, gram: tuple[int, ...]) -> None:
        known = self._grams.setdefault(first, [])
        if gram in known:
            known.remove(gram)
        known.insert(0, gram)
        del known[self._max_grams :]
        self._grams.move_to_end(first)
        if len(self._grams) > _MAX_KEYS:
            self._grams.popitem(last=False)


def _add_paths(builder: TreeBuilder, row: int, paths: Sequence[Sequence[int]], depth: int, limit: int) -> None:
    """Add paths up to `depth` and `limit` nodes, the first as the main chain; shared prefixes are added once."""
    nodes = builder.row(row)
    numbers: dict[tuple[int, int], int] = {}
    children: dict[int, int] = {}
    for path in paths:
        parent = ROOT
        for token in path[:depth]:
            number = numbers.get((parent, token))
            if number is None:
                if len(nodes.tokens) == limit:
                    break
                rank = children.get(parent, 0)
                number = numbers[parent, token] = nodes.add(parent, token, rank=rank)
                children[parent] = rank + 1
                if path is paths[0]:
                    nodes.chain.append(number)
            parent = number
