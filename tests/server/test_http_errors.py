"""Whatever goes wrong, the client gets OpenAI's error object with a fitting status, and other requests go on."""

from __future__ import annotations

from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("path", [CHAT, "/v2/nothing"])
async def test_an_expectation_that_nobody_can_meet(client: Any, engine: Any, path: str) -> None:
    """aiohttp refuses it before any handler or middleware runs; the client gets our shape all the same."""
    async with client.post(path, json={"messages": HELLO}, headers={"Expect": "a-miracle"}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (417, "expectation_failed", "invalid_request_error")
        assert "x-request-id" in response.headers
    assert engine.seen == []
    async with client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}, expect100=True) as response:
        assert response.status == 200
