"""Drafting by n-grams: the tokens that followed the last time the output ended like this.

Prompt-lookup decoding (Saxena 2023) over prompt and output. The suffix is matched again after every
drafted token, longest first, so a draft does not depend on the round it is made in. A text that the request predicted
comes first, where the output is in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from adaptspec.drafting.drafter import DraftJob, Loaded, RowStart
from adaptspec.drafting.predicted_output import Prediction
from adaptspec.models.draft import Draft

_STEP = 8  # tokens that are read one by one: those of a round or so


class NgramDrafter:
    """Remembers, per row, what followed each n-gram of `shortest` to `longest` tokens last."""

    name = "ngram"
    non_anticipating = True  # it draws nothing: what it finds, and where that ends, are functions of the text

    def __init__(self, longest: int = 4, shortest: int = 2, ends: Collection[int] = ()) -> None:
        self._ends = frozenset(ends)
        self._sizes = range(longest, shortest - 1, -1)
        self._memory: dict[int, _Memory] = {}
        self._offers: dict[int, _Offer] = {}
        self._predictions: dict[int, Prediction] = {}

    @classmethod
    def make(cls, loaded: Loaded) -> NgramDrafter:
        return cls(ends=loaded.ends)

    def cache_gap(self, row: int, length: int) -> int:  # noqa: ARG002
        """See `Drafter.cache_gap`: always 0, as reading is free of charge."""
        return 0

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Confidence and entropy stay NaN: n-grams have no distribution."""
        draft = Draft.empty(len(job.rows), int(job.depths.max(initial=0)))
        for i in np.flatnonzero(job.depths).tolist():
            found = self._look(int(job.rows[i]), job.tokens[i], len(job.tokens[i]), int(job.depths[i]))
            draft.tokens[i, : len(found)] = found
            draft.counts[i] = len(found)
        return draft

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        """See `ModelFreeDrafter.offer`. What was found is kept for the round."""
        found = self._look(row, tokens, len(tokens), most)
        self._offers[row] = _Offer(len(tokens), most, found)
        return [math.nan] * len(found)

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `ModelFreeDrafter.shadow`: one n-gram found per emitted token, and what reading them costs anyway."""
        found = self._look(row, tokens, start, len(tokens) - start)
        accepted = 0
        for guess, token in zip(found, tokens[start:], strict=False):  # it may know less than was emitted
            if guess != token:
                break
            accepted += 1
        return len(found), accepted

    def begin(self, row: int, start: RowStart) -> None:
        if start.prediction:
            self._predictions[row] = Prediction(start.prediction, start.sampling.prompt_length)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`: only committed tokens are ever read, so nothing is forgotten."""

    def free(self, row: int) -> None:
        self._memory.pop(row, None)
        self._offers.pop(row, None)
        self._predictions.pop(row, None)

    def _look(self, row: int, tokens: list[int], start: int, most: int) -> list[int]:
        """Up to `most` tokens after `tokens[:start]`: what was offered there, or found now."""
        offer = self._offers.get(row)
        if offer is not None and offer.start == start and offer.most >= most:
            return offer.found[:most]
        if row in self._predictions and (predicted := self._predicted(row, tokens, start, most)):
            return predicted
        memory = self._memory.setdefault(row, _Memory(self._sizes, self._ends))
        memory.read(tokens, start)
        return memory.continuation(tokens[max(0, start - self._sizes.start) : start], most)

    def _predicted(self, row: int, tokens: list[int], start: int, most: int) -> list[int]:
        prediction = self._predictions[row]
        prediction.read(tokens, start)
        found = prediction.continuation(most)
        end = next((i for i, token in enumerate(found, start=1) if token in self._ends), len(found))
        return found[:end]


class _Offer(NamedTuple):
    """What was found after the first `start` tokens of a row, when `most` were asked for."""

    start: int
    most: int
    found: list[int]


class _Memory:
    """What followed each n-gram of one row, the latest occurrence winning."""

    def __init__(self, sizes: range, ends: frozenset[int]) -> None:
        self._sizes = sizes
        self._ends = ends
        self._next: dict[tuple[int, ...], int] = {}
        self._read = 0

    def read(self, tokens: list[int], upto: int) -> None:
        """Take in the tokens before `upto` that came since the last call."""
        if upto - self._read <= _STEP:
            for place in range(max(1, self._read), upto):
                for size in self._sizes:
                    if size <= place:
                        self._next[tuple(tokens[place - size : place])] = tokens[place]
            self._read = max(self._read, upto)
            return
        for size in self._sizes:
            first = max(1, self._read, size)  # the first token that now follows `size` others
            text = tokens[first - size : upto]
            grams = zip(*(text[skipped:] for skipped in range(size)), strict=False)
            # A prompt of thousands is taken in at once, between two rounds: a loop here would be five times slower.
            self._next.update(zip(grams, text[size:], strict=False))
        self._read = max(self._read, upto)

    def continuation(self, tokens: list[int], depth: int) -> list[int]:
        """Up to `depth` tokens; ends early where no suffix has been seen before, or the text ends."""
        known, sizes, longest = self._next, self._sizes, self._sizes.start
        tail = tuple(tokens[-longest:])
        found: list[int] = []
        while len(found) < depth:
            for size in sizes:
                following = known.get(tail[-size:])
                if following is not None:
                    break
            else:
                break
            found.append(following)
            if following in self._ends:
                break
            tail = (*tail[1 - longest :], following)
        return found
