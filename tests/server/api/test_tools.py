"""Tools: what the grammar lets through, and what a model is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adaptspec.models.grammars import Grammars
from adaptspec.models.tokenization import TokenBytes
from adaptspec.results import Completion, Delta, FinishReason, SpeculationStats, Timings
from adaptspec.server.api.chat import ChatRequest, ChatWriter, Conversation
from adaptspec.server.api.fields import Warnings
from adaptspec.server.api.responses import ResponsesRequest, to_chat
from adaptspec.server.api.tool_choice import NamedTool
from adaptspec.server.api.tool_forms import HERMES, LLAMA3, ToolForm
from adaptspec.server.api.tools import Tool, tool_grammar
from tests.conftest import tiny_tokenizer

F = Tool.model_validate(
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
)
HEAD, MIDDLE, TAIL = HERMES.head, HERMES.separator, HERMES.tail
G = Tool.model_validate({"type": "function", "function": {"name": "g"}})
NAMED = NamedTool.model_validate({"type": "function", "function": {"name": "g"}})


def call(name: str, arguments: str) -> str:
    return HEAD + name + MIDDLE + arguments + TAIL


ONE, OTHER = call("f", '{"a": 1}'), call("g", "{}")


@pytest.mark.parametrize(
    ("choice", "parallel", "good", "bad"),
    [
        ("auto", True, ["", "hello", ONE, f"x {ONE} y {OTHER} z"], [call("h", "{}"), call("f", "{}"), "<tool_call>x"]),
        (None, False, ["", "hello", f"x {ONE}"], [ONE + OTHER]),
        ("required", True, [ONE, f"{ONE}\n{OTHER}"], ["hello", f" {ONE}", ""]),
        ("required", False, [OTHER], [f"{ONE}\n{OTHER}", ""]),
        (NAMED, True, [OTHER], [ONE, "hello", f"{OTHER}\n{OTHER}"]),
    ],
)
def test_only_whole_calls_of_known_tools_are_let_through(
    tokenizer: Any, choice: Any, parallel: bool, good: list[str], bad: list[str]
) -> None:
    """Names, arguments and how many: all as asked for."""
    grammar = tool_grammar([F, G], choice, parallel=parallel)
    assert grammar is not None
    grammars = Grammars(tokenizer, 260, (1,))

    def fits(text: str) -> bool:
        tokens = [*tokenizer.encode(text, add_special_tokens=False), 1]
        return grammars.start(grammar).valid(tokens) == len(tokens)

    assert [text for text in good if not fits(text)] == []
    assert [text for text in bad if fits(text)] == []


def answering(asked: ChatRequest, form: ToolForm = HERMES) -> ChatWriter:
    """Writes the answer to a request of one choice."""
    return ChatWriter("id", "tiny", Conversation(asked, [], form, None), TokenBytes(tiny_tokenizer()))


@pytest.mark.parametrize(("end", "finish"), [(TAIL, "tool_calls"), ("", "stop")])
def test_a_call_that_a_stop_string_cut_short_is_none_to_make(end: str, finish: str) -> None:
    """Its arguments are no JSON."""
    text = f'{HEAD}f{MIDDLE}{{"a": 1}}{end}'
    done = Completion("r", text, (1,), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [F.model_dump()]}
    writer = answering(ChatRequest.model_validate(asked))
    assert writer.choice(0, done).finish_reason == finish
    assert [*writer.chunks(0, Delta("r", text, (1,), done), first=True)][-1]["finish_reason"] == finish


SAYS = [{"role": "user", "content": "x"}]
ANSWER_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER_SCHEMA}}


def body(**more: Any) -> ChatRequest:
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [F.model_dump(), G.model_dump()], **more}
    return ChatRequest.model_validate(asked, context=Warnings())


def fitting(tokenizer: Any, asked: ChatRequest, texts: list[str], form: ToolForm = HERMES) -> list[str]:
    """Which of the texts the grammar of a request lets be written."""
    grammars, grammar = Grammars(tokenizer, 260, (1,)), asked.grammar(form=asked.call_form(form))
    assert grammar is not None

    def fits(text: str) -> bool:
        tokens = [*tokenizer.encode(text, add_special_tokens=False), 1]
        return grammars.start(grammar).valid(tokens) == len(tokens)

    return [text for text in texts if fits(text)]


JSON_ANSWER = '{"name": "Ann"}'


@pytest.mark.parametrize(
    ("choice", "parallel", "good"),
    [
        ("auto", True, [ONE, f"{ONE}\n{OTHER}", JSON_ANSWER]),
        (None, True, [ONE, f"{ONE}\n{OTHER}", JSON_ANSWER]),
        ("auto", False, [ONE, JSON_ANSWER]),
        ("required", True, [ONE, f"{ONE}\n{OTHER}"]),
        ({"type": "function", "function": {"name": "f"}}, True, [ONE]),
        ("none", True, [JSON_ANSWER]),
    ],
)
@pytest.mark.parametrize("format_of", [FORMAT, {"type": "json_object", "schema": ANSWER_SCHEMA}])
def test_tools_and_a_format_ask_for_calls_or_an_answer(
    tokenizer: Any, choice: Any, parallel: bool, good: list[str], format_of: Any
) -> None:
    """An agent's last answer has a type of its own; a call that must be made leaves it to a later turn."""
    asked = body(tool_choice=choice, parallel_tool_calls=parallel, response_format=format_of)
    texts = [ONE, f"{ONE}\n{OTHER}", JSON_ANSWER, "hello", "{}", '{"name": 1}', f"hm {ONE}", "", "<tool_call>"]
    assert fitting(tokenizer, asked, texts) == good


