"""A wrong value is refused with its field and what to send instead, in words for people who write clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.responses import ResponsesBody
from adaptspec.server.api.tokenize import DetokenizeBody
from adaptspec.server.api.wire import RequestBody, parse

TALK = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f g"}}


def said(model: type[RequestBody], body: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as refused:
        parse(model, json.dumps(body).encode())
    return str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "x", "`temperature` must be a number"),
        ("temperature", -1, "`temperature` must be at least 0"),
        ("top_p", 0, "`top_p` must be above 0"),
        ("presence_penalty", 2.5, "`presence_penalty` must be at most 2"),
        ("n", 1.5, "`n` must be a whole number"),
        ("max_tokens", "5", "`max_tokens` must be a whole number"),
        ("stream", 1, "`stream` must be true or false"),
        ("user", ["x"], "`user` must be a string"),
        ("tools", {}, "`tools` must be a list"),
        ("tools", ["f"], "`tools[0]` must be a JSON object"),
        ("metadata", "x", "`metadata` must be a JSON object"),
        ("logit_bias", {"1": "x"}, "`logit_bias.1` must be a number"),
        ("guided_json", 5, "`guided_json` must be a JSON object or a string"),
        ("service_tier", "gold", "`service_tier` is `gold`; send one of 'auto', 'default', "),
        ("reasoning_effort", 5, "`reasoning_effort` is `5`; send one of 'none', 'minimal', "),
        ("tool_choice", 5, "`tool_choice` is `5`; send one of 'none', 'auto' or 'required'"),
        ("prediction", {"type": "x", "content": "y"}, "`prediction.type` is `x`; send 'content'"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_send(field: str, value: Any, message: str) -> None:
    assert said(ChatBody, {**TALK, field: value}).startswith(message)


def test_all_kinds_that_a_value_may_have_are_named() -> None:
    assert said(ResponsesBody, {"input": 5}) == "`input` must be a string or a list"
    assert said(DetokenizeBody, {"tokens": "x"}) == "`tokens` must be a list"


@pytest.mark.parametrize("value", ["x" * 10**6, 10**1000, -(10**1000), "\ud800", True, 1e300, [], {"a": 1}])
def test_what_a_client_sent_is_repeated_within_bounds(value: Any) -> None:
    assert len(said(ChatBody, {**TALK, "service_tier": value})) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(ChatBody.known - {"messages"})), JSON)
def test_no_value_is_refused_in_the_words_of_a_library(field: str, value: Any) -> None:
    refusals: list[RequestError] = []
    try:
        parse(ChatBody, json.dumps({**TALK, field: value}).encode())
    except RequestError as error:
        refusals.append(error)
    assert all("nput should" not in str(one) and one.param is not None for one in refusals)
