"""Lookahead decoding: the target itself guesses ahead in spare places of its pass, and its guesses are drafted later.

Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding". Lanes run Jacobi
iteration: each round the target says what follows each lane, so every lane yields one n-gram that the target itself
finds likely in such a place. Drafts are n-grams that begin with the newest token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.drafting.drafter import DraftJob, Loaded, RowStart
from adaptspec.models.draft import Draft, NodeChoices
from adaptspec.trees import Tree

_KEYS = 4096  # first tokens of n-grams that a row remembers


class LookaheadDrafter:
    """Needs no model and no text to copy from; it pays with the nodes of its lanes in every pass.

    A row has `window` lanes. Lane i is a path of `size` - 1 tokens that hangs on the i-th of a chain of guesses, which
    are the lanes' own first tokens. Under a table that lets drafts branch it submits lanes beside n-grams; under none
    it drafts the latest n-gram and learns nothing.
    """

    name = "lookahead"
    non_anticipating = True  # what it finds, and where that ends, are functions of the text and of the target's choices

    def __init__(self, window: int = 5, size: int = 4, most: int = 5) -> None:
        """N-grams of `size` tokens; at most `most` of them are kept for each first token."""
        self._window, self._size, self._most = window, size, most
        self._rows: dict[int, _Row] = {}

    @classmethod
    def make(cls, _: Loaded) -> LookaheadDrafter:
        return cls()

    def cache_gap(self, row: int, length: int) -> int:  # noqa: ARG002
        """See `Drafter.cache_gap`: it has no cache."""
        return 0

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. It states no confidence."""
        grown = [_Nodes(0, 0)] * len(job.rows)
        for i in np.flatnonzero(job.depths).tolist():
            depth = int(job.depths[i])
            branch = job.tree is not None and bool(job.tree.width[i] > 1)
            nodes = grown[i] = _Nodes(int(job.tree.nodes[i]) if job.tree is not None and branch else depth, depth)
            row = self._rows.setdefault(int(job.rows[i]), _Row(self._window, self._size, self._most))
            for gram in row.grams(job.tokens[i][-1])[: None if branch else 1]:
                nodes.add(gram)
            for lane in row.lanes(job.tokens[i]) if branch else ():
                nodes.add(lane)
        return _draft(grown, branch=job.tree is not None)

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        """See `ModelFreeDrafter.offer`. Without an n-gram it offers a lane's guess, or it would never learn one."""
        found = self._rows[row].grams(tokens[-1]) if row in self._rows else []
        return [float("nan")] * min(most, len(found[0]) if found else 1)

    def begin(self, row: int, start: RowStart) -> None:
        """See `ModelFreeDrafter.begin`: nothing is known of a request before it runs."""

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `ModelFreeDrafter.shadow`: what its n-grams after `tokens[:start]` would have got."""
        grams = self._rows[row].grams(tokens[start - 1]) if row in self._rows else []
        after, best = tokens[start:], 0
        for gram in grams:
            run = 0
            while run < min(len(gram), len(after)) and gram[run] == after[run]:
                run += 1
            best = max(best, run)
        return min(max(map(len, grams), default=0), len(after)), best

    def absorb(self, row: int, choices: NodeChoices) -> None:
        """See `Observing.absorb`: lanes grow by what the target chose after them."""
        if row in self._rows:
            self._rows[row].grow(choices)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`: it has no cache."""

    def free(self, row: int) -> None:
        self._rows.pop(row, None)


class _Row:
    """The lanes of one row, and the n-grams they have yielded."""

    def __init__(self, window: int, size: int, most: int) -> None:
        self._window, self._size, self._most = window, size, most
        self._lanes: list[list[int]] = []
        self._grams: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()  # the latest first

    def grams(self, newest: int) -> list[tuple[int, ...]]:
        """What followed this token in n-grams, the latest first."""
        return self._grams.get(newest, [])

    def lanes(self, tokens: list[int]) -> list[list[int]]:
        """Each with the guesses that it hangs on before it. They begin as tokens of the text, as good as any."""
        if not self._lanes:
            self._lanes = [[tokens[-1 - i % len(tokens)]] for i in range(self._window)]
        guesses = [lane[0] for lane in self._lanes]
        return [guesses[:i] + lane for i, lane in enumerate(self._lanes)]

    def grow(self, choices: NodeChoices) -> None:
        """Take in what the target chose after each lane, of the pass these lanes were in."""
        guesses = [lane[0] for lane in self._lanes]
        for i, lane in enumerate(self._lanes):
            chosen = choices.after(guesses[:i] + lane)
            if chosen is None:
                continue  # a ceiling cut it
            lane.append(chosen)
            if len(lane) == self._size:
                self._remember(lane[0], tuple(lane[1:]))
                del lane[0]

    def _remember(self, first: int, gram: tuple[int, ...]) -> None:
        known = self._grams.setdefault(first, [])
        if gram in known:
            known.remove(gram)
        known.insert(0, gram)
        del known[self._most :]
        self._grams.move_to_end(first)
        if len(self._grams) > _KEYS:
            self._grams.popitem(last=False)


class _Nodes:
    """The nodes of one row as they are added, path by path: what two paths share is one node."""

    def __init__(self, most: int, depth: int) -> None:
        self._most, self._depth = most, depth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.chain = 0
        self._places: dict[tuple[int, int], int] = {}
        self._children: dict[int, int] = {}

    def add(self, path: Sequence[int]) -> None:
        """As far as depth and ceiling allow."""
        first, at = not self.tokens, -1
        for token in path[: self._depth]:
            place = self._places.get((at, token))
            if place is None:
                if len(self.tokens) == self._most:
                    break
                place = self._places[at, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(at)
                self.ranks.append(self._children.get(at, 0))
                self._children[at] = self.ranks[-1] + 1
            at = place
        if first:
            self.chain = len(self.tokens)


def _draft(rows: Sequence[_Nodes], *, branch: bool) -> Draft:
    draft = Draft.empty(len(rows), max(len(row.tokens) for row in rows))
    parents, ranks = np.full_like(draft.tokens, -1), np.zeros_like(draft.tokens)
    chain: IntArray = np.zeros_like(draft.counts)
    for i, row in enumerate(rows):
        count = len(row.tokens)
        draft.tokens[i, :count], draft.counts[i], chain[i] = row.tokens, count, row.chain
        parents[i, :count], ranks[i, :count] = row.parents, row.ranks
    if not branch:
        return draft
    return replace(draft, tree=Tree(parents, chain, ranks, np.zeros_like(parents)))
