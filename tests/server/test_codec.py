"""Texts of any length encode alike, and templates that cannot be used are the client's to know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adaptspec.errors import RequestError
from adaptspec.server.codec import LONG_TEXT, Codec


async def test_long_texts_leave_the_event_loop_free_and_encode_the_same(tokenizer: Any) -> None:
    codec, text = Codec(tokenizer, 260), "word " * LONG_TEXT
    first, second = await asyncio.gather(codec.encode(text), codec.encode(text))
    assert list(first) == list(second) == tokenizer.encode(text)


async def test_a_model_without_a_template_says_what_to_use_instead(tokenizer: Any) -> None:
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(RequestError, match="/v1/completions"):
            await Codec(tokenizer, 260).encode_chat([{"role": "user", "content": "x"}])
    finally:
        tokenizer.chat_template = template


def test_ids_outside_of_the_vocabulary_are_refused(tokenizer: Any) -> None:
    codec = Codec(tokenizer, 260)
    codec.check([0, 259], "prompt")
    for token in (-1, 260, 10**4000):
        with pytest.raises(RequestError, match="0 to 259"):
            codec.check([token], "prompt")
