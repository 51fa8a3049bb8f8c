"""Compiles grammars for one model's tokenizer, with llguidance, which is only needed where a request asks for it.

Knows grammars and vocabularies; what a compiled one does is in `constraint`.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from threading import Lock
from typing import Any

from transformers import PreTrainedTokenizerFast

from adaptspec.errors import RequestError
from adaptspec.models.constraint import Constraint
from adaptspec.types import Grammar

MAX_CHARACTERS = 100_000  # of a grammar: what is longer takes noticeable time to compile
_KEPT = 64  # compiled grammars: clients tend to send the same few
# Without a bound a weak model may write white space until its tokens run out.
_JSON_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}


class Grammars:
    """The grammars of a server. May be asked from any thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, ends: tuple[int, ...]) -> None:
        """`ends` are the tokens that end a text."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = ends
        self._vocabulary: Any = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Compile it, unless it is one of the latest.

        Raises:
            RequestError: it cannot be used, or llguidance is not installed.
        """
        with self._lock:
            self._find(grammar)

    def start(self, grammar: Grammar) -> Constraint:
        """A request begins to write what `grammar` says. Raises as `check` does."""
        with self._lock:
            return Constraint(self._find(grammar).deep_copy(), self._vocab_size, self._ends)

    def _find(self, grammar: Grammar) -> Any:
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._compiled[grammar] = self._compile(grammar)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return matcher

    def _compile(self, grammar: Grammar) -> Any:
        if len(grammar.text) > MAX_CHARACTERS:
            raise RequestError(
                f"{grammar.param} has {len(grammar.text)} characters; at most {MAX_CHARACTERS} are compiled: send a "
                "smaller schema",
                grammar.param,
            )
        llguidance = _library(grammar.param)
        if self._vocabulary is None:
            from_tokenizer = importlib.import_module("llguidance.hf").from_tokenizer
            self._vocabulary = from_tokenizer(
                self._tokenizer, n_vocab=self._vocab_size, eos_token=list(self._ends) or None
            )
        text = grammar.text
        if grammar.syntax == "json-schema":
            text = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_STYLE)
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=limits)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:300]
            raise RequestError(
                f"{grammar.param} cannot be turned into a grammar: {reason}; change or leave out that part of it",
                grammar.param,
            )
        return matcher


def _library(param: str) -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise RequestError(
            f"{param} needs constrained decoding, which is not installed here: pip install 'adaptspec[structured]' and "
            "restart the server, or leave it out",
            param,
        ) from error
