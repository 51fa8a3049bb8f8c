"""A model can be asked for by several names; answers have the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.errors import ConfigError
from adaptspec.server.app import make_app
from adaptspec.server.served_names import ServedNames
from adaptspec.telemetry.metrics import Metrics

HELLO = [{"role": "user", "content": "x"}]


@pytest.fixture
async def named(engine: Any, tokenizer: Any, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A server whose model `tiny` has these names."""
    names = ServedNames.of(request.param, engine.target.name)
    async with TestClient(TestServer(make_app(engine, tokenizer, Metrics(), names=names))) as client:
        yield client


async def ask(client: Any, model: str | None) -> tuple[int, Any]:
    async with client.post("/v1/chat/completions", json={"messages": HELLO, "model": model}) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("named", [["tiny", "org/tiny", "größe"]], indirect=True)
async def test_every_name_is_served_and_listed(named: Any) -> None:
    for name in ("tiny", "org/tiny", "größe", None):
        status, answer = await ask(named, name)
        assert (status, answer["model"]) == (200, "tiny")
    status, answer = await ask(named, "gpt-4o")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "`tiny` or `org/tiny` or `größe`" in answer["error"]["message"]
    async with named.get("/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        (name, "tiny", None) for name in ("tiny", "org/tiny", "größe")
    ]
    for name, status in (("org/tiny", 200), ("gpt-4o", 404)):
        async with named.get(f"/v1/models/{name}") as response:
            assert response.status == status


@pytest.mark.parametrize("named", [["*"], ["tiny", "*"]], indirect=True)
async def test_a_star_serves_any_name(named: Any) -> None:
    """For programs whose model cannot be set; the star itself is no name of a model."""
    for name in ("gpt-4o-mini", "dummy", "tiny", "*", None):
        status, answer = await ask(named, name)
        assert (status, answer["model"]) == (200, "tiny")
    async with named.get("/v1/models") as response:
        assert [card["id"] for card in (await response.json())["data"]] == ["tiny"]
    async with named.get("/v1/models/gpt-4o-mini") as response:
        card = await response.json()
    assert (card["id"], card["root"]) == ("gpt-4o-mini", "tiny")


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "\x1b[31m"])
def test_names_that_no_client_could_send_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--served-model-name"):
        ServedNames.of(["tiny", name], "tiny")
