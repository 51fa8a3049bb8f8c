"""The base of every part of a policy file: kebab-case keys, frozen, nothing unknown; and its JSON Schema."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

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


# Words for true and false where a mapping may be switched: text in YAML 1.2, and booleans in YAML 1.1.
_SWITCHES = {"on": True, "off": False}


@dataclass(frozen=True)
class Short:
    """Annotates a mapping of a policy file that one word may stand for, here and in the JSON Schema.

    With a `key`, a word is that key's value: `choose: goodput` is `choose: {algorithm: goodput}`. Without, `true` or
    `on` is a mapping that leaves everything at its default, and `false` or `off` is null, where it may be null.
    """

    key: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        words: dict[object, object] = {True: {}} | ({False: None} if NoneType in get_args(source) else {})

        def spelled_out(value: object) -> object:
            if self.key is not None:
                return {self.key: value} if isinstance(value, str) else value
            switch = _SWITCHES.get(value, value) if isinstance(value, str) else value
            return words.get(switch, value) if isinstance(switch, bool) else value

        return core_schema.no_info_before_validator_function(spelled_out, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        if self.key is not None:  # the words of variants that need no other key
            variants = {word: {"$ref": ref} for word, ref in written["discriminator"]["mapping"].items()}
            needed = {word: handler.resolve_ref_schema(ref).get("required", []) for word, ref in variants.items()}
            words = [word for word, keys in needed.items() if {self.key}.issuperset(keys)]
            return {**written, "oneOf": [*written["oneOf"], {"enum": words}]}
        if "anyOf" in written:
            return {**written, "anyOf": [*written["anyOf"], {"enum": [True, False, *_SWITCHES]}]}
        return {"anyOf": [written, {"enum": [True, "on"]}]}


@dataclass(frozen=True)
class Uses:
    """The context that a policy is validated in: how policies that it names are found, the text that it is read from,
    and those policies that were found.
    """

    find: Callable[[str], Any]
    source: Source
    found: dict[str, Any] = field(default_factory=dict)

    def is_itself(self, name: str) -> bool:
        """Whether a policy that it names is the policy itself: by its name, or by its file."""
        data, path = self.source.data, Path(self.source.path)
        metadata = data.get("metadata") if isinstance(data, dict) else None
        own = metadata.get("name") if isinstance(metadata, dict) else None
        # Without a look at the disk: the text may be a client's.
        return name == own or os.path.abspath(path.parent / name) == os.path.abspath(path)


def _found(name: str, info: ValidationInfo) -> str:
    uses = info.context
    if isinstance(uses, Uses):
        if uses.is_itself(name):
            raise ValueError("a policy cannot use itself; name another policy")
        try:
            uses.found[name] = uses.find(name)
        except PolicyError as error:
            raise ValueError("; ".join(str(error).splitlines())) from error
    return name


PolicyName = Annotated[str, AfterValidator(_found)]


def without_default(schema: dict[str, Any]) -> None:
    """`json_schema_extra` of a field whose default depends on others: its description says how."""
    schema.pop("default")


class EditorSchema(GenerateJsonSchema):
    """A JSON Schema for people who write: descriptions and defaults, without titles that repeat the keys."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - the base's signature
        return False

    def get_title_from_name(self, name: str) -> str:
        return name
