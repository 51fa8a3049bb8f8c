"""The limits as configuration, and what a body may hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import ConfigError, RequestError
from adaptspec.server.api.wire import check_depth, check_structure
from adaptspec.server.limits import ServerLimits


def test_limits_are_set_by_name() -> None:
    """As in --limit: dashes or underscores, whole numbers where the default is one."""
    changed = ServerLimits().changed(["body-seconds=2.5", "stop_strings=4", "body_seconds=3"])
    assert (changed.body_seconds, changed.stop_strings) == (3.0, 4)
    assert changed.connections == ServerLimits().connections


@pytest.mark.parametrize("setting", ["nope=1", "prompts", "prompts=", "prompts=1.5", "prompts=0", "body_seconds=nan",
                                     "body_seconds=inf", "body_seconds=-1", "=3"])  # fmt: skip
def test_a_limit_that_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="limit"):
        ServerLimits().changed([setting])


nested = st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(nested, st.integers(1, 6))
def test_depth_is_the_longest_chain_of_containers(value: Any, most: int) -> None:
    """The cheap look at the bytes never lets deeper bodies through than walking them would."""

    def depth(part: Any) -> int:
        if isinstance(part, dict):
            part = list(part.values())
        return 1 + max(map(depth, part), default=0) if isinstance(part, list) else 0

    document = {"x": value}
    raw = json.dumps(document).encode()
    if depth(document) > most:
        with pytest.raises(RequestError, match="nests"):
            check_depth(raw, document, most)
    else:
        check_depth(raw, document, most)


texts = st.text(alphabet='"\\\\,:[]{}a\u00e9')
trees = st.recursive(
    st.none() | st.integers(-5, 5) | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)


@given(trees, st.booleans())
def test_what_a_body_is_made_of_is_counted_without_reading_it(value: Any, ascii_only: bool) -> None:
    """Names, objects and lists, and commas; none of them within strings, whatever is escaped there."""

    def parts(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + len(part) + sum(map(parts, part.values()))
        return 1 + sum(map(parts, part)) if isinstance(part, list) else 0

    def items(part: Any) -> int:
        inner = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
        return max(len(inner) - 1, 0) + sum(map(items, inner))

    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    for count, of in ((parts(value), "json_parts"), (items(value), "json_items")):
        check_structure(raw, replace(ServerLimits(), **{of: max(count, 1)}))
        if count > 1:
            with pytest.raises(RequestError, match=f"more than {count - 1} (objects|entries)"):
                check_structure(raw, replace(ServerLimits(), **{of: count - 1}))


def test_strings_may_hold_whatever_they_like_across_the_pieces_that_are_looked_at() -> None:
    """Megabytes of a text full of commas and braces are one string."""
    limits = ServerLimits(json_parts=8, json_items=8)
    for text in ('{"a": [1, 2]}, ' * 50_000, '\\", ' * 100_000, "\\" * 199_999 + '"' + ", " * 100_000):
        check_structure(json.dumps({"prompt": text, "n": 1}).encode(), limits)
    with pytest.raises(RequestError, match="more than 8 entries"):
        check_structure(json.dumps({"prompt": "x, " * 100_000, "stop": [1] * 10}).encode(), limits)
