"""What clients get of a real engine: streams that say what whole answers say, at every depth and for every option."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import Client, events
from tests.server.live import POLICIES, live_app

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
async def live(make_model: Callable[..., Path]) -> AsyncIterator[Client]:
    paths = [make_model("llama", seed=seed, max_position_embeddings=1024) for seed in (0, 1)]
    with live_app(*paths) as app:
        async with TestClient(TestServer(app)) as client:
            yield client


async def ask(client: Client, path: str, **body: Any) -> Any:
    """The answer, which must be one; events if it streams."""
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return events(await response.text()) if body.get("stream") else await response.json()


def joined(chunks: list[Any], count: int) -> list[dict[str, Any]]:
    """Each choice of a stream put together: text, tokens told with their log-probabilities, and the end."""
    whole = [{"text": "", "logprobs": [], "finish": None} for _ in range(count)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            mine = whole[choice["index"]]
            assert mine["finish"] is None, "nothing may follow an ending"
            mine["text"] += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
            mine["logprobs"] += _tokens(choice["logprobs"])
            mine["finish"] = choice["finish_reason"]
    return whole


def _tokens(logprobs: Any) -> list[Any]:
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    return list(
        zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True)
    )


def told(answer: Any) -> list[dict[str, Any]]:
    """The same of a whole answer."""
    return [
        {
            "text": choice["message"]["content"] if "message" in choice else choice["text"],
            "logprobs": _tokens(choice["logprobs"]),
            "finish": choice["finish_reason"],
        }
        for choice in answer["choices"]
    ]


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "seed": st.integers(0, 50),
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 24),
    },
    optional={
        "stop": st.lists(st.sampled_from(["a", "e", "th", "\n", "\u00e9", "zq"]), min_size=1, max_size=4),
        "top_p": st.just(0.8),
        "min_p": st.just(0.05),
        "top_k": st.just(20),
        "presence_penalty": st.just(0.5),
        "logit_bias": st.just({"100": 4.0, "70": -100.0}),
    },
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=OPTIONS, chat=st.booleans(), logprobs=st.booleans(), echo=st.booleans())
async def test_a_stream_is_the_whole_answer_in_pieces_under_every_policy(
    live: Client, options: dict[str, Any], chat: bool, logprobs: bool, echo: bool
) -> None:
    """Also: choice 0 of several is the answer of a request for one, and no policy changes a thing."""
    if chat:
        path, body = CHAT, {"messages": [{"role": "user", "content": "Say \u00e9!"}], **options}
        body |= {"logprobs": True, "top_logprobs": 2} if logprobs else {}
    else:
        path, body = COMPLETIONS, {"prompt": ["Once \u00fcber", "the"], "echo": echo, **options}
        body |= {"logprobs": 2} if logprobs else {}
    answers = [await ask(live, path, **body, adaptspec={"policy": policy}) for policy in POLICIES]
    whole = told(answers[1])
    for answer in answers:
        _alike(told(answer), whole)
    chunks = await ask(live, path, **body, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert _without_cached(chunks[-1]["usage"]) == _without_cached(answers[0]["usage"])
    _alike(joined(chunks, len(whole)), whole)
    one = told(await ask(live, path, **{**body, "n": 1}))
    _alike(one, whole[:: options["n"]])
    for choice in whole:
        assert (
            not any(stop in choice["text"].removeprefix("Once \u00fcber") for stop in options.get("stop", ())) or echo
        )


def _without_cached(usage: dict[str, Any]) -> dict[str, Any]:
    """All but the number of cached tokens, which depends on earlier requests."""
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def _alike(given: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [(c["text"], c["finish"]) for c in given] == [(c["text"], c["finish"]) for c in wanted]
    for mine, theirs in zip(given, wanted, strict=True):
        assert _rounded(mine["logprobs"]) == pytest.approx(_rounded(theirs["logprobs"]), abs=2e-3)


def _rounded(entries: list[Any]) -> list[float]:
    """The numbers alone: names are compared through the text, and the order of equals may differ."""
    found = [entry["logprob"] if isinstance(entry, dict) else entry[1] for entry in entries]
    return [math.nan if value is None else value for value in found if value is not None]


async def test_echo_begins_with_the_prompt_and_scores_it(live: Client) -> None:
    """What lm-eval sends: token ids, echo, logprobs, and max_tokens 0 or 1."""
    ids = [104, 105, 32 + 4]
    for wanted in (0, 1):
        answer = await ask(
            live, COMPLETIONS, prompt=[ids, ids[:1]], echo=True, logprobs=1, max_tokens=wanted, temperature=0
        )
        for choice, prompt in zip(answer["choices"], (ids, ids[:1]), strict=True):
            logprobs = choice["logprobs"]
            assert {len(part) for part in logprobs.values()} == {len(prompt) + wanted}
            assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
            assert all(value < 0 for value in logprobs["token_logprobs"][1:])
            if wanted:  # greedy: the token written is the likeliest
                best = logprobs["top_logprobs"][-1]
                assert max(best, key=best.__getitem__) == logprobs["tokens"][-1]
        assert answer["usage"]["completion_tokens"] == 2 * wanted
    alone = await ask(live, COMPLETIONS, prompt="hi", echo=True, max_tokens=0)
    assert (alone["choices"][0]["text"], alone["choices"][0]["logprobs"]) == ("hi", None)


async def test_choices_differ_with_a_seed_of_their_own(live: Client) -> None:
    """And come again with the same seed; the prompt is counted once."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12, "seed": 5, "n": 4}
    first, again = await ask(live, CHAT, **body), await ask(live, CHAT, **body)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert len(set(texts)) == 4
    alone = await ask(live, CHAT, **{**body, "n": 1})
    assert first["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "fog"]}, "ok": {"type": "boolean"}},
    "required": ["kind", "ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "see", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": "What is it?"}]


