"""What was dropped from a request is listed in its answer, logged once, and counted; all of it within bounds."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from adaptspec.server.api.fields import MAX_LOGGED, WARNING_KINDS, WarningLog, Warnings, loggable_key

PLAIN = {"role": "user", "content": "x"}
ODD = {**PLAIN, "mood": "good"}
SCHEMA = {"type": "object", "not": {"required": ["a"]}, "uniqueItems": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [PLAIN], "max_tokens": 3},
    "/v1/responses": {"input": [PLAIN], "max_output_tokens": 3},
    "/tokenize": {"messages": [PLAIN]},
}
_MOOD = "messages[].mood is not used by this server and was dropped"
# What of each body has no effect, the warnings of it, and how many of each kind these are.
ODDITIES: dict[str, tuple[dict[str, Any], list[str], dict[str, int]]] = {
    "/v1/completions": (
        {"guided_json": SCHEMA},
        [
            "guided_json.not is not enforced: no grammar can hold it",
            "guided_json.uniqueItems is not enforced: no grammar can hold it",
        ],
        {"schema": 2},
    ),
    "/v1/chat/completions": (
        {"messages": [ODD, ODD], "guided_json": {"type": "object", "not": {"required": ["a"]}}},
        [_MOOD, "guided_json.not is not enforced: no grammar can hold it"],
        {"field": 2, "schema": 1},
    ),
    "/v1/responses": (
        {"input": [{"type": "reasoning", "summary": []}, {**PLAIN, "mood": "good"}]},
        [
            "input[] of the type reasoning without text cannot be used here and were dropped",
            "input[].mood is not used by this server and was dropped",
        ],
        {"item": 1, "field": 1},
    ),
    "/tokenize": (
        {"messages": [ODD, {**ODD, "name_tag": 1}]},
        [_MOOD, "messages[].name_tag is not used by this server and was dropped"],
        {"field": 3},
    ),
}


async def warned(post: Any, path: str) -> list[str]:
    odd, _, _ = ODDITIES[path]
    status, answer = await post(path, **BODIES[path] | odd)
    assert status == 200
    warnings: list[str] = answer["warnings"]
    return warnings


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_the_last_chunk_of_a_stream_lists_them(client: Any, path: str, usage: bool) -> None:
    odd, texts, _ = ODDITIES[path]
    options = {"stream_options": {"include_usage": True}} if usage and path != "/v1/responses" else {}
    async with client.post(path, json=BODIES[path] | odd | {"stream": True} | options) as response:
        lines = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    found = [event.get("response", event).get("warnings") for event in events]
    assert found == [None] * (len(found) - 1) + [texts]


@pytest.mark.parametrize("path", BODIES)
async def test_they_are_counted_by_kind_and_logged_once(
    client: Any, post: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, texts, counts = ODDITIES[path]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await warned(post, path)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == texts
    async with client.get("/metrics") as response:
        text = await response.text()
    counted = {kind: f'adaptspec_request_warnings_total{{kind="{kind}"}} ' for kind in WARNING_KINDS}
    assert {kind: float(text.split(line)[1].split()[0]) for kind, line in counted.items()} == {
        kind: 2 * counts.get(kind, 0) for kind in WARNING_KINDS
    }


@pytest.mark.parametrize(
    ("requests", "of_each"), [(MAX_LOGGED - 1, 1), (MAX_LOGGED, 1), (MAX_LOGGED + 10, 1), (100, 16)]
)
def test_the_log_is_bounded_and_says_once_that_it_is_full(
    caplog: pytest.LogCaptureFixture, requests: int, of_each: int
) -> None:
    """What comes later is still counted."""
    counted: list[int] = []
    log = WarningLog(lambda _, number: counted.append(number))
    for number in [*range(requests), 0, requests]:
        warnings = Warnings()
        for which in range(of_each):
            warnings.add("field", f"{number} {which}")
        log.report(warnings)
    sent = (requests + 1) * of_each
    full = [record for record in caplog.records if "further ones are only counted" in record.getMessage()]
    assert len(full) == (sent >= MAX_LOGGED)
    assert len(caplog.records) == min(sent, MAX_LOGGED) + len(full)
    assert sum(counted) == (requests + 2) * of_each


@pytest.mark.parametrize("key", ["a\nb", "x" * 61, "", "sk-1 secret", "\x1b[31m", "größe"])
def test_keys_that_are_no_names_are_not_quoted(key: str) -> None:
    """A client's bytes do not reach the log."""
    assert loggable_key(key) == f"<{len(key)} characters>"
    assert loggable_key("cache_control") == "cache_control"
