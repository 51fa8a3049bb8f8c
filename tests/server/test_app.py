"""The whole server as OpenAI's own client sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest


@pytest.fixture
async def api(client: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    url = str(client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=5.0) as api:
        yield api


HELLO: Any = [{"role": "user", "content": "hello"}]


async def test_chat_whole_streamed_and_with_the_adaptspec_object(api: openai.AsyncOpenAI, engine: Any) -> None:
    extra = {"adaptspec": {"max_depth": 0}}
    whole = await api.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, extra_body=extra)
    assert engine.seen[0].speculation.max_depth == 0
    assert whole.model_extra is not None
    assert whole.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] == 2
    stream = await api.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


async def test_errors_become_the_clients_own(api: openai.AsyncOpenAI, engine: Any) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await api.chat.completions.create(model="gpt-9", messages=HELLO)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await api.chat.completions.create(model="tiny", messages=HELLO, n=200)
    assert refused.value.param == "n"
    engine.failing_at = 1
    stream = await api.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="a fuse has blown"):
        [chunk async for chunk in stream]
