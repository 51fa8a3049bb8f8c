"""The page as text, at the widths and heights that terminals have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adaptspec.top.feed import Connection, Feed, LiveState, Policy
from adaptspec.top.terminal import Page
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
