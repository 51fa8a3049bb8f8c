"""Grammars, compiled by llguidance for one tokenizer, and at work in one request: which tokens may follow."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import BoolArray
from adaptspec.errors import OverloadedError, RequestError
from adaptspec.models.tokenization import TokenBytes
from adaptspec.request import Grammar, Reasoning

MAX_CHARACTERS = 100_000  # of a grammar: what is longer takes noticeable time to compile
# Bytes that a compiled grammar takes, at most: 0.1 MB were measured for schemas of usual length, 12 MB for 100,000
# characters of 3,000 properties, 1.1 MB for a constant of 4,000, and 4 MB for the shortest with `multipleOf` 10,000.
_BASE_BYTES, _BYTES_PER_CHARACTER, _BYTES_OF_MULTIPLES = 2**19, 320, 2**22
# Of the lexer, at 0.4 to 0.8 kB: they are added while an answer is written. Answers of real clients make some thousand.
_MAX_LEXER_STATES = 50_000
# Of the parser, at one position of the text and in a whole mask: each is compared with the others there. A grammar in
# Lark has one for each alternative, and many more where a text can be read in many ways: each of its tokens then took
# longer than the one before, up to a third of a second. A schema has up to four for each optional property.
_MAX_ITEMS, _MAX_ITEMS_IN_MASK = 2_000, 50_000
_MAX_ITEMS_IN_LARK, _MAX_ITEMS_IN_MASK_IN_LARK = 500, 5_000
_SCHEMA_IN_LARK = re.compile(r'(?m)^[^"/\n]*%json\b')  # of tool calls; grammars of clients cannot have it
FAILED = "its grammar could not be followed: "  # begins the error of a request whose constraint has one
_LEFT = "the output left its grammar"
_EXCERPT = re.compile(r"\n\x20*[0-9]+ \| ")  # begins the lines of a grammar that an error of the compiler ends with
_POSITION = re.compile(r"(?:at )?([0-9]+)\([0-9]+\): ")  # line and column: columns are those of a rewritten text
_BACKTRACE = re.compile(r"<backtrace>|<non-verbose/>")
_REASON = 300  # characters of the compiler's words in a message
# Without a bound a weak model may write white space until its tokens run out.
JSON_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """llguidance's matcher at the beginning of a text, and the maximum bytes that it takes."""

    matcher: Any
    num_bytes: int


