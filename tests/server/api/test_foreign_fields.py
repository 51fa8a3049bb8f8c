"""Requests as clients of OpenAI, vLLM, SGLang and llama.cpp send them: fields are used, without effect, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

from adaptspec.server.api.fields import NEUTRAL_VALUES, Only
from adaptspec.server.api.neutral_fields import NeutralFields

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "seed": 1},
    COMPLETIONS: {"prompt": "x", "max_tokens": 3, "seed": 1},
    RESPONSES: {"input": "x", "max_output_tokens": 3, "temperature": 0},
}
TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
SHARED: dict[str, Any] = {
    "metadata": {"run": "7"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "me",
    "service_tier": "flex",
    "store": True,
    "user": "me",
}
# Fields that change nothing here, documented in openapi.json.
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    CHAT: SHARED
    | {
        "function_call": "none",
        "functions": [],
        "modalities": ["text"],
        "stream_options": {"include_usage": False},
        "verbosity": "low",
    },
    COMPLETIONS: {"best_of": 1, "stream_options": {}, "suffix": "", "user": "me"},
    RESPONSES: SHARED
    | {
        "background": False,
        "context_management": [],
        "max_tool_calls": 3,
        "stream_options": {"include_obfuscation": True},
        "truncation": "auto",
    },
}
# Fields of other servers, and the values that change nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    name: rule.values
    for name, field in NeutralFields.model_fields.items()
    for rule in field.metadata
    if isinstance(rule, Only)
}
PARAMS = {CHAT: ChatParams, COMPLETIONS: CompletionParams, RESPONSES: ResponseParams}


@pytest.mark.parametrize("path", PARAMS)
def test_every_field_of_openai_has_been_decided(path: str) -> None:
    """It is described in openapi.json, or the contract has a request that is refused for it."""
    goldens = Path(__file__).parents[2] / "files" / "goldens"
    described = json.loads((goldens / "openapi.json").read_text())
    body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = described["components"]["schemas"][body.rpartition("/")[2]]
    fields = {*schema["properties"], *schema.get(NEUTRAL_VALUES, ())}
    rows = json.loads((goldens / "refusals.json").read_text())["usual"].values()
    refused = {row.get("param") for row in rows if row.get("path") == path and row["status"] == 400}
    assert set(PARAMS[path].__annotations__) <= fields | refused


@pytest.mark.parametrize("path", PARAMS)
async def test_fields_without_effect_change_nothing(post: Any, engine: Any, path: str) -> None:
    await post(path, **GOOD[path])
    plain = engine.seen[-1]
    for name, value in WITHOUT_EFFECT[path].items():
        status, answer = await post(path, **GOOD[path], **{name: value})
        assert status == 200, (name, answer)
        seen = engine.seen[-1]
        assert (seen.prompt, seen.sampling, seen.speculation) == (plain.prompt, plain.sampling, plain.speculation)


@pytest.mark.parametrize("path", PARAMS)
async def test_null_is_as_good_as_no_field(post: Any, path: str) -> None:
    """For each field that may be left out, and for names that this server does not know."""
    names = {*PARAMS[path].__annotations__, *WITHOUT_EFFECT[path], "guided_json", "lora_path", "reasoning_format"}
    for name in sorted(names - {"messages", "prompt", "input"}):
        status, answer = await post(path, **GOOD[path] | {name: None})
        assert status == 200, (name, answer)


@pytest.mark.parametrize("path", PARAMS)
async def test_neutral_values_of_other_servers_change_nothing(post: Any, engine: Any, path: str) -> None:
    """And any other value of their fields is refused by name."""
    await post(path, **GOOD[path])
    plain = engine.seen[-1]
    own: dict[str, tuple[object, ...]] = {
        "top_k": (-1, 0, 0.0),
        "min_p": (0, 0.0),
        "repetition_penalty": (1,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({}, []),
        "n": (1,),
        "stop": ([],),
        "stop_token_ids": ([],),
        "ignore_eos": (False,),
        "min_tokens": (0,),
    }
    if path != RESPONSES:
        own |= {"echo": (False,), "add_special_tokens": (path == COMPLETIONS,), "max_tokens": (3.0,)}
    for name, values in {**NEUTRAL, **own}.items():
        for value in ("any", [1], 0.5) if ... in values else values:
            body = GOOD[path] | {name: value}
            status, answer = await post(path, **body)
            assert status == 200, (name, value, answer)
            seen = engine.seen[-1]
            assert (seen.prompt, seen.sampling) == (plain.prompt, plain.sampling), (name, value)
    for name, values in NEUTRAL.items():
        if ... not in values:
            status, answer = await post(path, **GOOD[path], **{name: "other"})
            assert (status, answer["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", PARAMS)
async def test_who_may_share_a_cached_prompt_reaches_the_engine(post: Any, engine: Any, path: str) -> None:
    """vLLM's salt, and AdaptSpec's opt-out."""
    for body, wanted in (
        ({}, (True, None)),
        ({"cache_salt": "s", "adaptspec": {"prefix_cache": True}}, (True, "s")),
        ({"cache_salt": "x" * 256, "adaptspec": {"prefix_cache": False}}, (False, "x" * 256)),
    ):
        assert (await post(path, **GOOD[path], **body))[0] == 200
        assert (engine.seen[-1].prefix_cache, engine.seen[-1].cache_salt) == wanted


@pytest.mark.parametrize("path", PARAMS)
@pytest.mark.parametrize("salt", ["", "x" * 257, 5, ["s"], {}])
async def test_a_salt_that_is_none_is_refused(post: Any, path: str, salt: object) -> None:
    status, answer = await post(path, **GOOD[path], cache_salt=salt)
    assert (status, answer["error"]["param"]) == (400, "cache_salt")


@pytest.mark.parametrize("path", PARAMS)
async def test_a_key_that_isolates_elsewhere_is_not_ignored(post: Any, path: str) -> None:
    """SGLang's `extra_key` keeps prompts apart; here `cache_salt` does."""
    status, answer = await post(path, **GOOD[path], extra_key="tenant")
    assert (status, answer["error"]["param"]) == (400, "extra_key")
    assert "did you mean cache_salt?" in answer["error"]["message"]