async def test_an_answer_in_a_format_is_in_it_and_the_same_under_every_policy(live: Client) -> None:
    """Speculation and grammar at once, whole and streamed."""
    formats = [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"type": "text"},
    ]
    body = {"messages": ASKED, "max_tokens": 200, "seed": 3, "response_format": formats[0]}
    answers = [told(await ask(live, CHAT, **body, adaptspec={"policy": policy})) for policy in POLICIES]
    assert answers[0] == answers[1] == answers[2] == joined(await ask(live, CHAT, **body, stream=True), 1)
    assert json.loads(answers[0][0]["text"]).keys() == SCHEMA["properties"].keys()
    assert answers[0][0]["finish"] == "stop"
    free = await ask(live, CHAT, **{**body, "response_format": formats[1], "max_tokens": 5})
    assert free["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "see"}}])
async def test_a_tool_that_must_be_called_is_called(live: Client, choice: Any) -> None:
    """The call parses, comes whole in a stream too, and can be sent back with its result."""
    body = {"messages": ASKED, "max_tokens": 220, "temperature": 0, "tools": [TOOL], "tool_choice": choice}
    body["parallel_tool_calls"] = False
    (choice,) = (await ask(live, CHAT, **body))["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", None)
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == SCHEMA["properties"].keys()
    streamed = {"name": "", "arguments": ""}
    for chunk in await ask(live, CHAT, **body, stream=True):
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            streamed["name"] += piece["function"].get("name", "")
            streamed["arguments"] += piece["function"]["arguments"]
    assert streamed == call["function"]
    result = {"role": "tool", "content": "seen", "tool_call_id": call["id"]}
    await ask(live, CHAT, messages=[*ASKED, message, result], max_tokens=3, tools=[TOOL], tool_choice="none")


async def test_text_beside_tools_streams_as_it_is(live: Client) -> None:
    """`auto`: a model that calls nothing answers as if there were no tools, but for what they add to its prompt."""
    body = {"messages": ASKED, "max_tokens": 30, "seed": 4, "tools": [TOOL]}
    (whole,) = told(await ask(live, CHAT, **body))
    assert joined(await ask(live, CHAT, **body, stream=True), 1) == [whole]


async def test_a_prediction_is_counted_and_changes_nothing(live: Client) -> None:
    """`usage` tells how many of its tokens came true; streams say the same."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}  # what it writes is no noise then
    body = {"messages": ASKED, "max_tokens": 100, "seed": 1, "response_format": schema}
    plain = await ask(live, CHAT, **body)
    text = plain["choices"][0]["message"]["content"]
    prediction = {"type": "content", "content": [{"type": "text", "text": text}]}
    body |= {"prediction": prediction}
    answer = await ask(live, CHAT, **body)
    assert told(answer) == told(plain)
    details = answer["usage"]["completion_tokens_details"]
    tokens = answer["usage"]["completion_tokens"]
    assert details == {"accepted_prediction_tokens": tokens - 1, "rejected_prediction_tokens": 0}, "all but the end"
    assert "completion_tokens_details" not in plain["usage"]
    chunks = await ask(live, CHAT, **body, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == answer["usage"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_prompt_that_was_read_before_is_counted_as_cached(live: Client, path: str, count: int) -> None:
    """Once for all choices, whole and streamed; a salt or an opt-out finds nothing, and the text is the same."""
    prompt = {"messages": ASKED} if path == CHAT else {"prompt": "What was that, and what is it now?"}
    body = {**prompt, "max_tokens": 4, "seed": 2, "n": count}
    first, again = await ask(live, path, **body), await ask(live, path, **body)
    tokens = first["usage"]["prompt_tokens"]
    assert _cached(first) == 0
    assert _cached(again) == tokens - 1, "the last token is always read"
    for apart in ({"cache_salt": "s"}, {"adaptspec": {"prefix_cache": False}}):
        answer = await ask(live, path, **body, **apart)
        assert _cached(answer) == 0
        assert told(answer) == told(first) == told(again)
    assert _cached(await ask(live, path, **body, cache_salt="s")) == tokens - 1
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await ask(live, path, **body, stream=True, stream_options=options)
    assert _cached(chunks[-1]) == _cached(chunks[-2]) == tokens - 1
    assert "prompt_tokens_details" not in chunks[0]["usage"], "it is reported once it is known"


def _cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_cached_prompts_are_counted_in_metrics(live: Client) -> None:
    for _ in range(2):
        tokens = (await ask(live, CHAT, messages=ASKED, max_tokens=2))["usage"]["prompt_tokens"]
    async with live.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    assert f"adaptspec_prefix_cache_queries_total {2 * tokens}.0" in lines
    assert f"adaptspec_prefix_cache_hits_total {tokens - 1}.0" in lines
    assert "adaptspec_prefix_cache_evictions_total 0.0" in lines
