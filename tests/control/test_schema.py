"""The base of policy parts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adaptspec.control.schema import Part, kebab, suggestion


class Example(Part):
    window_rounds: int = 3


def test_keys_are_kebab_case() -> None:
    assert kebab("window_rounds") == "window-rounds"
    assert Example.model_validate({"window-rounds": 4}).window_rounds == 4


@pytest.mark.parametrize("value", ["4", True, 4.0])
def test_values_are_never_guessed(value: object) -> None:
    with pytest.raises(ValidationError):
        Example.model_validate({"window-rounds": value})


def test_unknown_keys_name_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean 'window-rounds'"):
        Example.model_validate({"window_rounds": 4})
    assert suggestion("zzz", ["window-rounds"]) == ""