class Grammars:
    """Compiles the grammars of a server. May be used from any thread.

    Each request has its own: copies of a matcher share the states of its lexer, so with a matcher in common one request
    could use up the states of another, and the times of its tokens would depend on what others have written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, ends: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = ends
        self._living: WeakSet[CompiledGrammar] = WeakSet()
        self._lock = Lock()  # of `_living`; not held while compiling, which takes up to a second

    @property
    def living_bytes(self) -> int:
        """Maximum bytes that the compiled grammars of all requests take, estimated from their texts."""
        with self._lock:
            return sum(compiled.num_bytes for compiled in self._living)

    def prepare(self) -> None:
        """Read the vocabulary, if llguidance is installed.

        Otherwise the first grammar does, and stops all other threads for 0.1 s with a vocabulary of 50,000 tokens.
        """
        if importlib.util.find_spec("llguidance") is not None:
            _ = self._vocabulary

    def compile(self, grammar: Grammar, max_bytes: int | None = None) -> Grammar:
        """The same grammar with its compiled form, unless it has one.

        Its first mask, which is often the slowest one, is computed here as well.

        Raises:
            RequestError: it cannot be used, or llguidance is missing.
            OverloadedError: with it, living grammars would take more than `max_bytes` (None: no bound).
        """
        if grammar.compiled is not None:
            return grammar
        held, num_bytes = self.living_bytes, _estimated_bytes(grammar)
        if max_bytes is not None and held + num_bytes > max_bytes:
            raise OverloadedError(
                f"requests in flight hold {held / 2**20:.0f} MiB of compiled grammars; this server takes at most "
                f"{max_bytes / 2**20:.0f} MiB: send the request again later, or ask for something smaller"
            )
        compiled = CompiledGrammar(self._matcher(grammar), num_bytes)
        with self._lock:
            self._living.add(compiled)
        return replace(grammar, compiled=compiled)

    def start(self, grammar: Grammar) -> Constraint:
        """The constraint of a request that begins to write what `grammar` says. Raises as `compile` does."""
        return Constraint(self.compile(grammar).compiled.matcher.deep_copy, self._vocab_size, self._ends)

    @cached_property
    def _vocabulary(self) -> Any:
        llguidance = importlib.import_module("llguidance")
        words = llguidance.TokenizerWrapper(_Words(self._tokenizer, self._ends))
        return llguidance.LLTokenizer(words, n_vocab=self._vocab_size, eos_token=list(self._ends) or None)

    def _matcher(self, grammar: Grammar) -> Any:
        """The LLMatcher of a grammar, with its first mask computed. Raises RequestError."""
        if len(grammar.text) > MAX_CHARACTERS:
            raise RequestError(
                f"{grammar.param} has {len(grammar.text)} characters; at most {MAX_CHARACTERS} are compiled: send a "
                "smaller one",
                grammar.param,
            )
        llguidance = library(grammar.param)
        max_items, max_items_in_mask = _max_items(grammar)
        limits = llguidance.LLParserLimits(
            verbose_errors=False,  # verbose ones quote the output
            max_lexer_states=_MAX_LEXER_STATES,
            max_items_in_row=max_items,
            step_max_items=max_items_in_mask,
        )
        try:
            text = _source(grammar, llguidance.LLMatcher)
            matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()
        except (ValueError, RuntimeError, RecursionError) as error:
            raise _unusable(grammar, str(error)) from error
        if matcher.is_error():
            raise _unusable(grammar, matcher.get_error())
        return matcher


def _max_items(grammar: Grammar) -> tuple[int, int]:
    """How many items the parser may hold at a position of the text, and in a whole mask."""
    if grammar.syntax == "json-schema" or _SCHEMA_IN_LARK.search(grammar.text):
        return _MAX_ITEMS, _MAX_ITEMS_IN_MASK
    return min(_MAX_ITEMS_IN_LARK + grammar.text.count("|"), _MAX_ITEMS), _MAX_ITEMS_IN_MASK_IN_LARK


def _source(grammar: Grammar, matcher: Any) -> str:
    """A grammar as llguidance takes it. `matcher` is its LLMatcher."""
    if grammar.syntax == "json-schema":
        text = str(matcher.grammar_from_json_schema(grammar.text, overrides=JSON_STYLE))
    else:
        text = grammar.text if grammar.syntax == "lark" else str(matcher.grammar_from_regex(grammar.text))
    if grammar.reasoning is None:
        return text
    answer = {"lark_grammar": text} if grammar.syntax == "lark" else json.loads(text)["grammars"][0]
    return json.dumps({"grammars": [{"lark_grammar": _before_answer(grammar.reasoning)}, answer | {"name": "answer"}]})


def _before_answer(reasoning: Reasoning) -> str:
    """The grammar of a reasoning, of the white space behind it and of an answer.

    The reasoning ends at the first mark that closes it, also where an answer may be any text.
    """
    opening = "" if reasoning.opened else f"BLANK? {json.dumps(reasoning.open)} "
    before = "reasoning BLANK?" if reasoning.opened else "(reasoning BLANK?)?"
    return "\n".join(
        [
            "%llguidance {}",
            f"start: {before} @answer",
            f"reasoning[lazy]: {opening}TEXT {json.dumps(reasoning.close)}",
            r"TEXT: /(.|\n)*/",
            r"BLANK: /[\x20\x0A\x0D\x09]{1,16}/",
        ]
    )


class _Words:
    """A tokenizer as llguidance reads one: the bytes of each token, and which tokens are no text.

    These are the tokens that decoding leaves out. llguidance's own reader also counts each token of the form `<...>`
    among them, and no grammar could then write the `<tool_call>` or `</think>` that is one token of many models.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, ends: Collection[int]) -> None:
        bytes_of = TokenBytes(tokenizer)
        largest = max(tokenizer.get_vocab().values(), default=-1)
        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.tokens = [bytes_of(token) for token in range(largest + 1)]
        self.special_token_ids = sorted(special.union(ends).intersection(range(largest + 1)))
        self.bos_token_id = None
        self.eos_token_id = next(iter(ends), tokenizer.eos_token_id or 0)
        self._encode = tokenizer.encode

    def __call__(self, text: bytes | str) -> list[int]:
        """Token ids of a text; llguidance tries bytes first."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return list(self._encode(text, add_special_tokens=False))


def schema_fault(schema: str, param: str) -> str | None:
    """Why a JSON schema cannot be compiled, whatever the tokenizer, in one line; None if it can.

    Raises RequestError, with the field `param`, if llguidance is missing.
    """
    return _schema_fault(library(param).LLMatcher, schema)


@lru_cache(256)
def _schema_fault(matcher: Any, schema: str) -> str | None:
    try:
        failed, words = matcher.validate_grammar_with_warnings(matcher.grammar_from_json_schema(schema))
    except (ValueError, RuntimeError, RecursionError) as error:
        failed, words = True, [str(error)]
    if not failed:
        return None
    return " ".join((words[0] if words else "no reason is given").split())[:_REASON]


def ended_by_grammar(error: str) -> bool:
    """Whether a request has ended with `error` because of the grammar that it was sent with."""
    return error.startswith(FAILED) and not error.startswith(FAILED + _LEFT)


def _estimated_bytes(grammar: Grammar) -> int:
    multiples = _BYTES_OF_MULTIPLES if "multipleOf" in grammar.text else 0
    return _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar.text) + multiples


def _unusable(grammar: Grammar, reason: str) -> RequestError:
    if grammar.syntax != "json-schema":
        reason = _without_position(_EXCERPT.split(reason)[0], keep_line=grammar.syntax == "lark")
    return RequestError(
        f"{grammar.param} cannot be compiled: {_in_a_line(reason)}; change or leave out that part of it",
        grammar.param,
    )


def _without_position(reason: str, *, keep_line: bool) -> str:
    """The cause in a message of the compiler. Its columns are those of a rewritten text, which no client has seen."""
    position = _POSITION.match(reason)
    cause = reason[position.end() if position else 0 :].rpartition("\nerror: ")[2]
    return f"line {position[1]}: {cause}" if position and keep_line else cause


def _in_a_line(reason: str) -> str:
    """The beginning of the compiler's words, without what it says of its own code."""
    return " ".join(_BACKTRACE.split(reason)[0].split())[:_REASON]