@pytest.mark.parametrize(
    "format_of", [FORMAT, {"type": "json_object"}, {"type": "json_object", "schema": ANSWER_SCHEMA}]
)
@pytest.mark.parametrize("text", [ONE, f"{ONE}\n{OTHER}", JSON_ANSWER])
def test_answers_to_tools_and_a_format_are_read_alike_whole_and_in_pieces(format_of: Any, text: str) -> None:
    """Calls as calls, the answer as text: also in forms in which a call begins as an answer may."""
    done = Completion("r", text, (1,), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))
    asked = body(response_format=format_of)
    writer = answering(asked, asked.call_form(LLAMA3))
    message = writer.choice(0, done).message
    deltas = [Delta("r", letter, (1,)) for letter in text] + [Delta("r", "", (), done)]
    chunks = [chunk["delta"] for i, delta in enumerate(deltas) for chunk in writer.chunks(0, delta, first=i == 0)]
    streamed = "".join(chunk.get("content") or "" for chunk in chunks)
    assert streamed == (message.content or "") == ("" if "<tool_call>" in text else text)
    pieces = [call for chunk in chunks for call in chunk.get("tool_calls", ())]
    arguments = ["".join(one["function"].get("arguments", "") for one in pieces if one["index"] == i) for i in range(2)]
    assert [one for one in arguments if one] == [one.function.arguments for one in message.tool_calls or ()]


def test_a_format_that_is_not_strict_leaves_out_what_cannot_be_held() -> None:
    """By its path; the same in `/v1/responses`, where paths are others."""
    schema = {"type": "object", "properties": {"p": {"type": "array", "uniqueItems": True}}}
    chat = body(tools=None, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    chat.grammar()
    assert chat.warnings.texts == [
        "response_format.json_schema.schema.properties.p.uniqueItems is not enforced: no grammar can hold it"
    ]
    for field in ("guided_json", "json_schema"):
        chat = body(tools=None, **{field: schema})
        chat.grammar()
        assert chat.warnings.texts == [f"{field}.properties.p.uniqueItems is not enforced: no grammar can hold it"]
    response = ResponsesRequest.model_validate(
        {
            "input": "x",
            "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
            "tools": [{"type": "function", "name": "f", "parameters": schema}],
        }
    )
    to_chat(response).grammar()
    assert response.warnings.texts == [
        "text.format.schema.properties.p.uniqueItems is not enforced: no grammar can hold it",
        "tools[0].parameters.properties.p.uniqueItems of the function f is not enforced: no grammar can hold it",
    ]


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}, {"properties": None}])
def test_a_function_without_parameters_gets_an_empty_object(tokenizer: Any, parameters: Any) -> None:
    """Weak models never closed it otherwise."""
    tool = {"type": "function", "function": {"name": "h", "parameters": parameters}}
    texts = [call("h", "{}"), call("h", '{"type": 1}')]
    good = texts if parameters == {"properties": None} else texts[:1]
    assert fitting(tokenizer, body(tools=[tool]), texts) == good


