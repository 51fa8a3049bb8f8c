"""Reasoning: text between two marks that a model writes before its answer; answers return it separately.

Where it begins is read off the prompt. DeepSeek R1's and Qwen 3 Thinking's templates end a prompt with the opening
mark, so the output begins within the reasoning. Qwen 3 and SmolLM 3 write the mark themselves, or begin to answer.
Where thinking is switched off, templates close an empty reasoning in the prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions
from adaptspec.request import Reasoning
from adaptspec.results import Piece
from adaptspec.server.api.call_reader import CallReader, Part, overlap
from adaptspec.server.api.reasoning_formats import AUTO, FORMATS, FormatName

T = TypeVar("T")

TAIL = 32  # tokens at the end of a prompt in which the opening mark is looked for
_BLANK = " \t\r\n"
# What templates call the switch; the rest of them do not know of it.
_SWITCHES = ("enable_thinking", "thinking")


def reasoning_format(name: FormatName, template: ChatTemplate) -> Reasoning | None:
    """The marks of a model's reasoning; None where it has none, or `name` says that it stays in the answer."""
    if name != AUTO:
        return FORMATS.get(name)
    return next((marks for marks in FORMATS.values() if template.writes(marks.close)), None)


def begun(marks: Reasoning, prompt: str) -> Reasoning | None:
    """The reasoning as an answer to `prompt` begins; None where the prompt has closed it. `prompt`: its end will do."""
    end = prompt.rstrip(_BLANK)
    if end.endswith(marks.close):
        return None
    return replace(marks, opened=end.endswith(marks.open))


def continued(marks: Reasoning, role: str, message: str) -> Reasoning | None:
    """The reasoning as it goes on behind an unfinished `message`; None past it, or in a user's."""
    if role != "assistant":
        return None
    opens, closes = message.rfind(marks.open), message.rfind(marks.close)
    if message.strip(_BLANK) and opens <= closes:
        return None
    return replace(marks, opened=opens > closes)


def with_effort(options: RenderOptions, effort: str | None) -> RenderOptions:
    """The same with variables of the template for an effort, as in vLLM; those that the client set itself stay."""
    if effort is None:
        return options
    switches = dict.fromkeys(_SWITCHES, effort != "none")
    param = options.values_param if options.values else "reasoning_effort"
    return replace(options, values={"reasoning_effort": effort, **switches, **options.values}, values_param=param)


@dataclass(frozen=True)
class ReasoningPiece:
    """The next piece of a reasoning."""

    text: str


@dataclass(frozen=True)
class Span:
    """A piece of an output: of the reasoning or of the answer. `skipped` characters before it belong to neither."""

    text: str
    reasoning: bool
    skipped: int


class Splitter:
    """Splits an output, as it comes, into reasoning and answer.

    The marks, and white space around the reasoning, belong to neither. What may be the beginning of a mark is held
    back until more is known.
    """

    def __init__(self, marks: Reasoning | None) -> None:
        """`marks` None: all of it is answer."""
        self._marks = marks
        self._state = "answer" if marks is None else "inside" if marks.opened else "start"
        self._held = ""
        self._skipped = 0
        self._begun = False  # something of the reasoning is out, so white space belongs to it
        self.thought = self._state == "inside"

    @property
    def unfinished(self) -> bool:
        """Whether there is a reasoning that has not been closed."""
        return self._state == "inside"

    @property
    def answering(self) -> bool:
        """Whether all that follows is answer."""
        return self._state == "answer"

    def feed(self, text: str) -> Iterator[Span]:
        if self._state == "answer":
            yield from self._answer(text)
            return
        self._held += text
        if self._state == "start":
            self._start()
        if self._state == "inside":
            yield from self._inside()
        if self._state == "after":
            self._strip()
            if self._held:
                self._state = "answer"
        if self._state == "answer":
            held, self._held = self._held, ""
            yield from self._answer(held)

    def end(self) -> Iterator[Span]:
        """What was held back: nothing follows it."""
        held, self._held = self._held, ""
        if self._state == "inside":
            held = held.rstrip(_BLANK)
        if held and self._state != "after":
            yield self._span(held, reasoning=self._state == "inside")

    def _start(self) -> None:
        assert self._marks is not None
        seen, mark = self._held.lstrip(_BLANK), self._marks.open
        if seen.startswith(mark):
            self._skip(len(self._held) - len(seen) + len(mark))
            self._state, self.thought = "inside", True
        elif not mark.startswith(seen):
            self._state = "answer"

    def _inside(self) -> Iterator[Span]:
        assert self._marks is not None
        if not self._begun:
            self._strip()
        text, found, rest = self._held.partition(self._marks.close)
        if not found:
            certain = len(text) - overlap(text, self._marks.close)
            text = text[:certain]
        certain_text = text.rstrip(_BLANK)
        if certain_text:
            self._begun = True
            self._held = self._held[len(certain_text) :]
            yield self._span(certain_text, reasoning=True)
        if found:
            self._skip(len(self._held) - len(rest))
            self._state = "after"

    def _answer(self, text: str) -> Iterator[Span]:
        if text:
            yield self._span(text, reasoning=False)

    def _span(self, text: str, *, reasoning: bool) -> Span:
        skipped, self._skipped = self._skipped, 0
        return Span(text, reasoning, skipped)

    def _strip(self) -> None:
        self._skip(len(self._held) - len(self._held.lstrip(_BLANK)))

    def _skip(self, number: int) -> None:
        self._held = self._held[number:]
        self._skipped += number


