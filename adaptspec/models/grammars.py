"""Compiles grammars for one model's tokenizer, with llguidance, which is only loaded where a request asks for it.

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
            RequestError: it cannot be used, or llguidance is missing.
        """
        self._find(grammar)

    def start(self, grammar: Grammar) -> Constraint:
        """A request begins to write what `grammar` says. Raises as `check` does."""
        matcher = self._find(grammar)
        with self._lock:
            return Constraint(matcher.deep_copy(), self._vocab_size, self._ends)

    def _find(self, grammar: Grammar) -> Any:
        with self._lock:
            matcher = self._compiled.get(grammar)
        # Without the lock: a large schema takes half a second, and rounds start the requests of others meanwhile.
        matcher = matcher or self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
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
        try:
            matcher = self._matcher(llguidance, grammar)
        except (ValueError, RuntimeError, RecursionError) as error:
            raise _unusable(grammar, str(error)) from error
        if matcher.is_error():
            raise _unusable(grammar, matcher.get_error())
        return matcher

    def _matcher(self, llguidance: Any, grammar: Grammar) -> Any:
        text = grammar.text
        if grammar.syntax == "json-schema":
            text = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_STYLE)
        # Its errors quote the output where they are verbose.
        limits = llguidance.LLParserLimits(verbose_errors=False)
        return llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=limits)


def _unusable(grammar: Grammar, reason: str) -> RequestError:
    return RequestError(
        f"{grammar.param} cannot be turned into a grammar: {' '.join(reason.split())[:300]}; change or leave out that "
        "part of it",
        grammar.param,
    )


def _library(param: str) -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise RequestError(
            f"{param} needs llguidance, which was left out when adaptspec was installed: pip install llguidance and "
            "restart the server, or leave it out",
            param,
        ) from error
