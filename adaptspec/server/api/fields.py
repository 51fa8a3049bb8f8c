"""What models of request bodies are made of: strict objects, types of fields, and warnings about what was dropped.

A field of a request is used, ignored (`Ignored`), or accepted only at values that change nothing (`Only`). Unknown
fields are refused. Unknown keys within messages, tools and calls are dropped with a warning: other programs wrote them,
and they are no options. A null is the same as no field, also for unknown names.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, to_json

from adaptspec.server import limits

T = TypeVar("T")
Json = dict[str, Any]

# field: an unknown key within a message, part, tool or call, or a known field without effect here. item, tool: one that
# this server cannot use. schema: a word of a JSON schema. template: what the chat template cannot render.
WarningKind = Literal["field", "item", "tool", "schema", "template"]
WARNING_KINDS: tuple[WarningKind, ...] = get_args(WarningKind)
MAX_WARNINGS = 16  # distinct texts of one request; the rest is counted
MAX_LOGGED = 1024  # distinct texts in the log of one process
_WARNING_CHARACTERS = 300
_PLAIN_NAME = re.compile(r"[\w.$:/+-]{1,60}", re.ASCII)
_logger = logging.getLogger(__name__)

QUOTED_CHARACTERS = 60  # of a client's own words in a message
NO_EFFECT = "Without effect: it cannot change the text."
NEUTRAL_VALUES = "x-neutral-values"  # in a schema: fields that change nothing, and the values that are accepted
NOT_STRINGS = "not_strings"  # the type of a validation error: a value is no list where strings are wanted
NOT_TEXT = "not_text"  # the type of a validation error: a part of a message is an image, a sound or a file
TOKEN_ID = "token-id"  # the format of numbers in a schema whose maximum the model's vocabulary gives


def quoted(text: str) -> str:
    """A client's own words, quoted and cut, for use in a message."""
    return f"`{text[:QUOTED_CHARACTERS]}...`" if len(text) > QUOTED_CHARACTERS else f"`{text}`"


def loggable_key(key: str) -> str:
    """A client's key as warnings and the log may quote it: keys that are no plain names are described by length."""
    return key if _PLAIN_NAME.fullmatch(key) else f"<{len(key)} characters>"


class Warnings:
    """What was dropped from one request, or has no effect: distinct texts in order, and how often each kind came."""

    def __init__(self) -> None:
        self.counts: Counter[WarningKind] = Counter()
        self._texts: dict[str, None] = {}
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, kind: WarningKind, text: str) -> None:
        """Record one. `text` is one sentence that names the field; keys of clients go through `loggable_key`."""
        self.counts[kind] += 1
        text = text[:_WARNING_CHARACTERS]
        if len(self._texts) < MAX_WARNINGS:
            self._texts[text] = None
        elif text not in self._texts:
            self._left_out += 1

    @property
    def texts(self) -> list[str]:
        """As the log has them."""
        return list(self._texts)

    def written(self) -> dict[str, list[str]]:
        """The field `warnings` of an answer; nothing if there are none."""
        more = [f"{self._left_out} more"] if self._left_out else []
        return {"warnings": [*self._texts, *more]} if self._texts else {}


class WarningLog:
    """Logs each distinct text once per process, up to `MAX_LOGGED` texts, and counts warnings by kind.

    The log says once that it is full: clients choose keys, so one client can fill it.
    """

    def __init__(self, count: Callable[[WarningKind, int], None] = lambda *_: None) -> None:
        """`count` is called with a kind and how many there were."""
        self._count = count
        for kind in WARNING_KINDS:
            count(kind, 0)  # so that rates see the first one
        self._logged: set[str] = set()

    def report(self, warnings: Warnings) -> None:
        """Take the warnings of a request that was accepted."""
        for kind, number in warnings.counts.items():
            self._count(kind, number)
        for text in warnings.texts:
            if text in self._logged or len(self._logged) >= MAX_LOGGED:
                continue
            self._logged.add(text)
            _logger.warning("A request was changed: %s", text)
            if len(self._logged) == MAX_LOGGED:
                _logger.warning(
                    "%d kinds of changed requests were logged; further ones are only counted, in the metric "
                    "adaptspec_request_warnings_total, and named in the answers",
                    MAX_LOGGED,
                )


def warnings_of(info: ValidationInfo) -> Warnings:
    """The warnings of the request that is being validated; validators add to them."""
    return info.context if isinstance(info.context, Warnings) else Warnings()


class Only:
    """A field that changes nothing at these values or null, and is refused at others. `Only(...)` takes any value.

    `remedy` is what a refusal says to do instead. The field reads as None.
    """

    def __init__(self, *values: object, remedy: str | None = None) -> None:
        self.values = values  # no two are equal: `typing` would take Only(0) for Only(False)
        self.remedy = remedy

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        return {} if ... in self.values else {"enum": [*self.values, None]}

    def _check(self, given: object) -> None:
        if given is not None and not any(_same_in_json(given, value) for value in self.values):
            wanted = " or ".join(to_json(value).decode() for value in self.values) or "null"
            remedy = self.remedy or f"leave it out (or send {wanted})"
            raise PydanticCustomError("not_supported", "is not supported by this server; {remedy}", {"remedy": remedy})


