"""Grammars of clients: what is read, in Lark and GBNF, and what is refused before the compiler has it."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.errors import RequestError
from adaptspec.models.grammars import Grammars
from adaptspec.request import Grammar
from adaptspec.server.api.constraints.grammar_text import DEEPEST, components, lark_of


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, len(tokenizer), (1,))


def _takes(grammars: Grammars, tokenizer: Any, grammar: str, text: str) -> bool:
    constraint = grammars.start(Grammar(lark_of(grammar, "grammar"), "lark", "grammar"))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return constraint.valid(tokens) == len(tokens) and bool(constraint.mask(tokens)[1])


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a" # one\n', "a", "b"),
        ('%llguidance {}\nstart: x // two\nx: "b"\n   | "a"', "a", "c"),
        ('?start: ("a" "b"){ 2 }', "abab", "ab"),
        ('start: A ".." A\nA: "a".."c"', "a..c", "d..a"),
        ('start: "\\x41\\u0042\\n"i [/[0-9]/]', "AB\n7", "AB"),
        ('%import common.INT\nstart: INT\n%ignore " "', "12", "x"),
        ('root ::= "yes" | "no" # three', "yes", "maybe"),
        ('root ::= fooBar-baz{2,3}\nfooBar-baz ::= "x" | [y-z]', "xyz", "x"),
        ('root ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]* "\\""', '"aé"', '"a'),
        ('root ::= "\\u00e9" [\\u00e0-\\u00ff]', "éà", "ee"),
        ('root ::= ("a"{0,2}){0,2} "b"', "aab", "aaaaab"),
        ('root ::= (("a" "b"{1,2})+)? "c"', "abbabc", "ac"),
        ('root ::= x{2}\nx ::= ((("a"){2}){0,3} | "b"*){1,2} ","', "aaaa,b,", "aaa,b,"),
        ("root ::= ([ab]{2})* [c]", "abbac", "abbc"),
        ('root ::= (\n "a" |\n "b" )+', "ab", "c"),
    ],
)
def test_both_dialects_are_read(grammars: Grammars, tokenizer: Any, grammar: str, good: str, bad: str) -> None:
    """vLLM and SGLang send one or the other in the same field."""
    assert _takes(grammars, tokenizer, grammar, good)
    assert not _takes(grammars, tokenizer, grammar, bad)


@pytest.mark.parametrize(
    ("grammar", "line"),
    [
        ('# one\n\nroot ::= x |\n  "a"\n\nx ::= "b" [z-a]\ny ::= "c"', 6),
        ('root ::= (\n  "a" | x\n)\nx ::= [9-0]', 4),
        ("root ::= [b-a]", 1),
        ('start: "a"\n\n// two\n  | x\nx: /[b-a]/', 5),
    ],
)
def test_messages_name_lines_that_the_client_wrote(grammars: Grammars, grammar: str, line: int) -> None:
    """What the compiler reads has other lines, where it was GBNF."""
    with pytest.raises(RequestError) as refused:
        grammars.start(Grammar(lark_of(grammar, "ebnf"), "lark", "ebnf"))
    assert f"cannot be compiled: line {line}: " in str(refused.value)


@pytest.mark.parametrize("attribute", ["lazy", "capture", 'suffix = "!"', "suffix = /!+/", 'lazy, capture = "x"'])
def test_attributes_that_leave_drafts_alone_are_read(grammars: Grammars, tokenizer: Any, attribute: str) -> None:
    """What the engine cannot take back is refused; these it can."""
    grammar = f'start: a "?"\na[{attribute}]: /a+!/'
    if "suffix" in attribute:
        grammar = grammar.replace("!/", "/")
    assert _takes(grammars, tokenizer, grammar, "aa!?")
    assert not _takes(grammars, tokenizer, grammar, "aa?")


@pytest.mark.timeout(10)  # seconds, where work that grows with the square of a text takes minutes
@pytest.mark.parametrize(
    "before", ["", "start", "start[", "start: {", "start: {1", "start: {1,", "%llguidance", '"', "/"]
)
@pytest.mark.parametrize("filler", ["\n", "\r", "\f", " ", "\t", "\r\n", "\v", "a", "\\", "{1,", " start", "\nstart "])
def test_texts_are_read_in_one_pass(before: str, filler: str) -> None:
    """A search holds all other threads: 49,000 newlines stopped the server for 24 seconds."""
    text = before + filler * (49_900 // len(filler))
    for ending in ("", "}", "root ::= x"):
        with suppress(RequestError):
            lark_of(text + ending, "grammar")


def _chain(number: int, head: str = "") -> str:
    rules = [f"start: A0 {head}", *(f"A{i}: A{i + 1}" for i in range(number)), f'A{number}: "x"']
    return "\n".join(rules)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: A{0,100}\nA: ("a"{0,10}){0,10}',
        "start: /((a{0,9}){0,9}){0,9}/{0,99}",
        'start: row{1,100}\nrow: cell ("," cell){0,9} ";"\ncell: "a" | "b"',
        'start: (("a"{4} "-"){2} ";"){0,300}',
        'start: ("a"{0,50} "b")*',
    ],
)
def test_repetitions_that_parsers_follow_are_taken(grammars: Grammars, tokenizer: Any, grammar: str) -> None:
    """Terminals and regular expressions repeat at no cost, and tables of some hundred cells are usual."""
    grammars.start(Grammar(lark_of(grammar, "grammar"), "lark", "grammar"))


_GRAPHS = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=8)


def _longest_path(references: dict[str, list[str]], path: tuple[str, ...]) -> int:
    below = [_longest_path(references, (*path, one)) for one in references[path[-1]] if one not in path]
    return max([len(path), *below])


@settings(max_examples=60, deadline=None)
@given(_GRAPHS, st.integers(0, 8))
def test_no_chain_is_longer_than_the_bound(graph: dict[int, list[int]], more: int) -> None:
    """Whatever way the compiler goes through rules that refer to each other. Chains without cycles have no margin."""
    references = {f"r{name}": [f"r{one}" for one in others if one in graph] for name, others in graph.items()}
    chain = [f"a{i}" for i in range(DEEPEST - 8 + more)]
    names = [*chain, next(iter(references))]
    references |= {name: [following] for name, following in pairwise(names)} | {"start": [chain[0]]}
    grammar = "\n".join(
        f"{name}: {' '.join([*others, chr(34) + 'x' + chr(34)])}" for name, others in references.items()
    )
    longest = _longest_path(references, ("start",))
    acyclic = all(len(members) == 1 for members in components(references))
    try:
        lark_of(grammar, "grammar")
    except RequestError:
        assert longest > DEEPEST or not acyclic
    else:
        assert longest <= DEEPEST


def test_chains_that_are_allowed_compile(grammars: Grammars, tokenizer: Any) -> None:
    assert _takes(grammars, tokenizer, _chain(DEEPEST - 2, '"!"'), "x!")


_TOKENS = ['"', "/", "\\", "#", "//", "\n", "%json", "{", "}", "start", ":", "|", " ", "a", "(", ")", "[", "]", "::="]


@given(st.lists(st.sampled_from(_TOKENS), max_size=30).map("".join))
def test_the_compiler_gets_no_words_that_lead_around_the_bounds(text: str) -> None:
    """Whatever is quoted or commented out how: outside strings and regular expressions there are known tokens only."""
    try:
        written = lark_of(f'start: "a" {text}', "grammar")
    except RequestError:
        return
    outside = re.sub(r'"(\\.|[^"\\\n])*"|/(\\.|[^/\\\n])+/', "", written)
    assert not set(outside) & set('%<>@&~"/#')
