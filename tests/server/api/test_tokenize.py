"""Tokenize and detokenize agree with the tokenizer and with each other."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("text", ["hello", "größer 猫\n", "x" * 21_000, ""])
async def test_texts_come_back(post: Any, tokenizer: Any, text: str) -> None:
    _, body = await post("/tokenize", prompt=text)
    assert body == {"count": len(body["tokens"]), "max_model_len": 256, "tokens": tokenizer.encode(text)}
    assert await post("/detokenize", tokens=body["tokens"]) == (200, {"prompt": text})


async def test_a_conversation_is_counted_with_its_template(post: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "a"}]
    _, body = await post("/tokenize", messages=messages, add_generation_prompt=False)
    assert tokenizer.decode(body["tokens"]) == "<|user|>a<|end|>"


@pytest.mark.parametrize(
    ("body", "said"),
    [({}, "nothing to tokenize"), ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "not both")],
)
async def test_exactly_one_of_prompt_and_messages(post: Any, body: dict[str, Any], said: str) -> None:
    status, answer = await post("/tokenize", **body)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert said in answer["error"]["message"]


async def test_token_ids_must_exist(post: Any) -> None:
    status, answer = await post("/detokenize", tokens=[260])
    assert (status, answer["error"]["param"]) == (400, "tokens")
