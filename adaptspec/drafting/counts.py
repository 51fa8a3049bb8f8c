"""Drafting by counts: what followed most often where texts ended like this one, in it, in others, in a corpus.

Counts of the last 5 to 1 tokens are interpolated (Witten and Bell 1991): each order says as much as it has seen, the
rest is the next shorter one's. At temperatures above 0 tokens are drawn from that, with the target's own noise. The
request's own text counts more than others'; what it predicted, most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from adaptspec.decision import TreeTable
from adaptspec.drafting.corpus_counts import CorpusCounts
from adaptspec.drafting.drafter import DraftJob, Loaded, RowStart
from adaptspec.drafting.predicted_output import Prediction
from adaptspec.drafting.submitted_nodes import submitted
from adaptspec.drafting.token_counts import COUNT_SHIFT, TOKEN, Histories, TokenCounts, advanced, contexts_of, votes_of
from adaptspec.drafting.tree_growth import RowTree
from adaptspec.models.draft import Draft
from adaptspec.models.noise import drawn_of_few, position_word, seed_keys, token_words
from adaptspec.models.sampling import MIN_TEMPERATURE, RowSampling

# What a token is worth that the request's own text went on with, in tokens of others, and one that it predicted.
_OWN, _PREDICTED = 4.0, 8.0
# For each token known after a context, this much is left to shorter ones; less than the rest is not looked for.
_NOVEL, _REST = 1.5, 0.2
# Tokens that noise is drawn for: so many, and none much less likely than the likeliest. How surely a draft must come to
# a token, and where noise is drawn, to what follows it: that takes most of the time there.
_CANDIDATES, _LEAST, _SURVIVAL, _FURTHER = 6, 0.05, 0.1, 0.15
# The least that is unknown, and how many times as well as its share unknown tokens do by their number.
_UNSEEN, _LUCK = 1e-3, math.exp(1.5)
# Colder requests draw as if they were this warm: chances to higher powers would vanish.
_COLDEST = 1 / 64
# Of longer prompts only the end is read, so much in a round; of an output's contexts so many are remembered, twice.
_MOST_TOKENS, _AT_ONCE, _MOST_CONTEXTS = 4096, 128, 2**15

_chance = itemgetter(1)
# Finds what followed a context, and what each of those counts for.
_Votes = int | Mapping[int, float]
_Source = tuple[Callable[[int], _Votes | None], float]


class _Guess(NamedTuple):
    """A drafted token, how likely it is, and all that may follow there with how likely each is, in any order."""

    token: int
    chance: float
    others: Collection[tuple[int, float]]


class CountsDrafter:
    """Counts each row's text as it comes, in its own counts and in those of its scope (see `RowStart`)."""

    name = "counts"
    non_anticipating = True  # what it proposes, and where that ends, are functions of the text (and of the noise)

    def __init__(self, vocab_size: int, ends: Collection[int] = (), corpus: CorpusCounts | None = None) -> None:
        """A draft stops at one of the tokens `ends`."""
        self.histories = Histories()
        self._words = token_words(vocab_size)
        self._ends = frozenset(ends)
        self._corpus = corpus
        self._rows: dict[int, _Row] = {}
        # How many tokens of a request its scope has counted: it may have given way, and come back.
        self._told: WeakKeyDictionary[RowSampling, int] = WeakKeyDictionary()

    @classmethod
    def make(cls, loaded: Loaded) -> CountsDrafter:
        return cls(loaded.target.info.vocab_size, loaded.ends, loaded.counts)

    def begin(self, row: int, start: RowStart) -> None:
        history = None if start.scope is None else self.histories.of(start.scope)
        self._rows[row] = _Row(start, history, self._told.get(start.sampling, 0))

    def cache_gap(self, row: int, length: int) -> int:  # noqa: ARG002
        """See `Drafter.cache_gap`: always 0, as what it reads is bounded."""
        return 0

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Where a tree is wanted, the next likely tokens stand beside each of the chain's."""
        drafts = {
            i: self._look(int(job.rows[i]), job.tokens[i], len(job.tokens[i]), int(job.depths[i]), job.shares_noise)
            for i in np.flatnonzero(job.depths).tolist()
        }
        if job.tree is not None:
            return submitted(list(self._trees(job, job.tree, drafts)), len(job.rows))
        draft = Draft.empty(len(job.rows), max(map(len, drafts.values()), default=0))
        for i, found in drafts.items():
            draft.tokens[i, : len(found)] = [guess.token for guess in found]
            draft.confidence[i, : len(found)] = [guess.chance for guess in found]
            draft.counts[i] = len(found)
        return draft

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        """See `ModelFreeDrafter.offer`. What was found is kept for the round."""
        state = self._row(row)
        found = self._look(row, tokens, len(tokens), most, state.noisy)
        state.offer = _Offer(len(tokens), most, state.noisy, found)
        return [guess.chance for guess in found]

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `ModelFreeDrafter.shadow`: mostly what was offered before the round."""
        found = self._look(row, tokens, start, len(tokens) - start, self._row(row).noisy)
        accepted = 0
        for guess, token in zip(found, tokens[start:], strict=False):
            if guess.token != token:
                break
            accepted += 1
        return len(found), accepted

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`: only committed tokens are ever read, so nothing is forgotten."""

    def free(self, row: int) -> None:
        """See `Drafter.free`. What came last is counted for others: nobody will ask for this row's next tokens."""
        state = self._rows.pop(row, None)
        if state is not None and state.history is not None and state.sampling is not None:
            self._told[state.sampling] = state.leave(state.sampling.tokens)

    @staticmethod
    def _trees(job: DraftJob, table: TreeTable, drafts: Mapping[int, list[_Guess]]) -> Iterator[RowTree]:
        """Combs: after each token of the chain, beside the one that it goes on with, the next likely ones."""
        for i, found in drafts.items():
            tree = RowTree(table, None, i, len(found), len(job.tokens[i]))
            for guess in found:
                likely = sorted(guess.others, key=_chance, reverse=True)
                tree.submit(tree.main[-1] if tree.main else -1, likely, math.nan)
            yield tree

    def _row(self, row: int) -> _Row:
        """What is known of a row; of one that never began, or failed, nothing but its text."""
        return self._rows.get(row) or self._rows.setdefault(row, _Row(None))

    def _look(self, row: int, tokens: list[int], start: int, most: int, noisy: bool) -> list[_Guess]:
        """Up to `most` tokens after `tokens[:start]`, each with those that are next likely."""
        state = self._row(row)
        offer = state.offer
        if offer is not None and offer.start == start and offer.most >= most and offer.noisy == (noisy and state.noisy):
            return offer.found[:most]
        state.read(tokens, start)
        return self._drafted(state, start, most, noisy)

    def _drafted(self, state: _Row, start: int, most: int, noisy: bool) -> list[_Guess]:
        contexts, sources, survival = state.contexts, self._sources(state), 1.0
        predicted = [] if state.prediction is None else state.prediction.continuation(most)
        noisy = noisy and state.power > 0.0
        found: list[_Guess] = []
        others: Collection[tuple[int, float]]
        while len(found) < most:
            expected = predicted[len(found)] if len(found) < len(predicted) else None
            chances = _interpolated(contexts, sources, expected)
            if not chances:
                break
            others = self._with_noise(chances, state, start + len(found)) if noisy else chances.items()
            token, chance = max(others, key=_chance)
            survival *= chance
            if survival < _SURVIVAL:
                break
            found.append(_Guess(token, chance, others))
            if token in self._ends or (noisy and survival < _FURTHER):
                break
            if token != expected:
                predicted = []
            contexts = advanced(contexts, token)
        return found

    def _sources(self, state: _Row) -> list[_Source]:
        """All counts that there are, with the weight of each."""
        known: list[_Source] = [] if self._corpus is None else [(self._corpus.get, 1.0)]
        for counts, weight in ((state.own, _OWN), (state.history, 1.0)):
            if counts is not None:
                known += [(generation.get, weight) for generation in (counts.young, counts.old) if generation]
        return known

    def _with_noise(self, chances: dict[int, float], state: _Row, position: int) -> list[tuple[int, float]]:
        """What the target's noise g makes of the likeliest tokens: softmax(log q / temperature + g).

        With g = -log(E) that is q ** (1 / temperature) / E, over the sum of them.
        """
        likely = list(chances.items())
        if len(likely) > 1:
            least = _LEAST * max(chances.values())
            likely = [one for one in likely if one[1] >= least]
            if len(likely) > _CANDIDATES:
                likely.sort(key=_chance, reverse=True)
                del likely[_CANDIDATES:]
        drawn = drawn_of_few(position_word(state.seed, position), likely, self._words, state.power)
        # What is not known to follow draws noise, too, and may win by it.
        others = max(1.0 - sum([chance for _, chance in likely]), _UNSEEN)
        total = sum([weight for _, weight in drawn]) + others**state.power * _LUCK
        return [(token, weight / total) for token, weight in drawn]


