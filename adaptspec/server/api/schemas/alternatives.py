"""Whether the alternatives of `oneOf` exclude each other, so that it means the same as `anyOf`."""

from __future__ import annotations

from typing import Any


def are_exclusive(parts: list[Any]) -> bool:
    """Whether at most one of some schemas can hold: they differ in their types or constants, or in those of a key."""
    if not all(isinstance(one, dict) for one in parts):
        return False
    kinds = ["number" if one.get("type") == "integer" else one.get("type") for one in parts]
    if all(isinstance(kind, str) for kind in kinds) and len(set(kinds)) == len(kinds):
        return True
    if _are_distinct([_constants(one) for one in parts]):
        return True
    required = [one["required"] if isinstance(one.get("required"), list) else [] for one in parts]
    described = [one["properties"] if isinstance(one.get("properties"), dict) else {} for one in parts]
    shared = (
        [key for key in required[0] if isinstance(key, str) and all(key in names for names in required)]
        if required
        else []
    )
    return any(_are_distinct([_constants(one.get(key)) for one in described]) for key in shared)


def _constants(part: object) -> list[str]:
    """The values that a schema allows, if it is text of which it lists every one; else none."""
    if not isinstance(part, dict):
        return []
    values = [part["const"]] if "const" in part else part.get("enum")
    return values if isinstance(values, list) and all(isinstance(one, str) for one in values) else []


def _are_distinct(choices: list[list[str]]) -> bool:
    """Whether no value is in two lists, and no list is empty."""
    return all(choices) and len({one for choice in choices for one in choice}) == sum(len(set(one)) for one in choices)
