"""Counts stay within their bounds whatever is served, are apart by scope, and come back from where they are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.drafting.token_counts import LONGEST, Followed, Histories, TokenCounts, advanced, hashed, votes_of
from adaptspec.errors import StateError

TEXTS = st.lists(st.integers(0, 30), max_size=40)


def _count(counts: TokenCounts, text: list[int]) -> None:
    contexts: list[int] = []
    for token in text:
        counts.add(contexts, token)
        contexts = advanced(contexts, token)


def _votes(followed: Followed) -> dict[int, dict[int, int]]:
    return {context: dict(votes_of(known)) for context, known in followed.items()}


@given(TEXTS)
def test_contexts_of_a_whole_text_are_those_met_token_by_token(text: list[int]) -> None:
    """A corpus is counted at once, a request as it comes: both must mean the same."""
    whole = hashed(np.array([*text, 0], dtype=np.int64))
    contexts: list[int] = []
    for place, token in enumerate([*text, 0]):
        assert contexts == [int(whole[n][place]) for n in range(min(place, LONGEST))]
        contexts = advanced(contexts, token)


@given(TEXTS)
def test_what_followed_is_counted_in_every_order(text: list[int]) -> None:
    counts = TokenCounts(10_000)
    _count(counts, text)
    expected: dict[tuple[int, ...], dict[int, int]] = {}
    for place in range(1, len(text)):
        for n in range(1, min(place, LONGEST) + 1):
            known = expected.setdefault(tuple(text[place - n : place]), {})
            known[text[place]] = known.get(text[place], 0) + 1
    assert len(counts) == len(expected)
    told = _votes(counts.young)
    for context, known in expected.items():
        hashes: list[int] = []
        for token in context:
            hashes = advanced(hashes, token)
        own = told[hashes[len(context) - 1]]
        assert len(own) <= 8
        if len(known) <= 8:
            assert own == known


def test_a_million_tokens_stay_within_the_bound_and_the_oldest_goes() -> None:
    """Half of them noise, half a few phrases, as an attacker or a busy server would send."""
    rng = np.random.default_rng(0)
    histories = Histories(2**12)
    phrases = [rng.integers(0, 50_000, 20).tolist() for _ in range(50)]
    keys = [f"key {i}" for i in range(7)]
    sent = 0
    while sent < 10**6:
        counts = histories.of(keys[int(rng.integers(len(keys)))])
        text = rng.integers(0, 50_000, 500).tolist() + phrases[int(rng.integers(50))] * 25
        _count(counts, text)
        sent += len(text)
        assert len(counts) <= 2**11 + 2 * LONGEST
    assert len(histories) <= 2**12 + 2**11 + 2 * LONGEST
    assert all(len(known) <= 8 for known in _votes(counts.young).values())
    old = TokenCounts(10)
    _count(old, [1, 2, 3])
    _count(old, list(range(100, 140)))
    assert not any({2} & set(known) for known in (*_votes(old.young).values(), *_votes(old.old).values()))


def test_scopes_share_nothing_and_the_least_used_goes_first() -> None:
    histories = Histories(100)
    _count(histories.of("key a"), [1, 2, 3, 1, 2, 3])
    assert not len(histories.of("key b"))
    assert len(histories.of("key a")) > 0
    for name in ("key c", "key d", "key e", "key f"):
        _count(histories.of(name), list(range(60)))
    assert not len(histories.of("key b"))
    assert not len(histories.of("key a")), "forgotten: others have been served since"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": np.array([99], dtype=np.uint32)}, "token or a scope"),
        ({"scope": np.array([7], dtype=np.uint32)}, "token or a scope"),
        ({"count": np.array([0], dtype=np.uint32)}, "token or a scope"),
        ({"count": np.array([1, 2], dtype=np.uint32)}, "one length"),
        ({"count": np.array([1.0])}, "whole numbers"),
        ({"count": np.array(1, dtype=np.uint32)}, "whole numbers"),
        ({"count": None}, "'count' is missing"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, npt.NDArray[Any] | None], words: str) -> None:
    arrays: dict[str, Any] = {
        "scopes": np.array(["server"]),
        "scope": np.array([0], dtype=np.uint32),
        "context": np.array([5], dtype=np.uint64),
        "token": np.array([1], dtype=np.uint32),
        "count": np.array([1], dtype=np.uint32),
    }
    Histories().restore(arrays, 24)
    changed = {name: array for name, array in {**arrays, **change}.items() if array is not None}
    with pytest.raises(StateError, match=words):
        Histories().restore(changed, 24)
