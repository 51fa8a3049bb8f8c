"""Texts of any length encode alike, and templates that cannot be used are the client's to know."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.errors import PromptTooLongError, RequestError
from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions
from adaptspec.server.api.fields import Warnings
from adaptspec.server.api.messages import Message
from adaptspec.server.api.tools import Function, Tool
from adaptspec.server.app import make_app
from adaptspec.server.prompts import Prompts
from adaptspec.telemetry.metrics import Metrics
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.server.bounds import bounds
from tests.server.conftest import FakeEngine


class Watched:
    """A tokenizer that keeps on which threads it was asked, and may be told to wait before a text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.threads: set[threading.Thread] = set()
        self.held: dict[str, threading.Event] = {}  # by the first letter of a text

    def encode(self, text: str, **options: Any) -> Any:
        self.threads.add(threading.current_thread())
        if text[:1] in self.held:
            assert self.held[text[:1]].wait(20.0)
        return self._tokenizer.encode(text, **options)

    def decode(self, tokens: Any, **options: Any) -> Any:
        self.threads.add(threading.current_thread())
        return self._tokenizer.decode(tokens, **options)


async def test_a_text_does_not_wait_for_much_longer_ones(tokenizer: Any) -> None:
    """One lock for all of them had a prompt of 27,000 characters wait 36 s for texts of megabytes."""
    watched = Watched(tokenizer)
    held = watched.held["l"] = threading.Event()
    prompts = Prompts(watched, 2**16)  # type: ignore[arg-type]
    longest = [asyncio.create_task(prompts.encode("l" * 150_000)) for _ in range(3)]
    try:
        await asyncio.wait_for(prompts.encode("x" * 27_000), 20.0)
        assert not any(task.done() for task in longest)
    finally:
        held.set()
        await asyncio.gather(*longest)


async def test_requests_of_many_texts_take_turns_with_others(tokenizer: Any) -> None:
    """A text waits for one of each request before it, not for all of them."""
    order: list[str] = []

    class Noting(Watched):
        def encode(self, text: str, **options: Any) -> Any:
            order.append(text[0])
            return super().encode(text, **options)

    prompts = Prompts(Noting(tokenizer), 2**16)  # type: ignore[arg-type]
    many = asyncio.create_task(prompts.encode_all(["m" * 30_000] * 6))
    await asyncio.sleep(0)
    one = asyncio.create_task(prompts.encode("o" * 30_000))
    await asyncio.gather(many, one)
    assert order == ["m", "o", "m", "m", "m", "m", "m"]


async def test_long_work_leaves_the_event_loop_free(tokenizer: Any) -> None:
    """Many short texts are as long as one, and many ids are long to read; what is short is done at once."""
    watched, texts = Watched(tokenizer), ["a" * 2048, "b" * 2048, "c"]
    prompts = Prompts(watched, 2**16)  # type: ignore[arg-type]
    assert [list(tokens) for tokens in await prompts.encode_all(texts)] == [tokenizer.encode(text) for text in texts]
    assert await prompts.decode([100] * 5000) == tokenizer.decode([100] * 5000)
    assert threading.current_thread() not in watched.threads
    watched.threads.clear()
    await prompts.encode("c")
    await prompts.decode([100])
    assert watched.threads == {threading.current_thread()}


@pytest.mark.parametrize("text", ["x" * 1001, "\U0001f98a" * 251])
async def test_a_text_that_cannot_fit_is_not_even_encoded(tokenizer: Any, text: str) -> None:
    """What counts is bytes, whatever the text comes from: a prompt, or what a template made of a short talk."""
    watched = Watched(tokenizer)
    with bounds(text_bytes_per_token=1, spare_text_bytes=0):
        prompts = Prompts(watched, 1000)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLongError, match="more than 1000 bytes") as refused:
        await prompts.encode_all(["short", text], param="prediction")
    assert refused.value.param == "prediction"
    assert not watched.threads
    await prompts.encode("x" * 1000)


