"""Reasoning is separated from the answer wherever tokens and pieces end, by what the prompt has opened or closed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions
from adaptspec.request import Reasoning, Request
from adaptspec.results import Completion, Delta, FinishReason, Piece, SpeculationStats, Timings, TokenLogprob
from adaptspec.server.api.reasoning import (
    ReasoningTokens,
    Splitter,
    begun,
    reasoning_format,
    with_effort,
)
from adaptspec.server.api.reasoning_formats import FORMATS
from adaptspec.server.app import make_app
from adaptspec.telemetry.metrics import Metrics
from tests.server.conftest import FakeEngine, events

THINK = FORMATS["think"]
OPENED = replace(THINK, opened=True)
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
ENDS_INSIDE = TURNS + "{% if add_generation_prompt %}me: <think>\n{% endif %}"
HYBRID = TURNS + (
    "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}{% if add_generation_prompt %}me: "
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SWITCHED_ON = (
    TURNS + "{% if add_generation_prompt %}me: {% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
)
PLAIN = TURNS.replace("</think>", "|") + "{% if add_generation_prompt %}me: {% endif %}"

Say = Callable[..., Any]


def _split(marks: Reasoning | None, pieces: list[str]) -> tuple[str, str, str]:
    """Reasoning and answer of an output that came in pieces, and all of it but what was skipped at its end."""
    splitter = Splitter(marks)
    output, parts, place = "".join(pieces), {True: "", False: ""}, 0
    for spans in (*(splitter.feed(piece) for piece in pieces), splitter.end()):
        for span in spans:
            place += span.skipped
            assert span.text
            assert output[place:].startswith(span.text), "spans and what is skipped make up the output"
            place += len(span.text)
            parts[span.reasoning] += span.text
    return parts[True], parts[False], output[place:]


def _expected(marks: Reasoning, output: str) -> tuple[str, str]:
    if not marks.opened:
        if not output.lstrip(" \n").startswith(marks.open):
            return "", output
        output = output.partition(marks.open)[2]
    thoughts, closed, answer = output.partition(marks.close)
    return thoughts.strip(" \n"), answer.lstrip(" \n") if closed else ""


_BITS = ["<think>", "</think>", "</thi", "nk>", "<", "/", " ", "\n", "é", "x", "<think", ">"]


@given(st.lists(st.sampled_from(_BITS), max_size=12), st.booleans(), st.lists(st.integers(0, 40), max_size=6))
def test_pieces_may_end_anywhere(bits: list[str], opened: bool, cuts: list[int]) -> None:
    """A mark in several tokens, half a mark that is text, white space around marks."""
    output = "".join(bits)
    places = sorted({min(cut, len(output)) for cut in cuts})
    pieces = [output[a:b] for a, b in zip([0, *places], [*places, len(output)], strict=True)]
    thoughts, answer, rest = _split(replace(THINK, opened=opened), pieces)
    assert (thoughts, answer) == _expected(replace(THINK, opened=opened), output)
    assert not rest.replace("<think>", "").replace("</think>", "").strip(" \n")
    assert _split(None, pieces) == ("", output, "")


@given(st.lists(st.sampled_from([*_BITS, "é"[:1]]), max_size=10), st.booleans(), st.integers(1, 4))
def test_tokens_belong_to_one_side_each(bits: list[str], opened: bool, size: int) -> None:
    """Their bytes decide, also where a token ends within a character; those of the answer make up the answer."""
    marks = replace(THINK, opened=opened)
    raw = "".join(bits).encode()
    vocabulary = [raw[start : start + size] for start in range(0, len(raw), size)]
    tokens = ReasoningTokens[int](marks)
    known = []
    for number, token in enumerate(vocabulary):
        known += tokens.answer([(token, number)])
    known += tokens.end()
    assert tokens.count + len(known) == len(vocabulary)
    assert [number for number, _ in known] == list(range(tokens.count, len(vocabulary))), "the reasoning comes first"
    _, answer = _expected(marks, raw.decode())
    assert b"".join(vocabulary[number][len(vocabulary[number]) - kept :] for number, kept in known) == answer.encode()


@pytest.mark.parametrize(
    ("template", "values", "begins"),
    [
        (ENDS_INSIDE, {}, OPENED),
        (HYBRID, {}, THINK),
        (HYBRID, {"enable_thinking": True}, THINK),
        (HYBRID, {"enable_thinking": False}, None),
        (SWITCHED_ON, {}, None),
        (SWITCHED_ON, {"thinking": True}, OPENED),
        (ENDS_INSIDE.replace("think>", "seed:think>"), {}, replace(FORMATS["seed"], opened=True)),
        (HYBRID.replace("<think>", "◁think▷").replace("</think>", "◁/think▷"), {}, FORMATS["kimi"]),
    ],
)
def test_the_prompt_says_where_the_reasoning_begins(
    tokenizer: Any, template: str, values: dict[str, Any], begins: Reasoning | None
) -> None:
    mine = copy.deepcopy(tokenizer)
    mine.chat_template = template
    chat = ChatTemplate(mine)
    marks = reasoning_format("auto", chat)
    assert marks is not None
    prompt = chat.render([{"role": "user", "content": "What is <think>?"}], None, RenderOptions(values=values))
    assert begun(marks, prompt) == begins
    assert reasoning_format("none", chat) is None


@pytest.mark.parametrize("message", ["Is <think> a tag?", "<think>", "<think>\n", "", "</think> <think>b"])
async def test_a_continued_message_of_a_user_is_no_reasoning(say: Say, message: str) -> None:
    """It is the user's own text, and what follows goes on with it."""
    talk = [{"role": "user", "content": message}]
    whole, _ = await say(HYBRID, "is it?</think>Yes.", messages=talk, continue_final_message=True)
    answer = whole["choices"][0]["message"]
    assert answer["content"] == "is it?</think>Yes."
    assert not answer.get("reasoning_content")


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_an_effort_goes_over_what_the_server_was_started_with(
    tokenizer: Any, usual: bool, effort: str, thinks: bool
) -> None:
    """As at vLLM: a client that asks for reasoning gets it, unless it switches it off itself."""
    mine = copy.deepcopy(tokenizer)
    mine.chat_template = HYBRID
    server = ChatTemplate(mine, {"enable_thinking": usual})
    talk = [{"role": "user", "content": "x"}]
    assert server.render(talk, options=with_effort(RenderOptions(), effort)).endswith("</think>\n\n") != thinks
    off = RenderOptions(values={"enable_thinking": False})
    assert server.render(talk, options=with_effort(off, effort)).endswith("</think>\n\n")


