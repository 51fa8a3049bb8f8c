"""Reads an assistant's answer as it comes: its reasoning, text and calls, and the log-probabilities of its text."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from adaptspec.models.chat.template_traits import new_call_id
from adaptspec.models.tokenization import TokenBytes
from adaptspec.request import Reasoning
from adaptspec.results import Piece, TokenLogprob
from adaptspec.server.api.call_reader import CallReader, CallStart, Part, TextPiece
from adaptspec.server.api.fields import Json
from adaptspec.server.api.outputs import Answer, Bytes
from adaptspec.server.api.reasoning import PieceQueue, ReasoningPiece, ReasoningReader, ReasoningTokens, Span


class Alternative(Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Alternative):
    """A token of the answer, and the likeliest tokens at its position."""

    top_logprobs: list[Alternative]


class ChatLogprobs(Answer):
    """Of each token."""

    content: list[ChatToken]
    refusal: None


class Called(Answer):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str


class Call(Answer):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: Called


class MessageReader:
    """Reads one answer as it comes: its reasoning, text and calls, and the log-probabilities of its text."""

    def __init__(self, calls: CallReader, reasoning: Reasoning | None, bytes_of: TokenBytes, *, logprobs: bool) -> None:
        """`calls` reads the calls. `reasoning`: what the answer may begin with or go on in; None where it has none."""
        self.calls = calls
        self.logprobs: ChatLogprobs | None = None  # of the text that the last delta added; None where none are wanted
        self._bytes_of = bytes_of
        self._reader = ReasoningReader(reasoning, self.calls)
        self._tokens = ReasoningTokens[None](reasoning)
        self._matched = ContentLogprobs(bytes_of, bytes_of.hidden, bytes_of.leading) if logprobs else None
        self._answer_tokens = ReasoningTokens[ShownToken](reasoning)
        self._pieces = PieceQueue()
        self._spans: deque[Span] = deque()

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens so far belong to the reasoning."""
        return self._tokens.count

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a reasoning that has not been closed."""
        return self._reader.unfinished

    def read(
        self, text: str, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], *, final: bool
    ) -> list[Part | ReasoningPiece]:
        """The parts that the next text adds; `final`: the answer ends with it."""
        parts = [*self._reader.feed(text), *(self._reader.end() if final else ())]
        self._spans = deque(self._reader.spans)
        self._tokens.answer((self._bytes_of(token), None) for token in tokens)
        if self._matched is not None:
            shown = self._matched.take(logprobs, text, final=final)
            self.logprobs = answer_logprobs(self._answer_tokens, shown, self._bytes_of, final=final)
        return parts

    def add_pieces(self, pieces: Sequence[Piece]) -> None:
        """The next text by its drafters."""
        self._pieces.put(pieces)

    def next_pieces(self) -> list[Piece]:
        """Which drafter proposed which words of the next span of text of the last delta."""
        span = self._spans.popleft()
        self._pieces.take(span.skipped)
        return self._pieces.take(len(span.text))


def answer_logprobs(
    tokens: ReasoningTokens[ShownToken], shown: Sequence[ShownToken], bytes_of: Bytes, *, final: bool
) -> ChatLogprobs:
    """Log-probabilities of the `shown` tokens that belong to the answer."""
    known = tokens.answer((one.raw, one) for one in shown) + (tokens.end() if final else [])
    raws = [one.raw[len(one.raw) - size :] for one, size in known]
    return chat_logprobs([one.entry for one, _ in known], bytes_of, raws)


def chat_logprobs(
    entries: Sequence[TokenLogprob], bytes_of: Bytes, shown: Sequence[bytes] | None = None
) -> ChatLogprobs:
    """The `logprobs` of a chat's choice; `shown` are the bytes of its tokens, None for all that they have."""

    def token(raw: bytes, logprob: float) -> Json:
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    def alternative(number: int, logprob: float) -> Alternative:
        return Alternative(**token(bytes_of(number), logprob))

    raws = [bytes_of(one.token) for one in entries] if shown is None else shown
    tokens = [
        ChatToken(**token(raw, one.logprob), top_logprobs=[alternative(*other) for other in one.top])
        for one, raw in zip(entries, raws, strict=True)
    ]
    return ChatLogprobs(content=tokens, refusal=None)


def gathered(parts: Sequence[Part]) -> tuple[str | None, list[Call]]:
    """The content of a message, None where there are only calls, and its tool calls."""
    content, calls = "", []
    for part in parts:
        if isinstance(part, TextPiece):
            content += part.text
        elif isinstance(part, CallStart):
            calls.append(new_call(part.name))
        else:
            calls[part.index].function.arguments += part.text
    return content if content or not calls else None, calls


def new_call(name: str) -> Call:
    """A call of a function that has no arguments yet."""
    return Call(id=new_call_id(), type="function", function=Called(name=name, arguments=""))


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
