"""The base of every part of a policy file: kebab-case keys, frozen, nothing unknown."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


def kebab(name: str) -> str:
    """A field's name as written in policy files."""
    return name.replace("_", "-")


def suggestion(word: str, known: list[str]) -> str:
    """` (did you mean ...?)`, or nothing if no known word is near."""
    near = difflib.get_close_matches(word.lower().replace("_", "-"), known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Part(BaseModel):
    """A mapping of a policy file. An unknown key is an error that names the nearest known one."""

    # Strict: text is never read as a number, nor true as 1.
    model_config = ConfigDict(alias_generator=kebab, frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key{near}; there are: {known}",
                        {"key": key, "near": suggestion(str(key), known), "known": ", ".join(known)},
                    )
        return data
