"""What was dropped from a request is listed in its answer, logged once, and counted; all of it within bounds."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.warnings import KINDS, MAX_LOGGED, MAX_WARNINGS, WarningLog, Warnings, name_of

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/responses": {"input": "x", "max_output_tokens": 3},
    "/tokenize": {"prompt": "x"},
}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body comes with two warnings."""

    def filled(warnings: Warnings) -> None:
        plain(warnings)
        warnings.add("field", "one")
        warnings.add("schema", "two")
        warnings.add("field", "one")

    plain = Warnings.__init__
    monkeypatch.setattr(Warnings, "__init__", filled)


@pytest.mark.parametrize("path", BODIES)
async def test_whole_answers_list_them(post: Any, warned: None, path: str) -> None:
    status, answer = await post(path, **BODIES[path])
    assert (status, answer["warnings"]) == (200, ["one", "two"])


@pytest.mark.parametrize("path", BODIES)
async def test_answers_without_any_have_no_such_field(post: Any, path: str) -> None:
    status, answer = await post(path, **BODIES[path])
    assert status == 200
    assert "warnings" not in answer


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_the_last_chunk_of_a_stream_lists_them(client: Any, warned: None, path: str, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage and path != "/v1/responses" else {}
    async with client.post(path, json=BODIES[path] | {"stream": True} | options) as response:
        lines = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    found = [event.get("response", event).get("warnings") for event in events]
    assert found == [None] * (len(found) - 1) + [["one", "two"]]


async def test_they_are_counted_by_kind_and_logged_once(
    client: Any, post: Any, warned: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await post("/tokenize", prompt="x")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["one", "two"]
    async with client.get("/metrics") as response:
        text = await response.text()
    counted = {kind: f'adaptspec_request_warnings_total{{kind="{kind}"}} ' for kind in KINDS}
    assert {kind: float(text.split(line)[1].split()[0]) for kind, line in counted.items()} == {
        kind: {"field": 4, "schema": 2}.get(kind, 0) for kind in KINDS
    }


def test_many_are_cut_and_counted() -> None:
    warnings = Warnings()
    for number in range(MAX_WARNINGS + 3):
        warnings.add("field", f"{number} " * 1000)
    written = warnings.written()["warnings"]
    assert len(written) == MAX_WARNINGS + 1
    assert written[-1] == "3 more"
    assert all(len(text) <= 300 for text in written)
    assert warnings.counts["field"] == MAX_WARNINGS + 3


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = WarningLog()
    for number in range(MAX_LOGGED + 10):
        warnings = Warnings()
        warnings.add("field", str(number))
        log.report(warnings)
    assert len(caplog.records) == MAX_LOGGED


@pytest.mark.parametrize("key", ["a\nb", "x" * 61, "", "sk-1 secret", "\x1b[31m", "größe"])
def test_keys_that_are_no_names_are_not_quoted(key: str) -> None:
    """A client's bytes do not reach the log."""
    assert name_of(key) == f"<{len(key)} characters>"
    assert name_of("cache_control") == "cache_control"


def test_a_body_made_of_another_shares_its_warnings() -> None:
    warnings = Warnings()
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}]}, context=warnings)
    assert body.warnings is warnings
