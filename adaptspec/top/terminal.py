"""The terminal: one page, as wide and high as it is, drawn several times a second until somebody quits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from adaptspec.quantity import quantity
from adaptspec.top.feed import Connection, Feed, Json, LiveState, Policy, SeenRequest
from adaptspec.top.summary import SHARE_SECONDS, MostlyOff, Summary, latest, speedup, summary

_WIDE = 100  # columns from which tables stand side by side
_CURVE_SECONDS = 60
_OTHER_LINES = 20  # above and below the strips
_FEW, _MANY = 3, 16  # strips
_FRAMES_PER_SECOND = 4.0
_GAIN = 1.005  # a speed-up below this is shown as none
_QUIT = frozenset(b"qQ")
BLOCKS = "▁▂▃▄▅▆▇█"
# Depths in few groups, which a handful of colours tells apart: (name, deepest of the group, colour).
TIERS = (
    ("off", 0, "bright_black"),
    ("1", 1, "cyan"),
    ("2-3", 3, "green"),
    ("4-6", 6, "yellow"),
    ("7 or more", 10**9, "magenta"),
)


async def show(feed: Feed, console: Console) -> None:
    """Draw until q, Ctrl-C or another signal. Raises ServerError where asking again is of no use."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, done.set)
    following = [asyncio.create_task(feed.follow()), asyncio.create_task(feed.follow_policy())]
    following[0].add_done_callback(lambda _: done.set())
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live, _keys(loop, done):
        while not done.is_set():
            live.update(Page(feed, "q quits"), refresh=True)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(done.wait(), 1.0 / _FRAMES_PER_SECOND)
    for task in following:
        task.cancel()
    for end in await asyncio.gather(*following, return_exceptions=True):
        if isinstance(end, Exception):
            raise end


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> Iterator[None]:
    """Keys are heard as they are pressed; the terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield  # the terminal is only written to: signals end it
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def pressed() -> None:
        if _QUIT.intersection(os.read(descriptor, 64)):
            done.set()

    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Page:
    """Everything at once, as of when it is rendered; `hint` says what keys do."""

    def __init__(self, feed: Feed, hint: str = "") -> None:
        self._feed, self._hint = feed, hint

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, blocks = self._feed.state, _has_blocks(console)
        yield _headline(self._feed.url, state, self._feed.connection)
        if state is None:
            return
        figures = summary(state)
        yield _speed(state, figures, options.max_width, blocks=blocks)
        if (figures.since_start or {}).get("costs_unsure"):
            yield Text("costs are unsure: measuring again. Rounds take other times than were expected", "yellow")
        if figures.mostly_off is not None:
            yield _off(figures.mostly_off)
        room = min(_MANY, max(_FEW, (options.height or console.height) - _OTHER_LINES))
        yield Rule("requests", style="dim", align="left")
        yield _strips(state, options.max_width, room, blocks=blocks)
        yield legend().append(f"  {self._hint}", "dim")
        parts = [_tasks(figures), _tiers(figures, blocks=blocks), _reasons(figures, blocks=blocks)]
        if self._feed.policy is not None:
            parts.append(_policy(self._feed.policy))
        yield _beside(parts, console, options)


def _has_blocks(console: Console) -> bool:
    return "utf" in console.encoding.lower()


def _headline(url: str, state: LiveState | None, connection: Connection) -> RenderableType:
    colour = {"live": "green", "connecting": "yellow"}.get(connection.state, "red")
    line = Text.assemble(("AdaptSpec ", "bold"), (url, "dim"), "  ", (connection.state, colour))
    if state is not None:
        status = state.load["status"]
        line.append(f"  {state.server['model']}", "bold")
        if status != "ok":
            line.append(f"  {status}", "bold red")
        line.append(f"  {state.load['running']} running, {state.load['waiting']} waiting")
        if state.missed:
            line.append(f"  {quantity(state.missed, 'round', form=',')} missed", "yellow")
    if connection.text:
        line.append(f"  {connection.text}", colour)
    return line


def _off(mostly: MostlyOff) -> Text:
    return Text(
        f"hardly anything is drafted: {mostly.share:.0%} of the last minute's rounds were off. Most frequent reason "
        f"({mostly.reason}): {mostly.words}",
        "yellow",
    )


def _speed(state: LiveState, figures: Summary, width: int, *, blocks: bool) -> RenderableType:
    line = Text.assemble((f"{figures.tokens_per_second:,.0f}", "bold"), " tokens/s")
    if figures.plain_tokens_per_second is not None and figures.speedup is not None:
        colour = "green" if figures.speedup > _GAIN else "red" if figures.speedup < 1.0 / _GAIN else "default"
        line.append(f"   without speculation {figures.plain_tokens_per_second:,.0f}", "dim")
        line.append(f"   {figures.speedup:.2f} x", f"bold {colour}")
    if figures.acceptance_length is not None:
        line.append(f"   acceptance length {figures.acceptance_length:.2f}")
    if figures.drafting is not None:
        line.append(f"   drafting {figures.drafting:.0%}")
    if figures.nodes is not None:
        line.append(f"   {figures.nodes:.1f} nodes a draft")
    count = max(1, min(_CURVE_SECONDS, width - 12))
    end = int(state.now())
    told = {second["at"]: second for second in latest(state, count)}
    speeds = [float(told[at]["emitted"]) if at in told else 0.0 for at in range(end - count, end)]
    gains = [speedup([told[at]]) if at in told else None for at in range(end - count, end)]
    plain = [speed / gain if gain else None for speed, gain in zip(speeds, gains, strict=True)]
    most = max([*speeds, *(value for value in plain if value)], default=0.0)
    curves = Table.grid(padding=(0, 1))
    curves.add_row(curve(speeds, most, "green", blocks=blocks), Text("now", "green"))
    curves.add_row(curve(plain, most, "bright_black", blocks=blocks), Text("plain", "dim"))
    parts: list[RenderableType] = [line, curves]
    if figures.since_start and width >= _WIDE:
        parts.append(_since_start(figures))
    return Group(*parts)


def _since_start(figures: Summary) -> Text:
    told = figures.since_start or {}
    speed, best, regret = told["speedup"], told["best_static"], told["regret"]
    words = "since the start: "
    words += f"{_between(speed, '.2f')} x plain; " if speed else "speed-up unknown yet (too few plain rounds); "
    if best and regret:
        name = "off" if best["drafter"] is None else f"{best['drafter']} at {best['depth']}"
        words += f"{_between(regret, '+.1%')} time against the best fixed setting ({name}); "
    words += f"{told['saved_tokens']:,} drafted tokens kept, {told['wasted_tokens']:,} discarded"
    return Text(words, "dim", no_wrap=True, overflow="ellipsis")


def _between(found: Json, form: str) -> str:
    return f"{found['value']:{form}} ({found['low']:{form}} to {found['high']:{form}})"


def _strips(state: LiveState, width: int, room: int, *, blocks: bool) -> RenderableType:
    """Running requests first, then those that ended last, as far as there is room."""
    ended = [seen for seen in reversed(state.recent) if seen.bars]
    shown = [*state.running.values(), *ended][:room]
    if not shown:
        return Text("no request runs", "dim")
    table = Table.grid(padding=(0, 1))
    names = [_name(seen, width) for seen in shown]
    left = width - max(len(name) for name in names) - 8
    for seen, name in zip(shown, names, strict=True):
        table.add_row(
            Text(name, "dim" if seen.ended else ""),
            Text(f"{seen.told['tokens']:>5}", "dim" if seen.ended else "bold"),
            round_bars([(bar.depth, bar.emitted) for bar in list(seen.bars)[-max(1, left) :]], blocks=blocks),
        )
    hidden = len(state.running) - len(shown)
    return Group(table, Text(f"and {hidden} more", "dim")) if hidden > 0 else table


def _name(seen: SeenRequest, width: int) -> str:
    first, _, rest = seen.told["id"].partition("-")
    short = (rest or first)[:8]
    words = [short, seen.told["task"] or "-"]
    if width >= _WIDE:
        words += [seen.told["policy"] or "-", seen.told["finish"] if seen.ended else "runs"]
    return " ".join(f"{word[:13]:<{8 if i == 0 else 11}}" for i, word in enumerate(words)).rstrip()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="dim", box=None, padding=(0, 1), show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 or not column else "right", header_style="dim", no_wrap=True)
    return table


def _tasks(figures: Summary) -> RenderableType:
    table = _table(f"tasks, last {SHARE_SECONDS} s", "task", "tokens", "length", "entropy")
    for task, own in list(figures.tasks.items())[:10]:
        table.add_row(task, f"{own.emitted:,}", _fixed(own.acceptance_length), _fixed(own.entropy))
    return table


def _tiers(figures: Summary, *, blocks: bool) -> RenderableType:
    table = _table("depths", "depth", "", "share")
    for name, _, colour in TIERS:
        share = sum(share for depth, share in figures.tiers.items() if tier_of(depth)[0] == name)
        table.add_row(name, share_bar(share, 12, colour, blocks=blocks), f"{share:.0%}")
    return table


def _reasons(figures: Summary, *, blocks: bool) -> RenderableType:
    table = _table("reasons", "why", "", "share")
    for name, share in sorted(figures.reasons.items(), key=lambda item: -item[1]):
        table.add_row(name, share_bar(share, 12, "blue", blocks=blocks), f"{share:.0%}")
    return table


def _policy(policy: Policy) -> RenderableType:
    body = policy.yaml.partition("\nspec:")[2]
    head = Text.assemble(("policy in force  ", "dim"), (policy.name, "bold"))
    if not body:
        return Group(head, Text(policy.description, "dim"))
    return Group(head, Syntax("spec:" + body.rstrip(), "yaml", background_color="default", word_wrap=False))


def _beside(parts: list[RenderableType], console: Console, options: ConsoleOptions) -> RenderableType:
    """Side by side as many as there is room for, the others below."""
    widths = [Measurement.get(console, options, part).maximum + 3 for part in parts]
    count = len(parts)
    while count > 1 and sum(widths[:count]) > options.max_width:
        count -= 1
    row = Table.grid()
    for width in widths[:count]:
        row.add_column(no_wrap=True, overflow="crop", width=width)
    row.add_row(*parts[:count])
    return row if count == len(parts) else Group(row, _beside(parts[count:], console, options))


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


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
