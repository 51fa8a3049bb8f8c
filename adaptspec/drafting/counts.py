"""Drafting by counts: what followed most often where texts ended like this one, in it, in others, in a corpus.

Counts of the last 5 to 1 tokens are interpolated (Witten and Bell 1991): each order says as much as it has seen, the
rest is the next shorter one's. At temperatures above 0 tokens are drawn from that, with the target's own noise. The
request's own text counts more than others'; what it predicted, most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from adaptspec.decision_tables import TreeTable
from adaptspec.drafting.corpus_counts import CorpusCounts
from adaptspec.drafting.drafter import DraftJob, Loaded, RowStart
from adaptspec.drafting.predicted_output import Prediction
from adaptspec.drafting.submitted_nodes import submitted
from adaptspec.drafting.token_counts import COUNT_SHIFT, TOKEN, Followed, Histories, TokenCounts, advanced
from adaptspec.drafting.tree_growth import RowTree
from adaptspec.models.draft import Draft
from adaptspec.models.noise import gumbel_of_few, position_word, seed_keys, token_words
from adaptspec.models.processors import MIN_TEMPERATURE

# What a token is worth that the request's own text went on with, in tokens of others, and one that it predicted.
_OWN, _PREDICTED = 4.0, 8.0
# For each token known after a context, this much is left to shorter ones; less than the rest is not looked for.
_NOVEL, _REST = 1.5, 0.2
# Tokens that noise is drawn for: so many, and none much less likely than the likeliest. How surely a draft must come to
# a token.
_CANDIDATES, _LEAST, _SURVIVAL = 6, 0.05, 0.1
# The least that is unknown, and in log how much better than its share unknown tokens do by their number.
_UNSEEN, _LUCK = 1e-3, 1.5
# Of longer prompts only the end is read; of an output's contexts so many are remembered, twice.
_MOST_TOKENS, _MOST_CONTEXTS = 4096, 2**15

_chance = itemgetter(1)


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

    @classmethod
    def make(cls, loaded: Loaded) -> CountsDrafter:
        return cls(loaded.target.info.vocab_size, loaded.ends, loaded.counts)

    def begin(self, row: int, start: RowStart) -> None:
        self._rows[row] = _Row(start, None if start.scope is None else self.histories.of(start.scope))

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
        self._rows.pop(row, None)

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
        state = self._rows.get(row)
        if state is None:
            state = self._rows[row] = _Row(None, None)
        return state

    def _look(self, row: int, tokens: list[int], start: int, most: int, noisy: bool) -> list[_Guess]:
        """Up to `most` tokens after `tokens[:start]`, each with those that are next likely."""
        state = self._row(row)
        offer = state.offer
        if offer is not None and offer.start == start and offer.most >= most and offer.noisy == (noisy and state.noisy):
            return offer.found[:most]
        state.read(tokens, start)
        return self._drafted(state, start, most, noisy)

    def _drafted(self, state: _Row, start: int, most: int, noisy: bool) -> list[_Guess]:
        contexts, sources, survival = state.contexts, state.sources(), 1.0
        predicted = [] if state.prediction is None else state.prediction.continuation(most)
        temperature = state.temperature if noisy else 0.0
        found: list[_Guess] = []
        others: Collection[tuple[int, float]]
        while len(found) < most:
            expected = predicted[len(found)] if len(found) < len(predicted) else None
            chances = self._chances(contexts, sources, expected)
            if not chances:
                break
            others = chances.items()
            if temperature:
                others = self._with_noise(chances, temperature, position_word(state.seed, start + len(found)))
            token, chance = max(others, key=_chance)
            survival *= chance
            if survival < _SURVIVAL:
                break
            found.append(_Guess(token, chance, others))
            if token in self._ends:
                break
            if token != expected:
                predicted = []
            contexts = advanced(contexts, token)
        return found

    def _chances(
        self, contexts: list[int], sources: list[tuple[Followed, float]], expected: int | None
    ) -> dict[int, float]:
        """How likely each token known to follow is: interpolated from the longest context to the shortest."""
        chances: dict[int, float] = {}
        left = 1.0
        if expected is not None:
            left = _NOVEL / (_NOVEL + _PREDICTED)
            chances[expected] = 1.0 - left
        corpus = self._corpus
        for context in reversed(contexts):
            votes = {} if corpus is None else dict(corpus.votes(context))
            for counts, weight in sources:
                followed = counts.get(context)
                if followed is None:
                    continue
                if isinstance(followed, int):
                    token = followed & TOKEN
                    votes[token] = votes.get(token, 0.0) + weight * (followed >> COUNT_SHIFT)
                else:
                    for token, count in followed.items():
                        votes[token] = votes.get(token, 0.0) + weight * count
            if len(votes) == 1:  # mostly so, and this takes a third of the time
                token, vote = votes.popitem()
                share = left / (vote + _NOVEL)
                chances[token] = chances.get(token, 0.0) + share * vote
                left = share * _NOVEL
            elif votes:
                novel = _NOVEL * len(votes)
                share = left / (sum(votes.values()) + novel)
                for token, vote in votes.items():
                    chances[token] = chances.get(token, 0.0) + share * vote
                left = share * novel
            if left < _REST:
                break
        return chances

    def _with_noise(self, chances: dict[int, float], temperature: float, word: int) -> list[tuple[int, float]]:
        """What the target's noise makes of the likeliest tokens: softmax(log q / temperature + noise)."""
        least = _LEAST * max(chances.values())
        likely = [token for token, chance in chances.items() if chance >= least]
        if len(likely) > _CANDIDATES:
            likely = sorted(likely, key=chances.__getitem__, reverse=True)[:_CANDIDATES]
        noise = gumbel_of_few(word, likely, self._words)
        scores = [math.log(chances[token]) / temperature + g for token, g in zip(likely, noise, strict=True)]
        best = max(scores)
        weights = [math.exp(score - best) for score in scores]
        # What is not known to follow draws noise, too, and may win by it.
        others = max(1.0 - sum([chances[token] for token in likely]), _UNSEEN)
        total = sum(weights) + math.exp(min(math.log(others) / temperature + _LUCK - best, 99.0))
        return [(token, weight / total) for token, weight in zip(likely, weights, strict=True)]


