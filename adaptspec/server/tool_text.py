"""Reads tool calls out of an answer as it comes, piece by piece; the whole answer is read by the same rules.

Knows the form that `tools` gives to calls; what it has no calls in is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adaptspec.server.tools import HEAD, MIDDLE, TAIL


@dataclass(frozen=True)
class Words:
    """Text beside all calls."""

    text: str


@dataclass(frozen=True)
class Opened:
    """A call begins; `index` counts them from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


Part = Words | Opened | Arguments


class ToolText:
    """One answer. White space before a call is left out, and so is what ends an answer with calls."""

    def __init__(self) -> None:
        self._buffer = ""
        self._place = HEAD  # what is looked for next
        self.calls = 0
        self._blank = ""  # white space that is text only if text follows

    @property
    def whole(self) -> bool:
        """Whether every call that was begun has been closed."""
        return self._place == HEAD

    def feed(self, text: str) -> Iterator[Part]:
        """What is certain now."""
        self._buffer += text
        while True:
            before, found, after = self._buffer.partition(self._place)
            if not found:
                break
            yield from self._told(before)
            self._buffer = after
            yield from self._turn(before)
        certain = len(self._buffer) - _overlap(self._buffer, self._place)
        if self._place != MIDDLE:
            ready, self._buffer = self._buffer[:certain], self._buffer[certain:]
            yield from self._told(ready)

    def end(self) -> Iterator[Part]:
        """What was held back; a call that was cut short stays as it is."""
        if self._place != MIDDLE:
            yield from self._told(self._buffer)
        if self._blank and not self.calls:
            yield Words(self._blank)

    def _turn(self, before: str) -> Iterator[Part]:
        """Past what was looked for."""
        if self._place == HEAD:
            self._place, self._blank = MIDDLE, ""
        elif self._place == MIDDLE:
            self._place = TAIL
            self.calls += 1
            yield Opened(self.calls - 1, before)
        else:
            self._place = HEAD

    def _told(self, text: str) -> Iterator[Part]:
        if self._place == TAIL and text:
            yield Arguments(self.calls - 1, text)
        elif self._place == HEAD and text:
            held = self._blank + text
            words = held.rstrip()
            self._blank = held[len(words) :]
            if words:
                yield Words(words)


class PlainText:
    """One answer that may call nothing: all of it is text."""

    calls = 0
    whole = True

    def feed(self, text: str) -> Iterator[Part]:
        """The text itself."""
        if text:
            yield Words(text)

    def end(self) -> Iterator[Part]:
        """Nothing was held back."""
        yield from ()


def reader_of(calls: bool) -> ToolText | PlainText:
    """What reads an answer; `calls`: it may call tools."""
    return ToolText() if calls else PlainText()


def _overlap(text: str, wanted: str) -> int:
    """How many characters at the end of `text` may be the beginning of `wanted`."""
    return next((size for size in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:size])), 0)