async def test_what_comes_after_a_prompt_that_is_refused_is_not_encoded(tokenizer: Any) -> None:
    """Fifty of the longest texts took a second and 60 MB before the first of them was found not to fit."""
    mine, seen = copy.deepcopy(tokenizer), list[str]()

    def encode(text: str, **options: Any) -> Any:
        seen.append(text[:1])
        return tokenizer.encode(text, **options)

    mine.encode = encode
    async with (
        TestClient(TestServer(make_app(FakeEngine(), mine, Metrics()))) as client,
        client.post("/v1/completions", json={"prompt": ["x", *["y" * 900] * 10]}) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (400, "context_length_exceeded")
    assert seen == ["x", "y"]


def with_template(tokenizer: Any, template: str | None) -> Any:
    """A copy of a tokenizer, with another chat template."""
    mine = copy.deepcopy(tokenizer)
    mine.chat_template = template
    return mine


async def test_a_talk_that_cannot_fit_is_not_even_written_out(tokenizer: Any) -> None:
    """A text that the template makes is bounded. Messages beyond the bound never reach it: here it would fail."""
    half = Message(role="user", content="x" * 501)
    with bounds(text_bytes_per_token=1, spare_text_bytes=0):
        long = Prompts(with_template(tokenizer, "{{ 'y' * 1001 }}"), 1000)
        failing = Prompts(with_template(tokenizer, "{{ raise_exception('no') }}"), 1000)
    with pytest.raises(PromptTooLongError, match="messages has a text of more than 1000 bytes"):
        await long.chat([Message(role="user", content="x")])
    for talk in ([half, half], [Message(role="user", content="")] * 16):
        with pytest.raises(PromptTooLongError, match="messages has a text of more than 1000 bytes"):
            await failing.chat(talk)


SLOW = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
PAIRS = "{% for a in messages %}{% for b in messages[1:]|reverse %}{% if a == b %}.{% endif %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("messages", [3, 4000])
async def test_a_template_has_only_so_long_for_a_conversation(tokenizer: Any, messages: int) -> None:
    """However short: a loop over every pair of messages ends, with an error that says so, and the event loop is free.

    The same loop ends by itself where there is time enough.
    """
    talk = [Message(role="user", content=str(i)) for i in range(messages)]
    usual, tokenizer.chat_template = tokenizer.chat_template, PAIRS if messages > 100 else SLOW
    try:
        prompts = Prompts(tokenizer, 2**16)
        with bounds(template_seconds=0.1):
            asked = asyncio.create_task(prompts.chat(talk))
            await asyncio.sleep(0.05)
            assert not asked.done()
            with pytest.raises(RequestError, match="chat template takes longer") as caught:
                await asked
        assert caught.value.param == "messages"
        tokenizer.chat_template = PAIRS
        with bounds(template_seconds=60.0):
            assert len(await prompts.chat(talk[:100])) == min(messages, 100) - 1
        while any(thread.name == "adaptspec-timed" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    finally:
        tokenizer.chat_template = usual


TOOLS = [Tool(type="function", function=Function(name=name, description=f"of {name}")) for name in ("look", "find")]


def called(identity: str, name: str, value: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps({"where": value})}}


def round_of(first: str, second: str) -> list[Message]:
    """A question, two calls with such ids, their results, an answer and another question."""
    calls = [called(first, "look", "Rome"), called(second, "find", "Oslo")]
    documents: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it warm?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": first, "content": "31 degrees"},
        {"role": "tool", "tool_call_id": second, "content": "4 degrees"},
        {"role": "assistant", "content": "In Rome."},
        {"role": "user", "content": "Thanks."},
    ]
    return [Message.model_validate(one) for one in documents]


OPENAI, OURS = (f"call_{'aB3' * 8}", f"call_{'cD4' * 8}"), ("a1b2c3d4e", "f5g6h7i8j")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ids", [OPENAI, OURS, ("1", "2")])
@pytest.mark.parametrize("tools", [TOOLS, []])
async def test_a_round_of_tools_comes_out_in_every_family(family: str, ids: tuple[str, str], tools: list[Tool]) -> None:
    """Whether the template writes calls in its own form or knows nothing of them, on every turn of an agent's loop."""
    tokenizer = tokenizer_of(family)
    prompts, talk = Prompts(tokenizer, 2**16), round_of(*ids)
    for turn in (len(talk), 5):
        text = tokenizer.decode(await prompts.chat(talk[:turn], tools, form=prompts.tool_form))
        words = ["Be brief.", "Where is it warm?", "look", "Rome", "31 degrees", "find", "Oslo", "4 degrees"]
        assert [word for word in words if word not in text] == []
        assert text.index("Rome") < text.index("31 degrees") < text.index("4 degrees")
        assert "\\\\" not in text
        assert "'where'" not in text
        assert ("of look" in text) == bool(tools)


