"""Small drawings of characters: bars of rounds, curves, and shares. Knows numbers and colours, not what they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
# Depths in few groups, which a handful of colours tells apart: (name, deepest of the group, colour).
TIERS = (
    ("off", 0, "bright_black"),
    ("1", 1, "cyan"),
    ("2-3", 3, "green"),
    ("4-6", 6, "yellow"),
    ("7 or more", 10**9, "magenta"),
)


def tier_of(depth: int) -> tuple[str, str]:
    """The name and the colour of a depth's group."""
    return next((name, colour) for name, deepest, colour in TIERS if depth <= deepest)


def height(share: float, *, blocks: bool) -> str:
    """A character for a share of the whole; without block characters, a digit."""
    step = min(7, max(0, round(share * 8) - 1))
    return BLOCKS[step] if blocks else str(step + 1)


def round_bars(rounds: Iterable[tuple[int, int]], *, blocks: bool) -> Text:
    """One character per round of (depth, emitted): as high as what it emitted (full at 8), coloured by depth."""
    bars = Text(no_wrap=True, overflow="crop")
    for depth, emitted in rounds:
        bars.append(height(emitted / 8, blocks=blocks) if emitted else " ", tier_of(depth)[1])
    return bars


def curve(values: Sequence[float | None], most: float, colour: str, *, blocks: bool) -> Text:
    """One character per value; None and 0 are blank."""
    drawn = "".join(height(value / most, blocks=blocks) if value and most else " " for value in values)
    return Text(drawn, colour, no_wrap=True, overflow="crop")


def share_bar(share: float, width: int, colour: str, *, blocks: bool) -> Text:
    """A horizontal bar, `width` characters at 1."""
    filled = round(share * width)
    return Text(("█" if blocks else "#") * filled + " " * (width - filled), colour)


def legend() -> Text:
    """What the colours mean."""
    words = Text("depth ")
    for name, _, colour in TIERS:
        words.append(f"{name}  ", colour)
    return words
