"""Log-probabilities of an answer's tokens, cut to what of them is in its content."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from adaptspec.results import TokenLogprob
from adaptspec.server.api.answers import Bytes


@dataclass(frozen=True)
class ShownToken:
    """A token of the content, and its bytes that are in there."""

    entry: TokenLogprob
    raw: bytes


class ContentLogprobs:
    """Matches the tokens of one answer with its text, so that what is shown of them joins to the text.

    Tokens without text, such as the one that ends the answer, are left out, and of those of a stop string what was cut
    off. While an answer streams, a token is shown with the last of its text, which may be held back.
    """

    def __init__(self, bytes_of: Bytes, hidden: Collection[int] = (), leading: Bytes | None = None) -> None:
        """`hidden` are the special tokens, which are in no text. `leading` are the bytes of a token that begins one."""
        self._bytes_of = bytes_of
        self._hidden = hidden
        self._next = leading or bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[ShownToken, int]] = deque()  # with the bytes of text that are certain with it
        self._begin = 0  # where the text of the first of them begins, in bytes
        self._end = 0  # of the text so far

    def take(self, entries: Sequence[TokenLogprob], text: str, *, final: bool) -> list[ShownToken]:
        """Add the newest tokens and the newest text; return the tokens whose text is out."""
        for entry in entries:
            if entry.token not in self._hidden:
                raw, self._next = self._next(entry.token), self._bytes_of
                self._waiting.append((ShownToken(entry, raw), len(self._decoder.decode(raw).encode())))
        self._end += len(text.encode())
        shown: list[ShownToken] = []
        while self._waiting and self._begin < self._end:
            token, size = self._waiting[0]
            beyond = max(0, self._begin + size - self._end)
            if beyond and not final:
                break
            self._waiting.popleft()
            self._begin += size
            shown.append(ShownToken(token.entry, token.raw[: len(token.raw) - beyond]))
        return shown
