"""x-request-id: echoed if it is harmless, never trusted as our own id."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.server.request_id import MAX_LENGTH, sanitised


async def test_a_clients_id_comes_back_and_stays_out_of_the_engine(client: Any, engine: Any) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    async with client.post("/v1/completions", json=body, headers={"X-Request-Id": "trace/42"}) as response:
        assert response.headers["x-request-id"] == "trace/42"
        assert (await response.json())["id"] == engine.seen[0].id != "trace/42"


async def test_every_answer_has_one(client: Any) -> None:
    async with client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}) as response:
        assert response.headers["x-request-id"] == (await response.json())["id"]
    async with client.get("/nowhere") as response:
        assert response.headers["x-request-id"].startswith("req-")


@given(st.text())
def test_what_is_echoed_is_short_and_plain(supplied: str) -> None:
    echoed = sanitised(supplied)
    assert len(echoed) <= MAX_LENGTH
    assert all(character.isascii() and character.isprintable() and character not in ' "\\<>' for character in echoed)
