"""N-gram indexes stay within their bounds whatever is served, share nothing between scopes, and survive a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.drafting.ngram_index import MAX_CONTEXT, Histories, NgramIndex, advance, all_contexts, contexts_at
from adaptspec.errors import StateError

TEXTS = st.lists(st.integers(0, 30), max_size=40)


def _count(index: NgramIndex, text: list[int]) -> None:
    contexts: list[int] = []
    for token in text:
        index.add(contexts, token)
        contexts = advance(contexts, token)


def _context(tokens: tuple[int, ...]) -> int:
    """The hash of these tokens, `MAX_CONTEXT` at most."""
    return contexts_at(list(tokens), len(tokens))[-1]


@given(TEXTS)
def test_contexts_of_a_whole_text_are_those_met_token_by_token(text: list[int]) -> None:
    """A corpus is counted at once, a request as it comes: both must mean the same."""
    whole = all_contexts(np.array([*text, 0], dtype=np.int64))
    contexts: list[int] = []
    for place, token in enumerate([*text, 0]):
        assert contexts == contexts_at(text, place)
        assert contexts == [int(whole[n][place]) for n in range(min(place, MAX_CONTEXT))]
        contexts = advance(contexts, token)


@given(TEXTS)
def test_what_followed_is_counted_in_every_order(text: list[int]) -> None:
    index = NgramIndex(10_000)
    _count(index, text)
    expected: dict[tuple[int, ...], dict[int, int]] = {}
    for place in range(1, len(text)):
        for n in range(1, min(place, MAX_CONTEXT) + 1):
            known = expected.setdefault(tuple(text[place - n : place]), {})
            known[text[place]] = known.get(text[place], 0) + 1
    assert len(index) == len(expected)
    for context, known in expected.items():
        found = index.followers(_context(context))
        assert len(found) <= 8
        if len(known) <= 8:
            assert found == known
    assert not index.followers(_context((99,)))


@given(TEXTS, st.integers(1, 20))
def test_a_context_of_both_generations_has_the_counts_of_both(text: list[int], max_contexts: int) -> None:
    """What an index still knows is never more than what was counted, and of its latest token it knows all contexts."""
    bounded, whole = NgramIndex(max_contexts), NgramIndex(10_000)
    _count(bounded, text)
    _count(whole, text)
    for context, token, _ in whole.entries():
        assert bounded.followers(context).get(token, 0) <= whole.followers(context).get(token, 0)
    for context in contexts_at(text, len(text) - 1) if len(text) > 1 else ():
        assert bounded.followers(context)[text[-1]] > 0


def test_a_million_tokens_stay_within_the_bound_and_the_oldest_goes() -> None:
    """Half of them noise, half a few phrases, as an attacker or a busy server would send."""
    rng = np.random.default_rng(0)
    histories = Histories(2**12)
    phrases = [rng.integers(0, 50_000, 20).tolist() for _ in range(50)]
    keys = [f"key {i}" for i in range(7)]
    sent = 0
    while sent < 10**6:
        index = histories.index_of(keys[int(rng.integers(len(keys)))])
        text = rng.integers(0, 50_000, 500).tolist() + phrases[int(rng.integers(50))] * 25
        _count(index, text)
        sent += len(text)
        assert len(index) <= 2**11 + 2 * MAX_CONTEXT
    assert len(histories) <= 2**12 + 2**11 + 2 * MAX_CONTEXT
    assert all(len(index.followers(context)) <= 16 for context, _, _ in index.entries())
    old = NgramIndex(10)
    _count(old, [1, 2, 3])
    _count(old, list(range(100, 140)))
    assert not old.followers(_context((1,)))


def test_scopes_share_nothing_and_the_least_used_goes_first() -> None:
    histories = Histories(100)
    _count(histories.index_of("key a"), [1, 2, 3, 1, 2, 3])
    assert not len(histories.index_of("key b"))
    assert len(histories.index_of("key a")) > 0
    for name in ("key c", "key d", "key e", "key f"):
        _count(histories.index_of(name), list(range(60)))
    assert not len(histories.index_of("key b"))
    assert not len(histories.index_of("key a")), "forgotten: others have been served since"


@given(st.dictionaries(st.sampled_from(["key a", "key b"]), TEXTS))
def test_histories_come_back_from_their_arrays(texts: dict[str, list[int]]) -> None:
    kept, restored = Histories(), Histories()
    for scope, text in texts.items():
        _count(kept.index_of(scope), text)
    restored.restore(kept.arrays(), 31)
    assert len(restored) == len(kept)
    for scope in texts:
        index = kept.index_of(scope)
        for context, _, _ in index.entries():
            assert restored.index_of(scope).followers(context) == index.followers(context)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": np.array([99], dtype=np.uint32)}, "token or a scope"),
        ({"scope": np.array([7], dtype=np.uint32)}, "token or a scope"),
        ({"count": np.array([0], dtype=np.uint32)}, "token or a scope"),
        ({"scopes": np.array(["server", "server"])}, "two scopes of one name"),
        ({"count": np.array([1, 2], dtype=np.uint32)}, "one length"),
        ({"count": np.array([1.0])}, "unsigned integers"),
        ({"count": np.array(1, dtype=np.uint32)}, "unsigned integers"),
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