async def test_responses_are_drawn_as_chats_are(post: Any, engine: Any) -> None:
    """By the same fields, as vLLM takes them; what would make several answers is refused."""
    drawn = {"top_k": 5, "min_p": 0.1, "stop": ["x", "y"], "logit_bias": {"1": 5}, "seed": 3, "min_tokens": 2}
    drawn |= {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "stop_token_ids": [4]}
    await post(CHAT, messages=[{"role": "user", "content": "x"}], **drawn)
    assert (await post(RESPONSES, input="x", **drawn))[0] == 200
    chat, response = engine.seen
    assert (response.prompt, response.sampling) == (chat.prompt, chat.sampling)
    for name, value in {"n": 2, "n_predict": 3, "top_k": -2, "stop": 5}.items():
        status, answer = await post(RESPONSES, **GOOD[RESPONSES], **{name: value})
        assert (status, answer["error"]["param"]) == (400, name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (COMPLETIONS, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
    ],
)
async def test_minus_one_is_as_many_tokens_as_there_is_room_for(post: Any, engine: Any, path: str, name: str) -> None:
    """As at llama.cpp and LM Studio; also where an answer has few tokens unless more are asked for."""
    body = {key: value for key, value in GOOD[path].items() if "tokens" not in key}
    status, answer = await post(path, **body, **{name: -1})
    assert status == 200, answer
    seen = engine.seen[-1]
    assert len(seen.prompt) + seen.sampling.max_tokens == engine.target.context
    assert answer.get("max_output_tokens") is None
    for value in (-2, 0, -1.5, True):
        status, answer = await post(path, **body, **{name: value})
        assert (status, answer["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_tools_that_are_no_functions_are_dropped_and_named(post: Any, engine: Any, path: str) -> None:
    function = TOOL if path == CHAT else FLAT_TOOL
    others = [
        {"type": "web_search"},
        {"type": "custom", "name": "patch", "custom": {"name": "patch"}},
        {"type": "namespace", "name": "ns", "tools": [FLAT_TOOL]},
        {"type": "mcp", "server_label": "s"},
        {"type": "x" * 999 + "\n"},
    ]
    status, answer = await post(path, **GOOD[path], tools=[others[0], function, *others[1:]])
    assert status == 200, answer
    assert len(answer["warnings"]) == len(others)
    assert "tools[] of the type web_search cannot be called here" in answer["warnings"][0]
    status, _ = await post(path, **GOOD[path], tools=[function])
    assert engine.seen[0].prompt == engine.seen[1].prompt
    status, answer = await post(path, **GOOD[path], tools=others, tool_choice="auto")
    assert status == 200, answer
    assert engine.seen[-1].sampling.grammar is None
