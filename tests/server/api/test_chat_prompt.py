"""Fields that say how the chat template writes a conversation: in chats and in /tokenize."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.app import make_app
from adaptspec.telemetry.metrics import Metrics

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
SYSTEM = {"role": "system", "content": "s"}
USER, BEGUN = {"role": "user", "content": "a"}, {"role": "assistant", "content": "Hello "}
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{% endif %}"
)


async def prompts(post: Any, engine: Any, tokenizer: Any, **body: Any) -> list[str]:
    """What the model gets to read of a chat, and what /tokenize says of it."""
    status, answer = await post(CHAT, max_tokens=2, **body)
    assert status == 200, answer
    _, counted = await post(TOKENIZE, **body)
    return [tokenizer.decode(ids) for ids in (engine.seen[-1].prompt, counted["tokens"])]


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, "<|user|>a<|end|><|assistant|>Hello <|end|><|assistant|>"),
        ({"add_generation_prompt": True}, "<|user|>a<|end|><|assistant|>Hello <|end|><|assistant|>"),
        ({"add_generation_prompt": None, "continue_final_message": None, "chat_template_kwargs": None}, None),
        ({"continue_final_message": False, "chat_template_kwargs": {}}, None),
        ({"add_generation_prompt": False}, "<|user|>a<|end|><|assistant|>Hello <|end|>"),
        ({"continue_final_message": True}, "<|user|>a<|end|><|assistant|>Hello "),
        ({"continue_final_message": True, "add_generation_prompt": False}, "<|user|>a<|end|><|assistant|>Hello "),
    ],
)
async def test_chats_and_counts_are_written_alike(
    post: Any, engine: Any, tokenizer: Any, fields: dict[str, Any], written: str | None
) -> None:
    usual = await prompts(post, engine, tokenizer, messages=[USER, BEGUN])
    found = await prompts(post, engine, tokenizer, messages=[USER, BEGUN], **fields)
    assert found == (usual if written is None else [written, written])


async def test_variables_reach_the_template(engine: Any, tokenizer: Any) -> None:
    mine = copy.deepcopy(tokenizer)
    mine.chat_template = THINKING
    async with TestClient(TestServer(make_app(engine, mine, Metrics()))) as client:

        async def post(path: str, **body: Any) -> tuple[int, Any]:
            async with client.post(path, json=body) as response:
                return response.status, await response.json()

        for values, ending in (
            ({"enable_thinking": False}, "no"),
            ({"enable_thinking": True}, ""),
            ({"other": [1]}, ""),
        ):
            found = await prompts(post, engine, mine, messages=[USER], chat_template_kwargs=values)
            assert found == [f"<|user|>a<|end|><|assistant|>{ending}"] * 2