class ReasoningReader:
    """Reads one answer as it comes: its reasoning, and behind that text and calls."""

    def __init__(self, marks: Reasoning | None, calls: CallReader) -> None:
        self._split = Splitter(marks)
        self.calls = calls
        self.spans: list[Span] = []  # that the last piece of text has completed

    @property
    def unfinished(self) -> bool:
        """Whether there is a reasoning that has not been closed."""
        return self._split.unfinished

    def feed(self, text: str) -> Iterator[Part | ReasoningPiece]:
        self.spans = list(self._split.feed(text))
        yield from self._parts(self.spans)

    def end(self) -> Iterator[Part | ReasoningPiece]:
        last = list(self._split.end())
        self.spans += last
        yield from self._parts(last)
        yield from self.calls.end()

    def _parts(self, spans: Sequence[Span]) -> Iterator[Part | ReasoningPiece]:
        for span in spans:
            if span.reasoning:
                yield ReasoningPiece(span.text)
            else:
                yield from self.calls.feed(span.text)


class ReasoningTokens(Generic[T]):
    """Separates the tokens of a reasoning from those of the answer, by their bytes.

    Marks and the white space around a reasoning are counted with it; a token that also begins the answer is not.
    """

    def __init__(self, marks: Reasoning | None) -> None:
        # A character for each byte: tokens may end within characters.
        self._split = Splitter(marks and replace(marks, open=_as_bytes(marks.open), close=_as_bytes(marks.close)))
        self._undecided: list[tuple[T, int]] = []
        self.count = 0  # of the reasoning

    def answer(self, tokens: Iterable[tuple[bytes, T]]) -> list[tuple[T, int]]:
        """Add tokens; return those now known to belong to the answer, each with the number of its answer bytes.

        These are the last bytes of a token. Tokens of the reasoning are counted.
        """
        known: list[tuple[T, int]] = []
        for raw, item in tokens:
            if self._split.answering:
                known.append((item, len(raw)))
                continue
            spans = list(self._split.feed(raw.decode("latin-1")))
            if self._split.thought:
                self.count += len(self.end())
                if self._split.answering:
                    known.append((item, len(spans[-1].text)))
                else:
                    self.count += 1
                continue
            self._undecided.append((item, len(raw)))
            known += self.end() if self._split.answering else []
        return known

    def end(self) -> list[tuple[T, int]]:
        """The same for tokens of an answer that ended before it was known which they are."""
        known, self._undecided = self._undecided, []
        return known


class PieceQueue:
    """The pieces of an output by the drafter of each, given out with the text that they make up."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()

    def put(self, pieces: Iterable[Piece]) -> None:
        self._pieces.extend(pieces)

    def take(self, characters: int) -> list[Piece]:
        """The next pieces of so many characters; a piece that is longer is cut."""
        taken: list[Piece] = []
        while characters > 0 and self._pieces:
            piece = self._pieces.popleft()
            if len(piece.text) > characters:
                self._pieces.appendleft(replace(piece, text=piece.text[characters:]))
                piece = replace(piece, text=piece.text[:characters])
            characters -= len(piece.text)
            taken.append(piece)
        return taken


def _as_bytes(text: str) -> str:
    return text.encode().decode("latin-1")