def _interpolated(contexts: list[int], sources: list[_Source], expected: int | None) -> dict[int, float]:
    """How likely each token known to follow is: from the longest context to the shortest."""
    chances: dict[int, float] = {}
    left = 1.0
    if expected is not None:
        left = _NOVEL / (_NOVEL + _PREDICTED)
        chances[expected] = 1.0 - left
    for context in reversed(contexts):
        votes: _Votes | None = None
        worth = 1.0
        for find, weight in sources:
            followed = find(context)
            if followed is None:
                continue
            if votes is None:
                votes, worth = followed, weight
            else:
                votes, worth = _sum(votes, worth, followed, weight), 1.0
        if votes is None:
            continue
        if isinstance(votes, int):  # mostly so, and this takes a third of the time
            token, vote = votes & TOKEN, worth * (votes >> COUNT_SHIFT)
            share = left / (vote + _NOVEL)
            chances[token] = chances.get(token, 0.0) + share * vote
            left = share * _NOVEL
        else:
            novel = _NOVEL * len(votes)
            share = left / (worth * sum(votes.values()) + novel)
            left = share * novel
            share *= worth
            for token, count in votes.items():
                chances[token] = chances.get(token, 0.0) + share * count
        if left < _REST:
            break
    return chances


def _sum(votes: _Votes, worth: float, more: _Votes, weight: float) -> dict[int, float]:
    """What two say of one context, each by its worth."""
    together = {token: worth * count for token, count in votes_of(votes)}
    for token, count in votes_of(more):
        together[token] = together.get(token, 0.0) + weight * count
    return together


