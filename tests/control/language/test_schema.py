"""The base of policy parts, and what an editor makes of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adaptspec.control.language.spec import schema


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
