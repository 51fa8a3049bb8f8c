"""Fields that cannot change a text are taken as they are, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.server.api.handlers import ROUTES
from adaptspec.server.openapi import describe

HELLO = [{"role": "user", "content": "x"}]
SHARED: dict[str, Any] = {
    "metadata": {"run": "7"},
    "store": True,
    "service_tier": "priority",
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
}
CHAT: dict[str, Any] = SHARED | {"reasoning_effort": "high", "verbosity": "medium", "moderation": None}
RESPONSE: dict[str, Any] = SHARED | {
    "reasoning": {"effort": "low", "summary": "auto"},
    "stream_options": {"include_obfuscation": False},
    "text": {"verbosity": "medium"},
}


@pytest.mark.parametrize(
    ("path", "body", "hints"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "seed": 1}, CHAT),
        ("/v1/responses", {"input": "x"}, RESPONSE),
        ("/v1/completions", {"prompt": "x", "seed": 1}, {"user": "me"}),
    ],
)
async def test_they_are_accepted_and_change_nothing(
    post: Any, engine: Any, path: str, body: dict[str, Any], hints: dict[str, Any]
) -> None:
    """Alone and together; what reaches the engine is the same as without them."""
    assert (await post(path, **body))[0] == 200
    plain = engine.seen[-1]
    for some in (hints, *({name: value} for name, value in hints.items()), dict.fromkeys(hints)):
        status, answer = await post(path, **body, **some)
        assert status == 200, (some, answer)
        seen = engine.seen[-1]
        assert (seen.prompt, seen.sampling, seen.speculation) == (plain.prompt, plain.sampling, plain.speculation)


async def test_a_response_that_is_to_be_stored_says_that_it_is_not(post: Any) -> None:
    _, body = await post("/v1/responses", input="x", store=True, metadata={"run": "7"})
    assert (body["store"], body["metadata"]) == (False, {"run": "7"})


async def test_obfuscation_may_be_asked_for(post: Any) -> None:
    """As OpenAI's clients do to save bytes; there is none in our chunks."""
    options = {"include_usage": True, "include_obfuscation": False}
    status, _ = await post("/v1/chat/completions", messages=HELLO, stream=True, stream_options=options)
    assert status == 200


@pytest.mark.parametrize(
    ("body", "hints"), [("ChatBody", CHAT), ("ResponsesBody", RESPONSE), ("CompletionBody", {"user"})]
)
def test_the_description_says_that_they_have_no_effect(body: str, hints: dict[str, Any]) -> None:
    described = describe(ROUTES)["components"]["schemas"]
    fields = described[body]["properties"]
    for name in set(hints) - {"moderation", "text", "reasoning", "reasoning_effort"}:
        assert fields[name]["description"].startswith("Without effect"), name


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_usage_says_that_nothing_came_from_a_cache(post: Any, path: str) -> None:
    """Load generators look for it."""
    given = {"/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "x"}}.get(path, {"input": "x"})
    _, body = await post(path, **given)
    details = "input_tokens_details" if "input" in given else "prompt_tokens_details"
    assert body["usage"][details] == {"cached_tokens": 0}
