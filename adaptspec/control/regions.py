"""What kind of text an output is in the middle of: prose, code or JSON, followed while it grows.

The answer depends on the text alone, not on the pieces it came in, and costs what the new characters cost. Knows
nothing of tokens and of models.
"""

from __future__ import annotations

import re

from adaptspec.control.tasks import REGIONS

PROSE, CODE, JSON = (REGIONS.index(name) for name in ("prose", "code", "json"))

_FENCE = re.compile(r" {0,3}(```|~~~)[`~]* *(\w*)")
_FENCE_END = re.compile(r" {0,3}(```|~~~)[`~]* *$")
_MARKS = ("`", "~")
_JSON_NAMES = ("json", "jsonc", "json5", "jsonl", "ndjson")
_OPENING = re.compile(r"\s*[{\[]")
_FIRST_INSIDE = re.compile(r"\S")
_INDENT = ("  ", "\t")

# How lines of code begin. Whatever matches still does when the line goes on, so a line is known as code for good.
_CODE_HEAD = re.compile(
    r"\s*(?:(?:async )?def \w+\(|class \w+[:({]|from [\w.]+ import |return[ ;(]|#include|#!/|// |/\*|>>> |@\w+\("
    r"|(?:public|private|protected|static|const|let|var|func|fn|function|struct|enum|namespace|package) \w+(?: \w+)*"
    r" ?[;{(=]|(?:SELECT|INSERT INTO|CREATE TABLE|DELETE FROM) [\w*\"(]|UPDATE \w+ SET|<[/!]?[A-Za-z][^<>]*>"
    r"|[\w.\[\]]+ (?:[-+*/|&:]?=|<-) ?(?:[\"'\[{]|\w+[.(])|(?:if|for|while|switch) ?\()"
)
# What only a whole line can show.
_CODE_LINE = re.compile(
    r"\s*(?:import [\w.{}*, ]+(?: as \w+)?;?|@\w[\w.]*|(?:else|try|finally):?|for [\w, ]+ in .*:|(?:if|elif|while) .*"
    r"(?:[=<>(\[]| in | not ).*:|with .*\(.*:|[\w.]+\(.*\);?|return|.*(?:[;{}]|\) ?=>))\s*$"
)
_HEAD_SEEN = 80  # characters of a line that can show it to be code while it is being written
_LONGEST = 200  # characters of a line that are looked at when it is complete