def _same_in_json(given: object, value: object) -> bool:
    """Whether two values are one in JSON: 1 is 1.0, and true is no number."""
    return value is ... or (given == value and isinstance(given, bool) is isinstance(value, bool))


@dataclass(frozen=True)
class AtMost:
    """Bounds a list or an object by its number of entries, before any of them is read."""

    entries: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        written = handler(schema)
        written["maxProperties" if written.get("type") == "object" else "maxItems"] = self.entries
        return written

    def _check(self, value: object) -> object:
        if isinstance(value, (list, dict)) and len(value) > self.entries:
            counts = {"count": len(value), "most": self.entries}
            raise PydanticCustomError("too_many", "has {count} entries; send at most {most}", counts)
        return value


def _whole(value: object) -> object:
    """A whole number that was written with a point, as 4.0, is an integer: JSON has one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Ignored = Annotated[T | None, Field(description=NO_EFFECT)]
Whole = BeforeValidator(_whole)
Name = Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARACTERS)]
Count = Annotated[int, Whole, Field(ge=0, le=2**63 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": TOKEN_ID})]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


class WireModel(BaseModel):
    """A JSON object that is taken literally: no unknown keys but nulls, no "5" for 5, no NaN.

    Rules between its fields are validators. The JSON schema describes the fields alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    other_names: ClassVar[Mapping[str, str]] = {}  # names of a field in other APIs, and its name here
    known: ClassVar[frozenset[str]] = frozenset()  # names of all fields on the wire
    useful: ClassVar[frozenset[str]] = frozenset()  # names of those fields that can have an effect

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        named = {field.alias or name: field for name, field in cls.model_fields.items()}
        cls.known = frozenset(named)
        neutral = {name for name, field in named.items() if any(isinstance(one, Only) for one in field.metadata)}
        cls.useful = cls.known - neutral

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ARG003 (LenientModel needs it)
        """Leave out unknown nulls, and all unknown fields but the first: listing thousands of them takes seconds."""
        if not isinstance(value, dict) or value.keys() <= cls.known:
            return value
        first = next((name for name, given in value.items() if given is not None and name not in cls.known), None)
        return {name: given for name, given in value.items() if name in cls.known or name == first}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Its JSON schema. Fields without any effect stand in an extension, as they are many.

        Programs that make requests of a schema, such as schemathesis, give up on that many properties.
        """
        written = handler.resolve_ref_schema(handler(schema))
        properties = written.get("properties", {})
        neutral = {name: properties.pop(name).get("enum", "any") for name in sorted(cls.known - cls.useful)}
        if neutral:
            written[NEUTRAL_VALUES] = neutral
        if written.get("additionalProperties") is False:
            written["additionalProperties"] = {"type": "null"}
        return written


class LenientModel(WireModel):
    """A JSON object within a history or a list of tools, which other programs write: unknown keys are dropped.

    A warning names each key and `where` it stood, such as `messages[]`. Keys in `idle`, and those without a value, are
    dropped without one: no model has a use for them. A null is the same as no key.
    """

    model_config = ConfigDict(extra="ignore")
    where: ClassVar[str] = ""
    idle: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        if not value.keys() <= cls.known:
            drop_keys(value, cls.known | cls.idle, cls.where, info)
        return {name: given for name, given in value.items() if given is not None and name in cls.known}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Its JSON schema, in which optional fields may be null."""
        written = super().__get_pydantic_json_schema__(schema, handler)
        fields, needed = written.get("properties", {}), written.get("required", ())
        for name in fields.keys() - set(needed):
            if {"type": "null"} not in fields[name].get("anyOf", ()):
                fields[name] = {"anyOf": [fields[name], {"type": "null"}]}
        return written


def drop_keys(value: Mapping[str, Any], known: Set[str], where: str, info: ValidationInfo) -> None:
    """Warn of the keys of an object that are dropped: all that have a value and are not `known`."""
    warnings = warnings_of(info)
    for name, given in value.items():
        if given and name not in known:
            warnings.add("field", f"{where}.{loggable_key(name)} is not used by this server and was dropped")


class RequestBody(WireModel):
    """The whole body of a request. Validators add to `warnings`, which they get as the validation context."""

    _warnings: Warnings = PrivateAttr(default_factory=Warnings)

    @property
    def warnings(self) -> Warnings:
        """What was dropped from this body; code that drops more of it adds to them."""
        return self._warnings

    def model_post_init(self, context: Any, /) -> None:
        if isinstance(context, Warnings):
            self._warnings = context