class _Offer(NamedTuple):
    """What was found after the first `start` tokens of a row, when `most` were asked for."""

    start: int
    most: int
    noisy: bool
    found: list[_Guess]


class _Row:
    """One request: its own counts, those of its scope once it has some, and how it draws its tokens."""

    def __init__(self, start: RowStart | None, history: TokenCounts | None = None, told: int = 0) -> None:
        self.own = TokenCounts(_MOST_CONTEXTS)
        self.history = history
        self.sampling: RowSampling | None = None
        self.contexts: list[int] = []  # of all its text, though not all of that was read
        self.prediction: Prediction | None = None
        self.offer: _Offer | None = None
        self.power = 0.0  # of chances, by its temperature; 0: the likeliest token is drafted
        self.seed = 0
        self.noisy = False
        self._told = told  # tokens that its scope had counted before it gave way
        self._read = 0
        self._before: list[int] = []  # contexts of those
        if start is not None:
            self.sampling, params = start.sampling, start.sampling.params
            self.power = 1.0 / max(params.temperature, _COLDEST) if params.temperature >= MIN_TEMPERATURE else 0.0
            self.noisy = start.shares_noise and self.power > 0.0
            self.seed = int(seed_keys(np.array([start.sampling.seed], dtype=np.int64))[0])
            if start.prediction:
                self.prediction = Prediction(start.prediction, start.sampling.prompt_length)

    def read(self, tokens: list[int], upto: int) -> None:
        """Count the tokens before `upto` that came since the last call; of many a part, the rest in later calls."""
        if self.prediction is not None:
            self.prediction.read(tokens, upto)
        if upto <= self._read:
            return
        begin = max(self._read, upto - _MOST_TOKENS)
        self._count(tokens, begin, min(upto, begin + _AT_ONCE), [self.own])
        self.contexts = self._before if self._read == upto else contexts_of(tokens, upto)

    def leave(self, tokens: list[int]) -> int:
        """Have its scope count what is left of its text, if any was asked for; how many tokens it has counted then."""
        if self._read:
            self._count(tokens, max(self._read, len(tokens) - _MOST_TOKENS), len(tokens), [])
        return max(self._read, self._told)

    def _count(self, tokens: list[int], begin: int, end: int, counters: list[TokenCounts]) -> None:
        contexts = self._before if begin == self._read else contexts_of(tokens, begin)
        history = self.history
        for place in range(begin, end):
            token = tokens[place]
            for counts in counters:
                counts.add(contexts, token)
            if history is not None and place >= self._told:
                history.add(contexts, token)
            contexts = advanced(contexts, token)
        self._before, self._read = contexts, max(end, self._read)
