"""From tokens to text while it streams: whole characters only, stop strings never leak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Decoders return this for invalid UTF-8; at the end of a text it may be an incomplete character.
_INCOMPLETE = "\ufffd"


class Detokenizer:
    """One request's text. `push` tokens as they are committed; `take` the text that can no longer change."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: Sequence[str] = ()) -> None:
        self._stream = _Stream(tokenizer)
        self._stop = tuple(stop)
        self._may_stop = True
        self._text = ""
        self._taken = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything decoded so far, cut at a stop string if one was met."""
        return self._text

    def push(self, token: int, may_stop: bool = True) -> bool:
        """Add one token; True if its text completes a stop string (the text is cut before the earliest match).

        Without `may_stop`, a stop string that ends in this token's text is kept as ordinary text.
        """
        self._may_stop = may_stop
        piece = self._stream.push(token)
        return self._append(piece) if piece else False

    def close(self) -> bool:
        """End the text; an incomplete character is emitted as U+FFFD. True if the text ends at a stop string."""
        if not self.stopped:
            self._append(self._stream.rest())
        return self.stopped

    def take(self, final: bool = False) -> str:
        """Text not yet taken that cannot become part of a stop string; all of it when `final`."""
        if final:
            self.close()
        end = len(self._text) if final or self.stopped else len(self._text) - self._held_back()
        piece = self._text[self._taken : max(end, self._taken)]
        self._taken += len(piece)
        return piece

    def _append(self, piece: str) -> bool:
        start = len(self._text)
        self._text += piece
        if not self._stop or not self._may_stop:
            return False
        # Only matches that end in the new piece: earlier ones were checked before, or were not allowed to stop.
        hits = [at for s in self._stop if (at := self._text.find(s, max(0, start - len(s) + 1))) >= 0]
        if hits:
            self._text = self._text[: min(hits)]
            self.stopped = True
        return self.stopped

    def _held_back(self) -> int:
        """Number of characters at the end that may begin a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:size]):
                    longest = size
                    break
        return longest


class _Stream:
    """Incremental decoding: decodes a short window of the latest tokens and returns its new text.

    The window holds the latest tokens that ended in a whole character (some decoders treat a first token differently)
    and those since, which end in an incomplete one. If a token changes text that was already returned (byte fallback
    turns a whole run of bytes into U+FFFD once one of them is invalid), decoding restarts after the returned text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._decode = tokenizer.backend_tokenizer.decode
        self._window: list[int] = []
        self._done = 0  # tokens of the window that ended in a whole character
        self._known = ""  # the part of the window's text that was returned

    def push(self, token: int) -> str:
        """The text that this token completes; often empty."""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.endswith(_INCOMPLETE):
            return "" if text == self._known else self._advance(text)
        whole = text.rstrip(_INCOMPLETE)
        if not whole.startswith(self._known):
            return ""
        piece = whole[len(self._known) :]
        self._known = whole
        return piece

    def rest(self) -> str:
        """The text held back; an incomplete character is U+FFFD."""
        return self._advance(self._decode(self._window)) if len(self._window) > self._done else ""

    def _advance(self, text: str) -> str:
        fresh = self._window[self._done :]
        if text.startswith(self._known):
            piece = text[len(self._known) :]
            self._known = self._decode(fresh)
        else:
            piece = self._known = self._decode(fresh)
        self._window, self._done = fresh, len(fresh)
        return piece
