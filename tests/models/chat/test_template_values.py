"""Variables of templates that clients send: useful ones pass, those of the server and huge ones do not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from adaptspec.models.chat.template_values import MAX_CHARACTERS, MAX_KEYS, MAX_VALUES, check_values


def test_no_option_of_the_renderer_can_be_set() -> None:
    """A new one of a later transformers is refused, too."""
    for name in inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters:
        if name != "documents":
            with pytest.raises(ValueError, match="set by the server"):
                check_values({name: None})


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({f"k{i}": 1 for i in range(MAX_KEYS + 1)}, f"has {MAX_KEYS + 1} keys"),
        ({"__class__": 1}, "must be names"),
        ({"a": [0] * MAX_VALUES}, "more than 256 values"),
        ({"a": "x" * (MAX_CHARACTERS + 1)}, "characters; give shorter ones"),
        ({"a": {"x" * (MAX_CHARACTERS + 1): 1}}, "characters; give shorter ones"),
        ({"a": nested(4)}, "nests more than 4"),
        ({"a": 2**63}, "64 bits"),
        ({"a": object()}, "must be strings, numbers"),
    ],
)
def test_too_much_is_refused(values: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_values(values)
