"""Tokenize and detokenize agree with the tokenizer and with each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.api.tokenize import TokenizerInfo
from adaptspec.server.app import make_app
from adaptspec.telemetry.metrics import Metrics
from tests.models.chat.families import tokenizer_of
from tests.server.conftest import FakeEngine


@pytest.mark.parametrize("text", ["hello", "größer 猫\n", "x" * 21_000, ""])
async def test_texts_come_back(post: Any, tokenizer: Any, text: str) -> None:
    _, body = await post("/tokenize", prompt=text)
    tokens = tokenizer.encode(text)
    assert body == {"count": len(tokens), "max_model_len": 256, "tokens": tokens, "token_strs": None}
    assert await post("/detokenize", tokens=body["tokens"]) == (200, {"prompt": text})


TOOL = {"type": "function", "function": {"name": "f", "description": "Does it."}}


JSON = {"type": "json_object"}
CHOSEN = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("family", ["llama3", "qwen3", "mistral", "smollm2"])
async def test_fields_that_change_the_prompt_are_counted_as_in_chats(family: str) -> None:
    """An answer that is calls or JSON moves calls into another form; an effort sets variables of the template."""
    tokenizer, engine = tokenizer_of(family), FakeEngine()
    engine.target = replace(engine.target, vocab_size=len(tokenizer), context=10_000)
    counts = []
    async with TestClient(TestServer(make_app(engine, tokenizer, Metrics()))) as client:  # type: ignore[arg-type]
        for fields in (
            {},
            {"reasoning_effort": "none"},
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"tools": [TOOL]},
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": CHOSEN, "response_format": JSON},
            {"tools": [TOOL], "response_format": JSON},
        ):
            body = {"messages": [{"role": "user", "content": "a"}], **fields}
            answers = []
            for path in ("/v1/chat/completions", "/tokenize"):
                async with client.post(path, json=body | ({"max_tokens": 1} if "chat" in path else {})) as response:
                    assert response.status == 200, await response.text()
                    answers.append(await response.json())
            assert answers[0]["usage"]["prompt_tokens"] == answers[1]["count"]
            counts.append(answers[1]["count"])
    assert (counts[0] != counts[1]) == (family == "qwen3"), "the effort reaches a template that reads it"
    assert (counts[3] != counts[6]) == (family in ("llama3", "mistral")), "a call there begins as JSON does"


async def test_a_chat_template_writes_special_tokens_whatever_is_asked_for(post: Any) -> None:
    messages = [{"role": "user", "content": "a"}]
    status, body = await post("/tokenize", messages=messages, add_special_tokens=True)
    assert (status, body["error"]["param"]) == (400, "add_special_tokens")
    assert (await post("/tokenize", messages=messages, add_special_tokens=False))[0] == 200


@pytest.mark.parametrize("text", ["hello", "größer 猫\n", ""])
async def test_tokens_are_named_where_that_is_asked_for(post: Any, tokenizer: Any, text: str) -> None:
    """As in the vocabulary, so that clients can look them up there."""
    _, body = await post("/tokenize", prompt=text, return_token_strs=True)
    assert body["token_strs"] == tokenizer.convert_ids_to_tokens(body["tokens"])


async def test_the_tokenizer_is_described(client: Any, tokenizer: Any) -> None:
    """With what clients need to render and cut prompts themselves, and without places on the server's disk."""
    async with client.get("/tokenizer_info") as response:
        assert response.status == 200
        info = await response.json()
    TokenizerInfo.model_validate(info, strict=True)
    assert info["eos_token"] == tokenizer.eos_token
    assert info["chat_template"] == tokenizer.chat_template
    assert info["model_max_length"] == 256
    for number, token in info["added_tokens_decoder"].items():
        assert tokenizer.convert_tokens_to_ids(token["content"]) == int(number)
    assert "/" not in info["tokenizer_class"]