class OutputRegion:
    """Follows one growing text.

    A code fence is code (JSON if it says so) until it is closed. Outside fences, a line that opens an object or an
    array begins JSON, until it is closed or cannot be JSON; lines that look like code are code, and so are empty and
    indented lines after them; all else is prose. A line being written is as the line before until it shows otherwise.
    """

    def __init__(self, before: str = "") -> None:
        """`before` is what the text continues: it may leave a fence open."""
        self._line = ""  # the line being written, its first _LONGEST characters
        self._column = 0  # its length
        self._mode = PROSE  # of the lines before it
        self._fence = ""  # the marks that opened the fence, if one is open
        self._json: _Nesting | None = None  # of the line being written, or going on from one before
        self._head_is_code: bool | None = None  # None: the line may still show
        self._read = 0
        self.read(before)
        self._read = 0

    def read(self, text: str) -> int:
        """The region (index into REGIONS) at the end of `text`, which begins with all that was read before."""
        if len(text) > self._read:
            first, *others = text[self._read :].split("\n")
            self._read = len(text)
            self._write(first)
            for line in others:
                self._end_line()
                self._write(line)
        return self._now()

    def _write(self, piece: str) -> None:
        if not piece:
            return
        start, self._column = self._column, self._column + len(piece)
        if start < _LONGEST:
            blank = not self._line or self._line.isspace()
            self._line = (self._line + piece)[:_LONGEST]
            if blank and self._json is None and not self._fence and self._mode != CODE:
                opening = _OPENING.match(self._line)
                if opening is not None:
                    self._json = _Nesting(self._line[opening.end() - 1])
                    piece, start = self._line[opening.end() :], opening.end()
        if self._json is not None:
            self._json.read(piece, start)

    def _end_line(self) -> None:
        if self._json is not None:
            self._json.end_line()
        if self._json is None or self._json.broken:
            self._mode = self._after(self._line)
        elif not self._json.open:
            self._mode = PROSE
        if self._json is not None and not self._json.open:
            self._json = None
        self._line, self._column, self._head_is_code = "", 0, None

    def _after(self, line: str) -> int:
        """The region that a complete line outside JSON leads into."""
        if self._fence:
            end = _FENCE_END.match(line)
            if end is None or end.group(1) != self._fence:
                return self._mode
            self._fence = ""
            return PROSE
        fence = _FENCE.match(line)
        if fence is not None:
            self._fence = fence.group(1)
            return _fenced(fence)
        if not line.strip() or (self._mode == CODE and line.startswith((*_INDENT, "#"))):
            return self._mode
        return CODE if _CODE_HEAD.match(line[:_HEAD_SEEN]) or _CODE_LINE.match(line) else PROSE

    def _now(self) -> int:
        if self._json is not None and not self._json.broken:
            return JSON if self._json.open else PROSE
        if self._fence:
            end = _FENCE_END.match(self._line) if self._column <= _LONGEST else None
            return PROSE if end is not None and end.group(1) == self._fence else self._mode
        if self._head_is_code is None and self._line:
            fence = _FENCE.match(self._line) if self._line.lstrip(" ").startswith(_MARKS) else None
            if fence is not None:
                return _fenced(fence)
            if _CODE_HEAD.match(self._line[:_HEAD_SEEN]):
                self._head_is_code = True
            elif self._column >= _HEAD_SEEN:
                self._head_is_code = False
        return CODE if self._head_is_code else self._mode


class _Nesting:
    """Brackets of a JSON value, from its first one on. `broken`: it turned out to be something else."""

    def __init__(self, bracket: str) -> None:
        self.broken = False
        self._depth = 1
        self._may_follow = '"}' if bracket == "{" else '"{[]-0123456789'
        self._first = True  # nothing has followed the first bracket yet
        self._in_string = False
        self._escaped = -1  # column of the character after a backslash

    @property
    def open(self) -> bool:
        """Whether the value goes on."""
        return not self.broken and self._depth > 0

    def read(self, piece: str, column: int) -> None:
        """More of a line, from `column` on."""
        if self.open and self._first:
            inside = _FIRST_INSIDE.search(piece)
            if inside is not None:
                self._first = False
                self.broken = inside.group() not in self._may_follow
        if not self.open:
            return
        if "\\" in piece or self._escaped >= column:
            piece = self._without_escapes(piece, column)
        for i, part in enumerate(piece.split('"')):
            if i:
                self._in_string = not self._in_string
            if not self._in_string and part:
                self._count(part)
                if not self._depth:
                    return

    def end_line(self) -> None:
        """JSON has no line breaks inside strings."""
        self.broken = self.broken or (self.open and self._in_string)
        self._escaped = -1

    def _without_escapes(self, piece: str, column: int) -> str:
        """The piece with backslashes, and what they escape, made harmless."""
        kept = []
        for at, character in enumerate(piece, start=column):
            escaped = at == self._escaped
            if character == "\\" and not escaped:
                self._escaped = at + 1
            kept.append(" " if escaped or character == "\\" else character)
        return "".join(kept)

    def _count(self, part: str) -> None:
        """Follow the brackets of a part outside strings; what comes after the last one closes is not looked at."""
        closing = part.count("}") + part.count("]")
        if closing < self._depth:
            self._depth += part.count("{") + part.count("[") - closing
            return
        for character in part:
            self._depth += (character in "{[") - (character in "}]")
            if not self._depth:
                return


def _fenced(fence: re.Match[str]) -> int:
    return JSON if fence.group(2).lower() in _JSON_NAMES else CODE
