"""Which tools may be called: every spelling of a choice, in chats and in responses."""

from __future__ import annotations

from typing import Any

import pytest

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TALK: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    RESPONSES: {"input": "x", "max_output_tokens": 3},
}
TOOLS = [{"type": "function", "name": name} for name in ("first", "second", "third")]
NESTED = [{"type": "function", "function": {"name": name}} for name in ("first", "third")]
FLAT = [{"type": "function", "name": name} for name in ("first", "third")]
ONE = {"type": "function", "function": {"name": "second"}}


async def _grammar(post: Any, engine: Any, path: str, choice: Any, **more: Any) -> tuple[str | None, list[str]]:
    """The grammar of an answer, and the warnings."""
    body = {"tools": TOOLS} | more
    status, answer = await post(path, **TALK[path], **body, tool_choice=choice)
    assert status == 200, answer
    grammar = engine.seen[-1].sampling.grammar
    return None if grammar is None else grammar.text, answer.get("warnings", [])


@pytest.mark.parametrize("path", TALK)
@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ("second", ONE),
        ({"type": "function", "name": "second"}, ONE),
        ({"name": "second"}, ONE),
        ({"type": None, "function": {"name": "second"}}, ONE),
        ({"type": "tool", "name": "second"}, ONE),
        ("any", "required"),
        ({"type": "any"}, "required"),
        ({"type": "required"}, "required"),
        ({"type": "auto"}, "auto"),
        (None, "auto"),
        ({"type": "none"}, "none"),
    ],
)
async def test_a_choice_may_be_spelled_as_elsewhere(post: Any, engine: Any, path: str, choice: Any, same: Any) -> None:
    assert await _grammar(post, engine, path, choice) == await _grammar(post, engine, path, same)


@pytest.mark.parametrize("path", TALK)
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(
    "shape",
    [
        lambda mode: {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": NESTED}},
        lambda mode: {"type": "allowed_tools", "mode": mode, "tools": FLAT},
        lambda mode: {"type": "allowed_tools", "mode": mode, "tools": ["first", "third"]},
        lambda mode: {"type": "allowed_tools", "mode": mode, "tools": [{"type": "mcp", "server_label": "s"}, *FLAT]},
    ],
)
async def test_allowed_tools_are_a_mode_over_some_of_them(
    post: Any, engine: Any, path: str, mode: str, shape: Any
) -> None:
    """The model is shown all of them, so that its prompt stays the same."""
    grammar, warnings = await _grammar(post, engine, path, shape(mode))
    prompt = engine.seen[-1].prompt
    only, _ = await _grammar(post, engine, path, mode, tools=[TOOLS[0], TOOLS[2]])
    assert grammar == only
    assert (await _grammar(post, engine, path, mode))[0] != only
    assert engine.seen[-1].prompt == prompt
    assert all("of the type mcp" in text for text in warnings)


@pytest.mark.parametrize("path", TALK)
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search_preview"},
        {"type": "custom", "custom": {"name": "patch"}},
        {"type": "custom", "name": "patch"},
        {"type": "mcp", "server_label": "s", "name": "first"},
        {"type": "x" * 999},
    ],
)
async def test_a_choice_of_what_is_dropped_is_free_and_named(post: Any, engine: Any, path: str, choice: Any) -> None:
    """Also where functions are left to be called."""
    grammar, (warning,) = await _grammar(post, engine, path, choice)
    assert grammar == (await _grammar(post, engine, path, "auto"))[0]
    assert warning.startswith("tool_choice of the type ")
    assert warning.endswith("became auto")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "second"},
        {"type": "allowed_tools", "mode": "auto", "tools": FLAT},
        "required",
    ],
)
async def test_a_response_says_the_choice_in_its_own_words(post: Any, choice: Any) -> None:
    _, answer = await post(RESPONSES, **TALK[RESPONSES], tools=TOOLS, tool_choice=choice)
    assert answer["tool_choice"] == choice
