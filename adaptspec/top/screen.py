"""The terminal: draws a feed several times a second until somebody quits. Knows keys and signals, not what is drawn."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from adaptspec.top.feed import Feed
from adaptspec.top.view import Page

_FRAMES_PER_SECOND = 4.0
_QUIT = frozenset(b"qQ")


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
            live.update(Page(feed.url, feed.picture, feed.connection, feed.policy, "q quits"), refresh=True)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(done.wait(), 1.0 / _FRAMES_PER_SECOND)
    for task in following:
        task.cancel()
    ends = await asyncio.gather(*following, return_exceptions=True)
    for end in ends:
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
