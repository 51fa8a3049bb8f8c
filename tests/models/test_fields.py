"""Numbers in config.json are what they should be, or the message names the field."""

from __future__ import annotations

import pytest

from adaptspec.errors import ModelError
from adaptspec.models.fields import count, number


def test_missing_and_null_fields_take_the_default() -> None:
    assert count({"a": None}, "a", 3) == 3
    assert number({}, "a", 0.5) == 0.5
    assert count({"a": 7}, "a", 3) == 7
    assert number({"a": 2}, "a") == 2.0


@pytest.mark.parametrize("value", [None, 0, -1, "3", True, 2.5])
def test_what_is_no_positive_integer_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"size is .*positive integer"):
        count({"size": value}, "size")


@pytest.mark.parametrize("value", [None, 0, -0.1, "x", False, float("nan"), [1]])
def test_what_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"eps is .*positive number"):
        number({"eps": value}, "eps")
