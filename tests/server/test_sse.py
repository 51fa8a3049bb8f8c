"""Streams: what their bytes look like, and how they end when something breaks in the middle."""

from __future__ import annotations

from typing import Any

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
PATH = "/v1/chat/completions"


async def test_headers_tell_everyone_between_not_to_collect(client: Any) -> None:
    async with client.post(PATH, json=BODY) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["x-request-id"].startswith("chatcmpl-")


async def test_a_failure_in_the_middle_is_an_event(post: Any, engine: Any) -> None:
    engine.failing_at = 2
    status, chunks = await post(PATH, **BODY)
    assert status == 200
    assert [len(chunk.get("choices", ())) for chunk in chunks] == [1, 1, 1, 0]
    assert chunks[-1].keys() == {"error"}
    assert "a fuse has blown" in chunks[-1]["error"]["message"]


async def test_an_unexpected_error_in_the_middle_keeps_its_secrets(post: Any, engine: Any, monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(engine, "_completion", broken)
    _, chunks = await post(PATH, **BODY)
    assert chunks[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(chunks)
