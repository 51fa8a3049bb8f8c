"""The page as text, at the widths and heights that terminals have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adaptspec.top.picture import Connection, Picture, Policy
from adaptspec.top.view import Page
from adaptspec.types import REASON_WORDS, Reason
from tests.top.recorded import picture, recorded

POLICY = Policy("goodput", "the most tokens per second", "kind: SpeculationPolicy\nspec:\n  max-depth: 12\n")


def drawn(
    made: Picture | None, width: int, height: int = 40, *, encoding: str = "utf-8", state: str = "live", text: str = ""
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(Page("http://h:8000", made, Connection(state, text), POLICY))
    out.seek(0)
    return out.read().splitlines()


def test_everything_is_there() -> None:
    """Speed and the line without speculation, tasks, depths, reasons, the policy, and a strip per request."""
    made = picture()
    lines = drawn(made, 120)
    text = "\n".join(lines)
    for words in (
        *("live", "bundled", "tokens/s", "without speculation", "acceptance length", "since the start"),
        *("entropy", "depths", "7 or more", "reasons", "explore", "policy in force  goodput", "max-depth: 12"),
    ):
        assert words in text
    for seen in made.running.values():
        (line,) = (line for line in lines if seen.id.partition("-")[2][:8] in line)
        assert not seen.bars or line.rstrip()[-1] in "▁▂▃▄▅▆▇█"


def test_who_hardly_drafts_is_told_why() -> None:
    """Someone who looks should not have to read that from a table of reasons."""
    made = picture()
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
    made = picture()
    assert made.earnings is not None
    made.earnings |= {"speedup": None, "best_static": None, "regret": None, "costs_unsure": True}
    text = "\n".join(drawn(made, 160))
    assert "speed-up unknown yet" in text
    assert "best fixed" not in text
    assert "costs are unsure: measuring again" in text


@pytest.mark.parametrize("width", [20, 36, 60, 80, 100, 140, 240])
def test_it_fits_every_width(width: int) -> None:
    """No line is longer than the terminal is wide; what matters most comes first."""
    lines = drawn(picture(), width, 24)
    assert max(map(len, lines)) <= width
    assert any("tokens/s" in line for line in lines[:8])


def test_it_needs_no_unicode() -> None:
    """A terminal that knows ASCII only gets digits and crosses, not errors."""
    text = "\n".join(drawn(picture(), 80, encoding="ascii"))
    assert "#" in text
    assert text.isascii()


def test_states_are_clear() -> None:
    """Nothing yet, connection lost with the last figures still shown, draining."""
    waiting = drawn(None, 80, state="connecting")
    assert len(waiting) == 1
    assert "connecting" in waiting[0]
    lost = "\n".join(drawn(picture(), 80, state="lost", text="it is silent; trying again"))
    assert "lost" in lost
    assert "it is silent" in lost
    assert "tokens/s" in lost
    snapshot, _ = recorded()
    draining = Picture.of({**snapshot, "load": {"status": "draining", "running": 1, "waiting": 0}})
    assert "draining" in drawn(draining, 120)[0]


def test_an_idle_server_is_no_error() -> None:
    """No requests, no rounds, no estimate."""
    snapshot, _ = recorded()
    idle = Picture.of({**snapshot, "seconds": [], "running": [], "recent": [], "earnings": None})
    text = "\n".join(drawn(idle, 120))
    assert "no request runs" in text
    assert "estimate" not in text


def test_more_requests_than_lines_are_counted() -> None:
    """The tables below stay in sight."""
    snapshot, _ = recorded()
    many = [{**snapshot["running"][0], "id": f"cmpl-{i:08}"} for i in range(40)]
    lines = drawn(Picture.of({**snapshot, "running": many}), 120, 30)
    assert sum("runs" in line for line in lines) == 10
    assert any("and 30 more" in line for line in lines)
