"""Constraints in the words of other servers: one of them, compiled like a schema of `response_format`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.models.grammars import Grammars
from adaptspec.server.api.body import parse
from adaptspec.server.api.chat import ChatRequest
from adaptspec.server.api.completions import CompletionRequest

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, len(tokenizer), (1,))


def _bodies(**fields: Any) -> list[ChatRequest | CompletionRequest]:
    chat = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return [
        parse(ChatRequest, json.dumps(chat).encode()),
        parse(CompletionRequest, json.dumps({"prompt": "Hi", **fields}).encode()),
    ]


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"structured_outputs": {"choice": ["C", "C++"]}}, "C++", "C+"),
        ({"structured_outputs": {"regex": "^[ab]{2}$"}}, "ab", "abc"),
        ({"structured_outputs": {"json": SCHEMA}}, '{"a": 1}', '{"b": 1}'),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, '{"a": 1}', '{"b": 1}'),
        ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, "y", "z"),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": False}}, "{}", "[]"),
        ({"guided_choice": ['é\n"b\\', "😀"]}, "😀", "é"),
        ({"guided_regex": "a|b"}, "b", "c"),
        ({"guided_json": SCHEMA}, '{"a": 1}', "1"),
        ({"guided_grammar": 'start: "a"'}, "a", "b"),
        ({"regex": r"\d{3}/\d"}, "123/4", "123"),
        ({"ebnf": "root ::= [0-9]+"}, "123", "a"),
        ({"json_schema": json.dumps(SCHEMA)}, '{"a": 1}', "1"),
        ({"json_schema": SCHEMA}, '{"a": 1}', "1"),
        ({"grammar": 'root ::= "a"+'}, "aa", "b"),
    ],
)
def test_every_spelling_bounds_the_answer(
    grammars: Grammars, tokenizer: Any, fields: dict[str, Any], good: str, bad: str
) -> None:
    for body in _bodies(**fields):
        grammar = body.constraint()
        assert grammar is not None
        assert grammar.param.split(".")[0] == next(iter(fields))
        for text, fits in ((good, True), (bad, False)):
            constraint = grammars.start(grammar)
            tokens = tokenizer.encode(text, add_special_tokens=False)
            assert (constraint.valid(tokens) == len(tokens) and bool(constraint.mask(tokens)[1])) is fits


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": None, "json_object": False, "structural_tag": None}},
        {"guided_json": None, "regex": None, "grammar": None},
    ],
)
def test_neutral_values_ask_for_nothing(fields: dict[str, Any]) -> None:
    for body in _bodies(**fields):
        assert body.constrained_by is None
        assert body.constraint() is None


async def test_completions_are_constrained_too(post: Any, engine: Any) -> None:
    """Of each prompt and choice; the engine gets the grammar with its request."""
    status, _ = await post("/v1/completions", prompt=["a", "b"], n=2, guided_regex="a+", max_tokens=2)
    assert status == 200
    assert {request.sampling.grammar.text for request in engine.seen} == {"a+"}
    status, answer = await post("/v1/completions", prompt="a", regex="a", guided_regex="b")
    assert status == 400
    assert answer["error"]["param"] == "regex"
