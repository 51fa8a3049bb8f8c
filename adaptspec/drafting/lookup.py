"""Lookup drafting: an n-gram model over the request's text, its prediction, earlier requests and a corpus.

Counts after the last 5 to 1 tokens are interpolated (Witten and Bell 1991): the more counts a context has, the less
probability is left to the next shorter one. At temperatures above 0, tokens are drawn from these probabilities with
the target's noise.

`ngram` uses prompt and output (prompt lookup: Saxena 2023) and the prediction. `counts` also uses earlier requests of
the same scope, and a corpus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from adaptspec.common_prefix import common_prefix
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob, Loaded, RowStart
from adaptspec.drafting.ngram_index import CorpusTable, CountedText, Histories, NgramIndex, advance
from adaptspec.drafting.tree_builder import TreeBuilder
from adaptspec.models.noise import drawn_of_few, position_word, seed_keys, token_words
from adaptspec.models.sampling import MIN_TEMPERATURE, RowSampling

# Pseudo-counts after each context: of unknown tokens, per known token; and of the predicted token.
_UNKNOWN, _PREDICTED = 1.5, 8.0
# Weight of a token of an earlier request; a token of the request's text has weight 1.
_HISTORY_WEIGHT = 0.5
# A draft ends where the probability that all of its tokens are right falls below this.
_MIN_SURVIVAL = 0.1
# Noise favours many unlikely tokens over a few likely ones. The best of the unknown tokens is this many times as likely
# to be chosen as a single token of the same total probability.
_BEST_UNKNOWN = math.exp(1.5)
# Lower temperatures are raised to this: higher powers of a probability would underflow.
_MIN_DRAFT_TEMPERATURE = 1 / 64
_MAX_READ = 512  # tokens of a text that are counted per round

_Source = tuple[NgramIndex | CorpusTable, float]  # and the weight of its counts
_probability = itemgetter(1)


class LookupDrafter(Drafter):
    """Counts each row's text as it grows, in the row's index and in that of its scope (see `RowStart`)."""

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        *,
        name: str = "ngram",
        histories: Histories | None = None,
        corpus: CorpusTable | None = None,
    ) -> None:
        """Drafts stop at one of `eos_token_ids`. Without `histories` each request uses its own text only."""
        self.name = name
        self.histories = histories
        self._corpus = corpus
        self._words = token_words(vocab_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._rows: dict[int, _Row] = {}
        # Number of tokens that the index of the scope has counted, by request: a request that gave way starts again.
        self._counted: WeakKeyDictionary[RowSampling, int] = WeakKeyDictionary()

    def start(self, row: int, start: RowStart) -> None:
        history = None
        if self.histories is not None and start.scope is not None:
            history = CountedText(self.histories.index_of(start.scope), self._counted.get(start.sampling, 0))
        self._rows[row] = _Row(start, history)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Trees have the next likely tokens as siblings of each token of the chain."""
        drafts = {
            i: self._find(int(job.rows[i]), job.tokens[i], len(job.tokens[i]), int(job.depths[i]), job.shares_noise)
            for i in np.flatnonzero(job.depths).tolist()
        }
        builder = TreeBuilder(len(job.rows), job.tree)
        for i, tokens in drafts.items():
            nodes, branches = builder.row(i), builder.width(i) > 1
            for drafted in tokens:
                candidates = [(drafted.token, drafted.probability)]
                if branches:
                    candidates = sorted(drafted.candidates.items(), key=_probability, reverse=True)
                builder.submit(i, nodes.chain_end, (candidates, math.nan))
        return Draft(builder.build())

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:
        """See `Drafter.look_up`. The result is kept for the round."""
        state = self._row(row)
        draft = self._find(row, tokens, len(tokens), max_depth, state.draws)
        state.lookup = _Lookup(len(tokens), max_depth, state.draws, draft)
        return [drafted.probability for drafted in draft]

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `Drafter.score`. Usually scores the result of `look_up` before the round."""
        draft = self._find(row, tokens, start, len(tokens) - start, self._row(row).draws)
        return len(draft), common_prefix([drafted.token for drafted in draft], tokens[start:])

    def leave(self, row: int) -> None:
        """See `Drafter.leave`. If the row was ever looked up, its scope counts the tokens since then."""
        state = self._rows.pop(row, None)
        if state is None or state.sampling is None or state.history is None or not state.history.num_counted:
            return
        tokens = state.sampling.tokens
        state.history.count(tokens, len(tokens), len(tokens))
        self._counted[state.sampling] = state.history.num_counted

    def _row(self, row: int) -> _Row:
        """The state of a row. If the row was never started, or its start failed, only its text is used."""
        return self._rows.get(row) or self._rows.setdefault(row, _Row(None))

    def _find(self, row: int, tokens: list[int], start: int, max_depth: int, shares_noise: bool) -> list[_Drafted]:
        """Up to `max_depth` tokens after `tokens[:start]`."""
        state = self._row(row)
        kept, draws = state.lookup, shares_noise and state.power > 0.0
        if kept is not None and kept.start == start and kept.max_depth >= max_depth and kept.draws == draws:
            return kept.draft[:max_depth]
        state.read(tokens, start)
        return self._draft(state, tokens, start, max_depth, draws)

    def _draft(self, state: _Row, tokens: list[int], start: int, max_depth: int, draws: bool) -> list[_Drafted]:
        sources: list[_Source] = [(state.text.index, 1.0)]
        if state.history is not None:
            sources.append((state.history.index, _HISTORY_WEIGHT))
        if self._corpus is not None:
            sources.append((self._corpus, 1.0))
        predicted = [] if state.prediction is None else state.prediction.continuation(max_depth)
        contexts, survival = state.text.contexts(tokens, start), 1.0
        draft: list[_Drafted] = []
        while len(draft) < max_depth:
            expected = predicted[len(draft)] if len(draft) < len(predicted) else None
            probabilities = _interpolated(contexts, sources, expected)
            if not probabilities:
                break
            if draws:
                probabilities = self._with_noise(probabilities, state, start + len(draft))
            token, probability = max(probabilities.items(), key=_probability)
            survival *= probability
            if survival < _MIN_SURVIVAL:
                break
            draft.append(_Drafted(token, probability, probabilities))
            if token in self._eos_token_ids:
                break
            if token != expected:
                predicted = []
            contexts = advance(contexts, token)
        return draft

    def _with_noise(self, probabilities: Mapping[int, float], state: _Row, position: int) -> dict[int, float]:
        """The probability that the target's noise g chooses each token: softmax(log p / temperature + g).

        With g = -log(E) this is p ** (1 / temperature) / E, divided by the sum over all tokens.
        """
        drawn = drawn_of_few(position_word(state.seed, position), probabilities.items(), self._words, state.power)
        unknown = max(1.0 - sum(probabilities.values()), 0.0)
        total = sum([weight for _, weight in drawn]) + unknown**state.power * _BEST_UNKNOWN
        return {token: weight / total for token, weight in drawn}


def make_ngram(loaded: Loaded) -> LookupDrafter:
    """Make the lookup in a request's own text and prediction."""
    return LookupDrafter(loaded.target.info.vocab_size, loaded.eos_token_ids)


