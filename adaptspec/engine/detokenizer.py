"""From tokens to text while it streams: whole characters only, stop strings never leak.

Knows a tokenizer and stop strings; it does not know when a request ends for other reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast


class Detokenizer:
    """One request's text. `push` tokens as they are committed; `take` the text that can no longer change."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: Sequence[str] = ()) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._text = ""
        self._taken = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything decoded so far, cut at a stop string if one was met."""
        return self._text

    def push(self, token: int, may_stop: bool = True) -> bool:
        """Add one token; True when its text completed a stop string (the earliest match wins, and is cut off)."""
        self._tokens.append(token)
        piece = self._stream.step(self._backend, token)
        return self._append(piece, may_stop) if piece else False

    def take(self, final: bool = False) -> str:
        """Text not yet taken that cannot become part of a stop string; all of it when `final`."""
        if final and not self.stopped:
            self._flush()
        end = len(self._text) if final or self.stopped else len(self._text) - self._held_back()
        piece = self._text[self._taken : max(end, self._taken)]
        self._taken += len(piece)
        return piece

    def _append(self, piece: str, may_stop: bool) -> bool:
        start = len(self._text)
        self._text += piece
        if not self._stop or not may_stop:
            return False
        window = max(0, start - max(len(s) for s in self._stop) + 1)
        hits = [at for s in self._stop if (at := self._text.find(s, window)) >= 0]
        if hits:
            self._text = self._text[: min(hits)]
            self.stopped = True
        return self.stopped

    def _flush(self) -> None:
        # A character cut off by max_tokens is only in the whole decode, as U+FFFD.
        whole = self._backend.decode(self._tokens, skip_special_tokens=True)
        if whole.startswith(self._text):
            self._append(whole[len(self._text) :], may_stop=True)

    def _held_back(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
