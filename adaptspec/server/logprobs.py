"""Log-probabilities on the wire, in the two shapes OpenAI has: one for chats, one for completions.

Knows tokens' bytes; what a log-probability is of, `types.TokenLogprob` says.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Any

from adaptspec.types import TokenLogprob

Bytes = Callable[[int], bytes]


def chat_logprobs(entries: Iterable[TokenLogprob], bytes_of: Bytes) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""
    content = [
        _chat_token(entry.token, entry.logprob, bytes_of)
        | {"top_logprobs": [_chat_token(token, logprob, bytes_of) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: int, logprob: float, bytes_of: Bytes) -> dict[str, Any]:
    raw = bytes_of(token)
    return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """Writes the `logprobs` of one completion's choice, all at once or in pieces that go on from each other.

    `text_offset` counts the characters that were complete before each token.
    """

    def __init__(self, bytes_of: Bytes) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._characters = 0

    def write(self, entries: Iterable[TokenLogprob], first: int | None = None) -> dict[str, list[Any]]:
        """The next tokens. `first` is a token that comes before them and that nothing came before: it has no number."""
        written: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if first is not None:
            self._add(written, first, None, None)
        for entry in entries:
            # The token itself is always among them, as at OpenAI.
            top = {
                _name(self._bytes_of(token)): logprob for token, logprob in (*entry.top, (entry.token, entry.logprob))
            }
            self._add(written, entry.token, entry.logprob, top)
        return written

    def _add(
        self, written: dict[str, list[Any]], token: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        raw = self._bytes_of(token)
        written["tokens"].append(_name(raw))
        written["token_logprobs"].append(logprob)
        written["top_logprobs"].append(top)
        written["text_offset"].append(self._characters)
        self._characters += len(self._decoder.decode(raw))


def _name(raw: bytes) -> str:
    """A token as a string that no other token has: half a character is spelled out, as OpenAI does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
