"""N-gram lookup: proposes what followed last time, stops where nothing is known, forgets freed rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from tests.fakes import array

NO_SAMPLING = SamplingBatch([], 8)


def propose(drafter: NgramDrafter, tokens: list[int], depth: int, row: int = 0) -> list[int]:
    draft: Draft = drafter.propose(DraftJob(array(row), [tokens], array(depth), NO_SAMPLING))
    return draft.tokens[0, : draft.counts[0]].tolist()


def test_proposes_what_followed_the_latest_longest_match() -> None:
    """The suffix (3, 4) was followed by 9 first and by 5 last; the longer suffix (2, 3, 4) decides."""
    drafter = NgramDrafter(longest=3, shortest=2)
    assert propose(drafter, [2, 3, 4, 9, 9, 3, 4, 5, 7, 2, 3, 4], 1) == [9]
    assert propose(NgramDrafter(longest=2, shortest=2), [2, 3, 4, 9, 9, 3, 4, 5, 7, 2, 3, 4], 3) == [5, 7, 2]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 6))
def test_a_draft_does_not_depend_on_the_round_it_is_made_in(tokens: list[int], first: int, second: int) -> None:
    """Exact replay needs it: drafting deep equals drafting shallow, committing that, and drafting on."""
    deep = propose(NgramDrafter(2, 1), list(tokens), first + second)
    shallow = NgramDrafter(2, 1)
    begin = propose(shallow, list(tokens), first)
    assert deep[:first] == begin
    if len(begin) == first:
        # Committing what was drafted adds n-grams to the memory: they say what it said already.
        assert begin + propose(shallow, tokens + begin, second) == deep


def test_a_freed_row_is_forgotten() -> None:
    """Rows are reused: nothing of one request may leak into the next."""
    drafter = NgramDrafter()
    assert propose(drafter, [1, 2, 3, 4, 1, 2], 2) == [3, 4]
    drafter.free(0)
    assert propose(drafter, [9, 9, 1, 2], 2) == []


@given(st.lists(st.integers(0, 2), min_size=3, max_size=40), st.integers(1, 6))
def test_a_shadow_is_what_it_would_have_drafted(tokens: list[int], emitted: int) -> None:
    """Scoring reads no further than the round's start, so the next draft is what it would have been without it."""
    start = max(1, len(tokens) - emitted)
    scored, plain = NgramDrafter(2, 1), NgramDrafter(2, 1)
    shadow = scored.shadow(0, tokens, start)
    would = propose(plain, tokens[:start], len(tokens) - start)
    right = [guess == token for guess, token in zip(would, tokens[start:], strict=False)]
    assert shadow == (len(would), right.index(False) if False in right else len(right))
    assert propose(scored, tokens, 4) == propose(plain, tokens, 4)


def test_a_draft_stops_at_the_end_of_the_text() -> None:
    """A prompt holds end tokens between its turns: what followed one there does not follow this answer."""
    assert propose(NgramDrafter(ends={4}), [1, 2, 3, 4, 5, 6, 1, 2], 7) == [3, 4]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 6), st.integers(1, 8))
def test_an_offer_is_what_is_then_drafted(tokens: list[int], most: int, depth: int) -> None:
    """Of an offer any part may be taken, or more asked for: the draft is the one made without looking first."""
    looked = NgramDrafter(2, 1)
    offered = len(looked.offer(0, tokens, most))
    draft = propose(looked, tokens, depth)
    assert offered == len(propose(NgramDrafter(2, 1), tokens, most)) if most else not offered
    assert draft == propose(NgramDrafter(2, 1), tokens, depth)
    assert len(draft) >= min(offered, depth)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.integers(1, 6), st.integers(1, 6))
def test_an_offer_that_has_gone_by_is_never_drafted(tokens: list[int], more: int, most: int) -> None:
    """Rounds in which it was left: by the next one there is more text, and what was found is found anew."""
    start = max(1, len(tokens) - more)
    looked = NgramDrafter(2, 1)
    looked.offer(0, tokens[:start], most)
    assert propose(looked, tokens, most) == propose(NgramDrafter(2, 1), tokens, most)
