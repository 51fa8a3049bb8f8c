"""Models, health and the count of answers."""

from __future__ import annotations

from typing import Any


async def get(client: Any, path: str) -> tuple[int, Any]:
    async with client.get(path) as response:
        return response.status, await response.json()


async def test_models_are_listed_and_found_by_name(client: Any) -> None:
    _, body = await get(client, "/v1/models")
    (card,) = body["data"]
    assert (body["object"], card["id"], card["max_model_len"]) == ("list", "tiny", 256)
    assert card["adaptspec"]["policies"] == ["goodput", "static"]
    assert await get(client, "/v1/models/tiny") == (200, card)
    status, body = await get(client, "/v1/models/some/other")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_health_follows_the_engine(client: Any, engine: Any, app: Any) -> None:
    assert await get(client, "/health") == (200, {"status": "ok", "running": 0, "waiting": 0})
    engine.is_alive = False
    assert (await get(client, "/health"))[0] == 503
    async with client.post("/v1/completions", json={"prompt": "x"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "engine_stopped")


async def test_answers_are_counted_by_route_and_status_and_refusals_too(client: Any) -> None:
    for body in ({"prompt": "x", "max_tokens": 1}, {"prompt": "x", "n": 0}, {"prompt": "x", "n": 999}):
        async with client.post("/v1/completions", json=body):
            pass
    for path in ("/v1/models/some", "/v1/models/other", "/nowhere", "/elsewhere", "/v1/completions"):
        async with client.get(path):
            pass
    async with client.get("/metrics") as response:
        text = await response.text()
    prefix = "adaptspec_http_responses_total"
    assert {line for line in text.splitlines() if line.startswith(prefix)} == {
        f'{prefix}{{route="/v1/completions",status="200"}} 1.0',
        f'{prefix}{{route="/v1/completions",status="400"}} 2.0',
        f'{prefix}{{route="/v1/models/{{model}}",status="404"}} 2.0',
        f'{prefix}{{route="unmatched",status="404"}} 2.0',
        f'{prefix}{{route="unmatched",status="405"}} 1.0',
    }
