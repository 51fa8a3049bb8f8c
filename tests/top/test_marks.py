"""Drawings of characters: their lengths, heights and colours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.top.marks import BLOCKS, TIERS, curve, height, round_bars, share_bar, tier_of


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))), st.booleans())
def test_each_round_is_one_character_of_its_tiers_colour(rounds: list[tuple[int, int]], blocks: bool) -> None:
    """A strip must not slip against the others."""
    bars = round_bars(rounds, blocks=blocks)
    assert len(bars.plain) == len(rounds)
    styles = [span.style for span in bars.spans for _ in range(span.start, span.end)]
    assert styles == [tier_of(depth)[1] for depth, _ in rounds]


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_more_is_never_drawn_lower(one: float, other: float) -> None:
    """In blocks and in digits."""
    for blocks, order in ((True, BLOCKS), (False, "12345678")):
        low, high = height(min(one, other), blocks=blocks), height(max(one, other), blocks=blocks)
        assert order.index(low) <= order.index(high)


def test_depths_fall_into_groups() -> None:
    """Every depth into one."""
    assert [tier_of(depth)[0] for depth in (0, 1, 2, 3, 4, 6, 7, 64)] == [
        *("off", "1", "2-3", "2-3", "4-6", "4-6", "7 or more", "7 or more")
    ]
    assert len({colour for _, _, colour in TIERS}) == len(TIERS)


def test_curves_and_bars_have_the_length_they_were_given() -> None:
    """Whatever is unknown is blank."""
    assert curve([None, 0.0, 4.0, 8.0], 8.0, "green", blocks=True).plain == "  ▄█"
    assert [len(share_bar(share, 12, "blue", blocks=False).plain) for share in (0.0, 0.4, 1.0)] == [12] * 3
