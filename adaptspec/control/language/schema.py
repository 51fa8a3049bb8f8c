"""The base of every part of a policy file: kebab-case keys, frozen, nothing unknown; and its JSON Schema."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo
from pydantic.json_schema import GenerateJsonSchema

from adaptspec.control.language.yaml_source import Source
from adaptspec.errors import PolicyError


def kebab(name: str) -> str:
    """A field's name as written in policy files."""
    return name.replace("_", "-")


def suggestion(word: str, known: list[str]) -> str:
    """` (did you mean ...?)`, or nothing if no known word is near."""
    near = difflib.get_close_matches(word[:80].lower().replace("_", "-"), known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Part(BaseModel):
    """A mapping of a policy file. An unknown key is an error."""

    # Strict: text is never read as a number, nor true as 1.
    model_config = ConfigDict(alias_generator=kebab, frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Uses:
    """The context that a policy is validated in: how policies that it names are found, where its values
    stand, and those policies that were found.
    """

    find: Callable[[str], Any]
    source: Source | None = None
    found: dict[str, Any] = field(default_factory=dict)


def _found(name: str, info: ValidationInfo) -> str:
    uses = info.context
    if isinstance(uses, Uses):
        try:
            uses.found[name] = uses.find(name)
        except PolicyError as error:
            raise ValueError("; ".join(str(error).splitlines())) from error
    return name


PolicyName = Annotated[str, AfterValidator(_found)]


class EditorSchema(GenerateJsonSchema):
    """A JSON Schema for people who write: descriptions and defaults, without titles that repeat the keys."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - the base's signature
        return False

    def get_title_from_name(self, name: str) -> str:
        return name