@pytest.mark.parametrize("family", ["qwen2.5", "smollm2", "deepseek"])
async def test_control_tokens_in_calls_and_results_can_be_kept_out(family: str) -> None:
    """What a tool returns is as little to be trusted as what a user writes."""
    tokenizer = tokenizer_of(family)
    end = ChatTemplate(tokenizer).traits.end_of_turn or ""
    counts = []
    for word in ("x", end):
        talk = [
            Message(role="user", content=word),
            Message.model_validate({"role": "assistant", "content": word, "tool_calls": [called("1", "look", word)]}),
            Message(role="tool", tool_call_id="1", content=word),
        ]
        tool = Tool(type="function", function=Function(name="look", description=f"of {word}"))
        prompts = Prompts(tokenizer, 2**16, ChatTemplate(tokenizer, sanitize=True))
        ids = await prompts.chat(talk, [tool], form=prompts.tool_form)
        counts.append(list(ids).count(tokenizer.convert_tokens_to_ids(end)))
        assert tokenizer.decode(ids).count(word) >= 4
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("{{ about }}", {"about": "x WORD y"}),
        ("{{ documents[0].text }}", {"documents": [{"text": "WORD"}]}),
        ("{% for key in about %}{{ key }}{% endfor %}", {"about": {"a WORD": 1}}),
        ("{{ about | tojson }}", {"about": {"WORD": ["WORD"]}}),
        ("{{ about[0][0] }}", {"about": [["WORDWORD"]]}),
    ],
)
async def test_control_tokens_in_variables_of_a_request_can_be_kept_out(source: str, values: dict[str, Any]) -> None:
    """A gateway lets users set variables, too; those that the server was started with are its operator's."""
    tokenizer = tokenizer_of("qwen2.5")
    end = "<|im_end|>"
    tokenizer.chat_template = f"{source}{{{{ messages[-1].content }}}}{end}"
    given = json.loads(json.dumps(values).replace("WORD", end))
    talk, number = [Message(role="user", content="hello")], tokenizer.convert_tokens_to_ids(end)
    by_request = Prompts(tokenizer, 2**16, ChatTemplate(tokenizer, sanitize=True))
    ids = list(await by_request.chat(talk, options=RenderOptions(values=given)))
    assert ids.count(number) == 1
    assert tokenizer.decode(ids).count(end) >= 2
    by_operator = Prompts(tokenizer, 2**16, ChatTemplate(tokenizer, given, sanitize=True))
    assert list(await by_operator.chat(talk)).count(number) >= 2


@pytest.mark.parametrize(
    ("source", "roles", "lost"),
    [
        ("{{ messages[-1].content }}", "user", False),
        ("{{ messages[-1].content }}", "user assistant user", True),
        ("{{ messages[-1].content }}", "system user", False),
        ("{% for m in messages[-2:] %}{{ m.content | trim }}{% endfor %}", "assistant user", False),
        ("{% for m in messages[-2:] %}{{ m.content }}{% endfor %}", "user assistant user", True),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", "user assistant user", False),
    ],
)
async def test_a_template_that_leaves_messages_out_is_named_in_the_answer(
    tokenizer: Any, source: str, roles: str, lost: bool
) -> None:
    """Models that judge a last message do so on purpose; others lose a conversation without a word."""
    mine, warnings = copy.deepcopy(tokenizer), Warnings()
    mine.chat_template = source
    talk = [Message.model_validate({"role": role, "content": f" text {i} "}) for i, role in enumerate(roles.split())]
    await Prompts(mine, 2**16).chat(talk, warnings=warnings)
    assert warnings.counts["template"] == int(lost)
    assert [text for text in warnings.texts if "writes only the latest" not in text] == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
async def test_every_route_that_renders_names_it(tokenizer: Any, path: str) -> None:
    mine = copy.deepcopy(tokenizer)
    mine.chat_template = "{{ messages[-1].content }}"
    talk = [{"role": role, "content": "some text " + role} for role in ("user", "assistant", "user")]
    body = {"input": talk} if path.endswith("responses") else {"messages": talk}
    async with (
        TestClient(TestServer(make_app(FakeEngine(), mine, Metrics()))) as client,
        client.post(path, json=body) as response,
    ):
        answer = await response.json()
    assert ["earlier messages are not in the prompt" in text for text in answer["warnings"]] == [True]