class _Offer(NamedTuple):
    """What was found after the first `start` tokens of a row, when `most` were asked for."""

    start: int
    most: int
    noisy: bool
    found: list[_Guess]


class _Row:
    """One request: its own counts, those of its scope, and how it draws its tokens."""

    def __init__(self, start: RowStart | None, history: TokenCounts | None) -> None:
        self.own = TokenCounts(_MOST_CONTEXTS)
        self.history = history
        self.contexts: list[int] = []  # of what was read
        self.prediction: Prediction | None = None
        self.offer: _Offer | None = None
        self.temperature = 0.0  # 0: the likeliest token is drafted
        self.seed = 0
        self.noisy = False
        self._read = 0
        if start is not None:
            params = start.sampling.params
            self.temperature = params.temperature if params.temperature >= MIN_TEMPERATURE else 0.0
            self.noisy = start.shares_noise and self.temperature > 0.0
            self.seed = int(seed_keys(np.array([start.sampling.seed], dtype=np.int64))[0])
            if start.prediction:
                self.prediction = Prediction(start.prediction, start.sampling.prompt_length)

    def read(self, tokens: list[int], upto: int) -> None:
        """Count the tokens before `upto` that came since the last call."""
        counted = (self.own,) if self.history is None else (self.own, self.history)
        contexts = self.contexts
        for token in tokens[max(self._read, upto - _MOST_TOKENS) : upto]:
            for counts in counted:
                counts.add(contexts, token)
            contexts = advanced(contexts, token)
        self.contexts, self._read = contexts, max(self._read, upto)
        if self.prediction is not None:
            self.prediction.read(tokens, upto)

    def sources(self) -> list[tuple[Followed, float]]:
        """All counts that there are, with the weight of each."""
        own, history = self.own, self.history
        known = [(own.young, _OWN), (own.old, _OWN)]
        if history is not None:
            known += [(history.young, 1.0), (history.old, 1.0)]
        return [one for one in known if one[0]]