class Scripted(FakeEngine):
    """Says what it is given, token by token; with the length as its end unless there is room for it all."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        super().__init__()
        self.target = replace(self.target, vocab_size=len(tokenizer), context=1000)
        self._tokenizer, self.text = tokenizer, text

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.seen.append(request)
        tokens = self._tokenizer.encode(self.text, add_special_tokens=False)
        kept = tokens[: request.sampling.max_tokens]
        words = [self._tokenizer.decode([token]) for token in kept]
        entries = [TokenLogprob(token, -0.5, ()) for token in kept]
        for word, token, entry in zip(words, kept, entries, strict=True):
            pieces = (Piece(word, "ngram"),) if request.speculation.provenance else None
            logprobs = (entry,) if request.sampling.logprobs is not None else ()
            yield Delta(request.id, word, (token,), pieces=pieces, logprobs=logprobs)
        finish = FinishReason.STOP if len(kept) == len(tokens) else FinishReason.LENGTH
        stats, times = SpeculationStats("goodput", 1), Timings(0.0, 0.0, 0.1, 0.2)
        logprobs = tuple(entries) if request.sampling.logprobs is not None else ()
        done = Completion(
            request.id, "".join(words), tuple(kept), len(request.prompt), finish, stats, times, logprobs=logprobs
        )
        yield Delta(request.id, "", (), done)


@pytest.fixture
async def say(tokenizer: Any) -> AsyncIterator[Say]:
    """A function `(template, text, path=..., **body) -> (answer or events, engine)`."""
    clients = []

    async def ask(template: str, text: str, path: str = "/v1/chat/completions", **body: Any) -> Any:
        mine = copy.deepcopy(tokenizer)
        mine.chat_template = template
        engine = Scripted(mine, text)
        client = TestClient(TestServer(make_app(engine, mine, Metrics())))
        clients.append(client)
        await client.start_server()
        given = body if path.endswith("responses") else {"messages": [{"role": "user", "content": "Hi"}], **body}
        async with client.post(path, json=given) as response:
            text = await response.text()
            assert response.status == 200, text
            if response.content_type != "text/event-stream":
                return json.loads(text), engine
            if path.endswith("responses"):
                return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")], engine
            return events(text), engine

    yield ask
    for client in clients:
        await client.close()


THOUGHT = "<think>\nA fox </thinks> so.\n</think>\n\nThe fox."


def _joined(chunks: list[Any], field: str) -> str:
    return "".join(
        chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"] and field != "role"
    )


@pytest.mark.parametrize(
    ("template", "text", "thoughts", "answer"),
    [
        (HYBRID, THOUGHT, "A fox </thinks> so.", "The fox."),
        (HYBRID, "The fox.\n", None, "The fox.\n"),
        (ENDS_INSIDE, THOUGHT.removeprefix("<think>"), "A fox </thinks> so.", "The fox."),
        (SWITCHED_ON, "The <think>fox</think>", None, "The <think>fox</think>"),
        (PLAIN, THOUGHT, None, THOUGHT),
        (HYBRID, "<think></think>The fox.", None, "The fox."),
    ],
)
async def test_chats_return_reasoning_and_answer_apart(
    say: Say, template: str, text: str, thoughts: str | None, answer: str
) -> None:
    """Whole and streamed alike, the reasoning first; the count of its tokens is in the usage."""
    whole, _ = await say(template, text)
    message = whole["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (thoughts, answer)
    chunks, _ = await say(template, text, stream=True, stream_options={"include_usage": True})
    assert (_joined(chunks, "reasoning_content") or None, _joined(chunks, "content")) == (thoughts, answer)
    kinds = [next(iter(chunk["choices"][0]["delta"]), "") for chunk in chunks[1:] if chunk["choices"]]
    assert kinds == sorted(kinds, key=["reasoning_content", "content", ""].index)
    details = whole["usage"].get("completion_tokens_details")
    assert chunks[-1]["usage"].get("completion_tokens_details") == details
    if thoughts:
        assert 0 < details["reasoning_tokens"] < whole["usage"]["completion_tokens"]
    else:
        assert details is None or details["reasoning_tokens"] in (0, len("<think></think>"))


async def test_a_reasoning_cut_short_has_no_answer(say: Say) -> None:
    """At the cap, or where the model ends within it: nothing of it is an answer."""
    whole, _ = await say(ENDS_INSIDE, "I think that", max_tokens=2)
    choice = whole["choices"][0]
    assert choice["message"]["content"] is None
    assert "I think that".startswith(choice["message"]["reasoning_content"])
    assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    chunks, _ = await say(ENDS_INSIDE, "I think that", max_tokens=2, stream=True)
    assert _joined(chunks, "content") == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("text", "most"),
    [("I think that", 2), ("I think that</think>", 30), ("I think</think>\n\n", 30), ("a</think>b", 30), ("", 30)],
)
async def test_logprobs_are_there_whole_and_streamed_alike(say: Say, text: str, most: int) -> None:
    """Also where no token is of the answer, as it was cut within the reasoning: an empty list then."""
    whole, _ = await say(ENDS_INSIDE, text, logprobs=True, max_tokens=most)
    wanted = whole["choices"][0]["logprobs"]
    chunks, _ = await say(ENDS_INSIDE, text, logprobs=True, max_tokens=most, stream=True)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"] is not None]
    assert {"content": [one for part in streamed for one in part["content"]], "refusal": None} == wanted
    assert streamed
    chunks, _ = await say(ENDS_INSIDE, text, max_tokens=most, stream=True)
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)


async def test_provenance_is_of_each_chunk(say: Say) -> None:
    chunks, _ = await say(HYBRID, THOUGHT, stream=True, adaptspec={"provenance": True})
    counted = 0
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        words = delta.get("reasoning_content") or delta.get("content")
        if words:
            counted += 1
            assert "".join(one["text"] for one in chunk["adaptspec"]["provenance"]) == words
    assert counted > 2


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


async def test_calls_in_a_reasoning_are_none(say: Say) -> None:
    text = f"<think>I could write {CALL}.</think>\n{CALL}"
    whole, engine = await say(HYBRID, text, tools=[TOOL])
    message = whole["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert message["reasoning_content"] == f"I could write {CALL}."
    assert message["content"] is None
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert engine.grammars[-1].reasoning == THINK


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a"]}},
        {"tools": [TOOL], "tool_choice": "required"},
    ],
)
@pytest.mark.parametrize(
    ("template", "more", "reasoning"),
    [
        (HYBRID, {}, THINK),
        (HYBRID, {"chat_template_kwargs": {"enable_thinking": False}}, None),
        (HYBRID, {"reasoning_effort": "none"}, None),
        (ENDS_INSIDE, {}, OPENED),
        (SWITCHED_ON, {"reasoning_effort": "high"}, OPENED),
        (PLAIN, {}, None),
    ],
)
async def test_grammars_and_forced_calls_start_after_the_reasoning(
    say: Say, body: dict[str, Any], template: str, more: dict[str, Any], reasoning: Reasoning | None
) -> None:
    _, engine = await say(template, "x", **body, **more)
    assert engine.grammars[-1].reasoning == reasoning


async def test_an_effort_reaches_the_template(say: Say) -> None:
    """In chats and responses; a template that knows nothing of it writes the same prompt."""
    _, engine = await say(HYBRID, "x", reasoning_effort="low")
    prompt = engine._tokenizer.decode(engine.seen[-1].prompt)
    assert prompt.endswith("[low]me: ")
    _, engine = await say(HYBRID, "x", "/v1/responses", input="Hi", reasoning={"effort": "none"})
    prompt = engine._tokenizer.decode(engine.seen[-1].prompt)
    assert re.search(r"\[none\]me: <think>\s+</think>\s+$", prompt)
    prompts = [(await say(PLAIN, "x", **more))[1].seen[-1].prompt for more in ({}, {"reasoning_effort": "high"})]
    assert prompts[0] == prompts[1]


async def test_responses_have_a_reasoning_item(say: Say) -> None:
    """With OpenAI's events, closed before the message opens."""
    whole, _ = await say(HYBRID, THOUGHT, "/v1/responses", input="Hi", reasoning={"effort": "high"})
    thought, message = whole["output"]
    assert thought["type"] == "reasoning"
    assert thought["summary"] == []
    assert thought["content"] == [{"type": "reasoning_text", "text": "A fox </thinks> so."}]
    assert message["content"][0]["text"] == "The fox."
    assert whole["reasoning"]["effort"] == "high"
    tokens = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < tokens < whole["usage"]["output_tokens"]
    stream, _ = await say(HYBRID, THOUGHT, "/v1/responses", input="Hi", stream=True)
    kinds = list(dict.fromkeys(one["type"] for one in stream if one.get("output_index") == 0))
    assert kinds == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    deltas = "".join(one["delta"] for one in stream if one["type"] == "response.reasoning_text.delta")
    (done,) = [one for one in stream if one["type"] == "response.reasoning_text.done"]
    assert deltas == done["text"] == "A fox </thinks> so."
    assert [one["type"] for one in stream[-1]["response"]["output"]] == ["reasoning", "message"]