@pytest.mark.parametrize("key", ["input_schema", "inputSchema"])
async def test_parameters_may_have_the_name_that_anthropic_and_mcp_give_them(tokenizer: Any, key: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    asked = body(tools=[{"name": "f", "description": "d", key: schema}], tool_choice="required")
    texts = [call("f", '{"city": "Bonn"}'), call("f", "{}"), call("f", '{"town": "Bonn"}')]
    assert fitting(tokenizer, asked, texts) == texts[:1]
    assert asked.warnings.texts == []


ODD: dict[str, tuple[Any, str | None]] = {
    "a description that is no text": ({"name": "odd", "description": ["a"]}, "description"),
    "a description that is an object": ({"name": "odd", "description": {"en": "a"}}, "description"),
    "parameters in a list": ({"name": "odd", "parameters": [{"name": "a"}]}, "parameters"),
    "parameters as JSON text": ({"name": "odd", "parameters": '{"type": "object"}'}, "parameters"),
    "a switch that is text": ({"name": "odd", "strict": "no"}, "strict"),
    "nulls": ({"name": "odd", "description": None, "parameters": None, "strict": None, "type": None}, None),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
@pytest.mark.parametrize("case", ODD)
async def test_odd_keys_of_one_tool_are_dropped_and_named(post: Any, engine: Any, path: str, case: str) -> None:
    """The tool stays, and so do those next to it; in both APIs and in both of their spellings."""
    engine.target = replace(engine.target, context=2048)
    function, key = ODD[case]
    talk = {"input": "x", "max_output_tokens": 3} if path.endswith("responses") else {"messages": SAYS}
    nested, flat = {"type": "function", "function": function}, {**function, "type": "function"}
    for tool in (nested, flat):
        status, answer = await post(path, **talk, tools=[tool, F.model_dump()])
        assert status == 200, answer
        said = [f"{key} of the function odd is no" in text for text in answer.get("warnings", ())]
        assert said == ([] if key is None else [True])
        if path != "/tokenize":
            grammar = engine.seen[-1].sampling.grammar.text
            assert '"odd' in grammar
            assert '"f' in grammar


UNUSABLE: dict[str, tuple[Any, str]] = {
    "a name with a space": ({"type": "function", "function": {"name": "a b"}}, "that is not 1 to 128 letters"),
    "an empty name": ({"type": "function", "function": {"name": ""}}, "that is not 1 to 128 letters"),
    "a long name": ({"type": "function", "function": {"name": "x" * 129}}, "that is not 1 to 128 letters"),
    "a name with a line end": ({"type": "function", "function": {"name": "x\n"}}, "that is not 1 to 128 letters"),
    "a name that is no text": ({"type": "function", "function": {"name": 5}}, "that is not 1 to 128 letters"),
    "no name": ({"type": "function", "function": {"description": "d"}}, "has no function with a name"),
    "no function": ({"type": "function"}, "has no function with a name"),
    "a function that is no object": ({"type": "function", "function": "f"}, "has no function with a name"),
    "nothing": ({}, "has no function with a name"),
    "the same again": (F.model_dump(), "has the name f of an earlier one"),
    "the same name": ({"function": {"name": "f", "parameters": {}}}, "has the name f of an earlier one"),
    "a type that is no text": ({"type": 5, "function": {"name": "g"}}, "whose type is no text"),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("case", UNUSABLE)
async def test_a_tool_that_cannot_be_called_is_dropped_and_named(post: Any, engine: Any, path: str, case: str) -> None:
    """The first of a name stays as it is."""
    engine.target = replace(engine.target, context=2048)
    tool, why = UNUSABLE[case]
    talk = {"input": "x", "max_output_tokens": 3} if path.endswith("responses") else {"messages": SAYS}
    status, answer = await post(path, **talk, tools=[F.model_dump(), tool, G.model_dump()])
    assert status == 200, answer
    assert [why in text for text in answer["warnings"]] == [True]
    dropped = engine.seen[-1]
    await post(path, **talk, tools=[F.model_dump(), G.model_dump()])
    assert engine.seen[-1].prompt == dropped.prompt
    assert engine.seen[-1].sampling.grammar.text == dropped.sampling.grammar.text