def library(param: str) -> Any:
    """Llguidance. Raises RequestError, with the field `param`, if it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise RequestError(
            f"{param} needs llguidance, which was left out when adaptspec was installed: pip install llguidance and "
            "restart the server, or leave it out",
            param,
        ) from error


class Constraint:
    """Masks for one request, in any row. `error` says why it cannot go on: its request must end then.

    The matcher walks along a draft as far as it is asked to look and is taken back by exactly what was not kept, so a
    mask at position j has seen the committed output and draft[:j], no more and no less.
    """

    def __init__(self, begin: Callable[[], Any], vocab_size: int, ends: Collection[int]) -> None:
        """`begin` returns llguidance's LLMatcher at the beginning of a text, a new one each time.

        `ends` are the tokens that end a text: nothing is read behind them.
        """
        self._begin = begin
        self._matcher = begin()
        self._vocab_size = vocab_size
        self._ends = frozenset(ends)
        self._committed: list[int] = []
        self._ahead: list[int] = []  # consumed beyond what is committed
        self._masks: dict[int, BoolArray] = {}  # by how many tokens are ahead
        # Failures of the matcher: of masks, by how many tokens were ahead, and of tokens that were to be read there.
        self._failures: dict[int, str] = {}
        self._unread: dict[tuple[int, int], str] = {}
        self.error: str | None = None

    def mask(self, draft: Sequence[int]) -> BoolArray:
        """Which tokens [V] may follow the output and `draft`.

        All may where `draft` itself breaks the grammar or ends the text: whatever is drawn there is thrown away.
        """
        if self._seek(draft) < len(draft):
            return np.ones(self._vocab_size, dtype=np.bool_)
        known = self._masks.get(len(draft))
        if known is None:
            known = self._masks[len(draft)] = self._compute()
        return known

    def valid(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` the grammar takes; one that may end the text is the last."""
        taken = self._seek(draft)
        if taken < len(draft) and draft[taken] in self._ends and self.mask(draft[:taken])[draft[taken]]:
            return taken + 1
        return taken

    def commit(self, tokens: Sequence[int]) -> None:
        """The output grew by `tokens`; what was looked at beyond them is taken back.

        A failure of the matcher counts where something was written behind it: behind drafts that are thrown away, plain
        decoding would not have met it.
        """
        kept = self._seek(tokens)
        failed = [reason for position, reason in self._failures.items() if position < len(tokens)]
        if failed:
            self.error = self.error or failed[0]
        elif kept < len(tokens) and tokens[kept] not in self._ends:
            left = f"{_LEFT} at token {tokens[kept]}"
            self.error = self.error or self._unread.get((kept, tokens[kept]), left)
        self._committed += self._ahead
        self._ahead.clear()
        self._forget(-1)

    def _seek(self, draft: Sequence[int]) -> int:
        """Move to just behind `draft`, or as far along as it goes; how far that is."""
        shared = 0
        for token, wanted in zip(self._ahead, draft, strict=False):
            if token != wanted:
                break
            shared += 1
        if shared < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
            self._forget(shared)
        for token in draft[shared:]:
            if token in self._ends or not self._takes(token):
                break
            self._ahead.append(token)
        return len(self._ahead)

    def _forget(self, position: int) -> None:
        """Drop what was found out behind more than `position` tokens ahead."""
        self._masks = {at: mask for at, mask in self._masks.items() if at <= position}
        self._failures = {at: reason for at, reason in self._failures.items() if at <= position}
        self._unread = {at: reason for at, reason in self._unread.items() if at[0] <= position}

    def _takes(self, token: int) -> bool:
        position = (len(self._ahead), token)
        if position in self._unread:
            return False
        try:
            if self._matcher.try_consume_tokens([token]) == 1:
                return True
            reason = str(self._matcher.get_error())
        except Exception as error:  # noqa: BLE001 - a parser that fails must end its own request, not the round
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._unread[position] = self._restart(reason)
        return False

    def _compute(self) -> BoolArray:
        try:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            reason = str(self._matcher.get_error())
        except Exception as error:  # noqa: BLE001 - as above
            bits, reason = np.zeros(0, dtype=np.uint8), f"{type(error).__name__}: {error}"
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not reason and allowed.any():
            return allowed
        reason = self._restart(reason) if reason else "it leaves no token to go on with"
        self._failures[len(self._ahead)] = reason
        if not self._ahead:
            self.error = self.error or reason
        return np.ones(self._vocab_size, dtype=np.bool_)

    def _restart(self, reason: str) -> str:
        """Continue with a new matcher at the same position: a failed one cannot be rolled back. The reason, short."""
        reason = _in_a_line(reason)
        read = [*self._committed, *self._ahead]
        try:
            self._matcher = self._begin()
            if read and self._matcher.try_consume_tokens(read) < len(read):
                self.error = self.error or reason
        except Exception as error:  # noqa: BLE001 - as above
            self.error = self.error or f"{reason}; {type(error).__name__}: {error}"
        return reason
