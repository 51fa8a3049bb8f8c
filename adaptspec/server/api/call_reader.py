"""Reads tool calls out of answers, in the form that their grammar has made them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from adaptspec.server.api.tool_forms import HERMES, ToolForm


@dataclass(frozen=True)
class TextPiece:
    """Text outside of all calls."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins; `index` counts them from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


Part = TextPiece | CallStart | CallArguments

# What an answer is looked through for next: a first call, the name of one, the end of its arguments, what closes it,
# another one, or nothing more.
_State = Literal["start", "name", "arguments", "tail", "next", "text"]


class CallReader:
    """Reads tool calls out of one answer as it comes, piece by piece; the whole answer is read by the same rules.

    White space before a call is left out, and so is what ends an answer with calls. Text is a call only if the answer
    may call something, and it has the form of a call; where calls only begin an answer, it must name a tool, too.
    """

    def __init__(self, expected: bool = True, form: ToolForm = HERMES, names: Sequence[str] = ()) -> None:
        """`expected` False: the answer may call nothing, and all of it is text. `names` are those of the tools."""
        self._form = form
        self._starts = {f"{form.start}{name}{form.separator}".lstrip(): name for name in names}
        self._state: _State = "start" if expected else "text"
        self._buffer = ""
        self._blank = ""  # white space that is text only if text follows
        self._arguments = _ObjectEnd()
        self.calls = 0

    @property
    def whole(self) -> bool:
        """Whether every call that was begun has been closed."""
        return self._state not in ("name", "arguments", "tail")

    def feed(self, text: str) -> Iterator[Part]:
        self._buffer += text
        before: tuple[_State, int] | None = None
        while before != (self._state, len(self._buffer)):
            before = (self._state, len(self._buffer))
            yield from self._step()

    def end(self) -> Iterator[Part]:
        """What was held back; a call that was cut short stays as it is."""
        if self._state == "start":
            yield from self._text(self._buffer)
        if self._blank and not self.calls:
            yield TextPiece(self._blank)

    def _step(self) -> Iterator[Part]:
        if self._state == "start":
            yield from self._find_anywhere() if self._form.mark else self._find_at_start()
        elif self._state == "name":
            name, found, rest = self._buffer.partition(self._form.separator)
            if found:
                yield from self._begin(name, rest)
        elif self._state == "arguments":
            size = self._arguments.feed(self._buffer)
            if size:
                yield CallArguments(self.calls - 1, self._buffer[:size])
            self._buffer = self._buffer[size:]
            if self._arguments.ended:
                self._state = "tail"
        elif self._state == "tail":
            if self._takes(self._form.tail):
                self._state = "start" if self._form.mark else "next"
        elif self._state == "next":
            yield from self._find_next()
        elif self._buffer:
            text, self._buffer = self._buffer, ""
            yield from self._text(text)

    def _find_anywhere(self) -> Iterator[Part]:
        head = self._form.head
        before, found, rest = self._buffer.partition(head)
        if found:
            yield from self._text(before)
            self._buffer, self._blank, self._state = rest, "", "name"
            return
        certain = len(self._buffer) - overlap(self._buffer, head)
        ready, self._buffer = self._buffer[:certain], self._buffer[certain:]
        yield from self._text(ready)

    def _find_at_start(self) -> Iterator[Part]:
        begun = self._buffer.lstrip()
        for start, name in self._starts.items():
            if begun.startswith(start):
                yield from self._begin(name, begun[len(start) :])
                return
        if not any(start.startswith(begun) for start in self._starts):
            self._state = "text"

    def _find_next(self) -> Iterator[Part]:
        """Another call, or the end of all of them; text behind it is text."""
        form = self._form
        another = None if form.between is None else form.between + form.head
        if another is not None and self._buffer.startswith(another):
            self._buffer, self._state = self._buffer[len(another) :], "name"
        elif form.closing and self._buffer.startswith(form.closing):
            self._buffer, self._state = self._buffer[len(form.closing) :], "text"
        elif self._buffer and not any(one and one.startswith(self._buffer) for one in (another, form.closing)):
            self._state = "text"
        yield from ()

    def _begin(self, name: str, rest: str) -> Iterator[Part]:
        self._buffer, self._state = rest, "arguments"
        self._arguments = _ObjectEnd()
        self.calls += 1
        yield CallStart(self.calls - 1, name)

    def _takes(self, wanted: str) -> bool:
        """Whether the buffer begins with it, which is then taken off; an answer in no form goes on as text."""
        if self._buffer.startswith(wanted):
            self._buffer = self._buffer[len(wanted) :]
            return True
        if not wanted.startswith(self._buffer):
            self._state = "text"
        return False

    def _text(self, text: str) -> Iterator[Part]:
        held = self._blank + text
        ready = held.rstrip() if self._state != "text" or self.calls else held
        self._blank = held[len(ready) :]
        if ready:
            yield TextPiece(ready)


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.ended = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                break
            at = match.end()
            mark = match[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escaped = True
            else:
                self._depth += 1 if mark == "{" else -1
                if self._depth == 0:
                    self.ended = True
                    return at
        return len(text)


_IN_STRING, _OUTSIDE = re.compile(r'["\\]'), re.compile(r'[{}"]')


def overlap(text: str, wanted: str) -> int:
    """How many characters at the end of `text` may be the beginning of `wanted`."""
    return next((size for size in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:size])), 0)
