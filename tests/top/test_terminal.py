"""The page as text, at the widths and heights that terminals have."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from adaptspec.top.feed import Connection, Feed, LiveState, Policy
from adaptspec.top.terminal import BLOCKS, TIERS, Page, curve, height, round_bars, share_bar, tier_of
from adaptspec.types import REASON_WORDS, Reason
from tests.top.recorded import recorded, state

POLICY = Policy("goodput", "the most tokens per second", "kind: SpeculationPolicy\nspec:\n  max-depth: 12\n")


def drawn(
    made: LiveState | None,
    width: int,
    height: int = 40,
    *,
    encoding: str = "utf-8",
    state: str = "live",
    text: str = "",
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=out, width=width, height=height, color_system=None)
    feed = Feed("http://h:8000", None)
    feed.state, feed.connection, feed.policy = made, Connection(state, text), POLICY
    console.print(Page(feed))
    out.seek(0)
    return out.read().splitlines()


def test_everything_is_there() -> None:
    """Speed and the line without speculation, tasks, depths, reasons, the policy, and a strip per request."""
    made = state()
    lines = drawn(made, 120)
    text = "\n".join(lines)
    for words in (
        *("live", "bundled", "tokens/s", "without speculation", "acceptance length", "since the start"),
        *("entropy", "depths", "7 or more", "reasons", "explore", "policy in force  goodput", "max-depth: 12"),
    ):
        assert words in text
    for seen in made.running.values():
        (line,) = (line for line in lines if seen.told["id"].partition("-")[2][:8] in line)
        assert not seen.bars or line.rstrip()[-1] in "▁▂▃▄▅▆▇█"


def test_who_hardly_drafts_is_told_why() -> None:
    """Someone who looks should not have to read that from a table of reasons."""
    made = state()
    assert "hardly anything is drafted" not in "\n".join(drawn(made, 120))
    for told in made.seconds:
        assert isinstance(told, dict)
        told["off"] = [0] * 10
        told["off"][Reason.GUARD] = told["rows"]
    text = " ".join("\n".join(drawn(made, 120)).split())
    assert "hardly anything is drafted: 100% of the last minute's rounds were off" in text
    assert REASON_WORDS[Reason.GUARD] in text


def test_what_is_not_known_is_not_made_up() -> None:
    """And who looks is told when costs are unsure."""
    made = state()
    assert made.earnings is not None
    made.earnings |= {"speedup": None, "best_static": None, "regret": None, "costs_unsure": True}
    text = "\n".join(drawn(made, 160))
    assert "speed-up unknown yet" in text
    assert "best fixed" not in text
    assert "costs are unsure: measuring again" in text


@pytest.mark.parametrize("width", [20, 36, 60, 80, 100, 140, 240])
def test_it_fits_every_width(width: int) -> None:
    """No line is longer than the terminal is wide; what matters most comes first."""
    lines = drawn(state(), width, 24)
    assert max(map(len, lines)) <= width
    assert any("tokens/s" in line for line in lines[:8])


def test_it_needs_no_unicode() -> None:
    """A terminal that knows ASCII only gets digits and crosses, not errors."""
    text = "\n".join(drawn(state(), 80, encoding="ascii"))
    assert "#" in text
    assert text.isascii()


def test_states_are_clear() -> None:
    """Nothing yet, connection lost with the last figures still shown, draining."""
    waiting = drawn(None, 80, state="connecting")
    assert len(waiting) == 1
    assert "connecting" in waiting[0]
    lost = "\n".join(drawn(state(), 80, state="lost", text="it is silent; trying again"))
    assert "lost" in lost
    assert "it is silent" in lost
    assert "tokens/s" in lost
    snapshot, _ = recorded()
    draining = LiveState.of({**snapshot, "load": {"status": "draining", "running": 1, "waiting": 0}})
    assert "draining" in drawn(draining, 120)[0]


def test_an_idle_server_is_no_error() -> None:
    """No requests, no rounds, no estimate."""
    snapshot, _ = recorded()
    idle = LiveState.of({**snapshot, "seconds": [], "running": [], "recent": [], "earnings": None})
    text = "\n".join(drawn(idle, 120))
    assert "no request runs" in text
    assert "estimate" not in text


def test_more_requests_than_lines_are_counted() -> None:
    """The tables below stay in sight."""
    snapshot, _ = recorded()
    many = [{**snapshot["running"][0], "id": f"cmpl-{i:08}"} for i in range(40)]
    lines = drawn(LiveState.of({**snapshot, "running": many}), 120, 30)
    assert sum("runs" in line for line in lines) == 10
    assert any("and 30 more" in line for line in lines)


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
