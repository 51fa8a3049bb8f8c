"""The base of policy parts, and what an editor makes of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from adaptspec.control.language.schema import EditorSchema, Part, kebab, suggestion
from adaptspec.control.language.spec import schema


class Example(Part):
    window_rounds: int = 3
    share: float = 0.5


def test_keys_are_kebab_case() -> None:
    assert kebab("window_rounds") == "window-rounds"
    assert Example.model_validate({"window-rounds": 4}).window_rounds == 4


@pytest.mark.parametrize("value", ["4", True, 4.0])
def test_values_are_never_guessed(value: object) -> None:
    with pytest.raises(ValidationError):
        Example.model_validate({"window-rounds": value})


@pytest.mark.parametrize("data", [{"window_rounds": 4}, {"share": float("nan")}, {"share": float("inf")}])
def test_nothing_unknown_and_nothing_endless(data: object) -> None:
    with pytest.raises(ValidationError):
        Example.model_validate(data)


def test_suggestions_name_the_nearest() -> None:
    assert suggestion("window_round", ["window-rounds"]) == " (did you mean 'window-rounds'?)"
    assert suggestion("zzz", ["window-rounds"]) == ""


def test_keys_are_not_repeated_as_titles() -> None:
    """They would stand in every completion an editor shows."""
    properties = Example.model_json_schema(schema_generator=EditorSchema)["properties"]
    assert all("title" not in field for field in properties.values())


def described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, part in schema["$defs"].items():
        yield name, part
        for key, field in part.get("properties", {}).items():
            yield f"{name}.{key}", field


def test_editors_have_something_to_show_for_every_part_and_key() -> None:
    """Completion without an explanation sends people to the source."""
    # A key with one value only says it all: it names the variant, which is described.
    silent = [path for path, part in described(schema(), "") if not part.get("description") and "const" not in part]
    assert silent == []