def make_counts(loaded: Loaded) -> LookupDrafter:
    """Make the lookup that also uses earlier requests of the same scope, and a corpus if one was loaded."""
    return LookupDrafter(
        loaded.target.info.vocab_size, loaded.eos_token_ids, name="counts", histories=Histories(), corpus=loaded.counts
    )


class _Drafted(NamedTuple):
    """A drafted token, its probability, and the probabilities of all known candidates at its position."""

    token: int
    probability: float
    candidates: Mapping[int, float]


class _Lookup(NamedTuple):
    """The draft of at most `max_depth` tokens after the first `start` tokens of a row."""

    start: int
    max_depth: int
    draws: bool
    draft: list[_Drafted]


class _Row:
    """One request: its text and the history of its scope, its prediction, and how it samples."""

    def __init__(self, start: RowStart | None, history: CountedText | None = None) -> None:
        self.text = CountedText() if start is None else start.text
        self.history = history
        self.sampling = None if start is None else start.sampling
        self.prediction = None if start is None else start.prediction
        self.lookup: _Lookup | None = None
        self.power = 0.0  # 1 / temperature; 0: the likeliest token is drafted
        self.seed = 0
        self.draws = False
        if start is not None and start.sampling.params.temperature >= MIN_TEMPERATURE:
            self.power = 1.0 / max(start.sampling.params.temperature, _MIN_DRAFT_TEMPERATURE)
            self.draws = start.shares_noise
            self.seed = int(seed_keys(np.array([start.sampling.seed], dtype=np.int64))[0])

    def read(self, tokens: list[int], end: int) -> None:
        """Align the prediction and count the tokens before `end`; of a long text later calls count the rest."""
        if self.prediction is not None:
            self.prediction.read(tokens, end)
        self.text.count(tokens, end, _MAX_READ)
        if self.history is not None:
            self.history.count(tokens, end, _MAX_READ)


def _interpolated(contexts: list[int], sources: Sequence[_Source], predicted: int | None) -> dict[int, float]:
    """The probability of each known candidate. The remainder to 1 is the probability of unknown tokens."""
    probabilities: dict[int, float] = {}
    left = 1.0
    if predicted is not None:
        left = _UNKNOWN / (_UNKNOWN + _PREDICTED)
        probabilities[predicted] = 1.0 - left
    for context in reversed(contexts):
        counts: dict[int, float] = {}
        for source, weight in sources:
            for token, count in source.followers(context).items():
                counts[token] = counts.get(token, 0.0) + weight * count
        if counts:
            unknown = _UNKNOWN * len(counts)
            share = left / (sum(counts.values()) + unknown)
            for token, count in counts.items():
                probabilities[token] = probabilities.get(token, 0.0) + share * count
            left = share * unknown
    return probabilities
