"""Bodies of requests as they come over the wire: strict JSON within bounds, and errors that name the field at fault.

A field of a request is either used, or accepted at values that change nothing, or refused. Unknown keys within
messages, tools and calls are dropped with a warning: other programs wrote them, and they are no options.
A null is as good as no field, also for names that this server does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, from_json, to_json

from adaptspec.errors import RequestError
from adaptspec.quantity import quantity
from adaptspec.server.api.neutral_values import ANY_VALUE, NEUTRAL
from adaptspec.server.api.value_faults import value_fault
from adaptspec.server.api.warnings import Warnings, name_of
from adaptspec.server.limits import ServerLimits


def _whole(value: object) -> object:
    """A whole number that was written with a point, as 4.0, is an integer: JSON has one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


Whole = BeforeValidator(_whole)
MAX_NAME = 256  # characters
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
TOKEN_ID = "token-id"  # the format of numbers whose maximum the model's vocabulary gives
TokenId = Annotated[
    int, Field(ge=0, le=2**31 - 1), WithJsonSchema({"type": "integer", "minimum": 0, "format": TOKEN_ID})
]

_NEAR = 0.72  # similarity of a name that may be meant, from 0 to 1
_LISTED = 10  # fields of an inner object that an error lists
_SHOWN = 60  # characters of a client's own words that are repeated in a message
NEUTRAL_VALUES = "x-neutral-values"  # in a schema: fields of other servers, and the values that are accepted
_AT_ONCE = 2**16  # bytes of a body that are looked at together
# Which limit bounds a number, and which one the length of a list or an object.
_NUMBERS = {
    "n": "choices",
    "best_of": "choices",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
    "max_tokens": "output_tokens",
    "max_completion_tokens": "output_tokens",
    "max_output_tokens": "output_tokens",
}
_SIZES = {
    "messages": "messages",
    "input": "messages",
    "tokens": "tokens",
    "stop": "stop_strings",
    "stop_token_ids": "stop_tokens",
    "logit_bias": "logit_bias",
}
METADATA = 16  # entries, as at OpenAI
NOT_TEXT = "not_text"  # the type of a validation error: a part of a message is an image, a sound or a file


class WireModel(BaseModel):
    """A JSON object that is taken literally: no unknown keys but nulls, no "5" for 5, no NaN.

    `no_ops` are fields that would change nothing at the listed values or null, and are refused at others, with the
    remedy in `remedies` where there is one. `together` is what no single field can say, as JSON schemas that all hold:
    validators of the body say it to clients.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    remedies: ClassVar[Mapping[str, str]] = {}
    other_names: ClassVar[Mapping[str, str]] = {}  # of other APIs: what they call a field, and what it is called here
    together: ClassVar[Sequence[Mapping[str, Any]]] = ()

    known: ClassVar[frozenset[str]] = frozenset()  # names of its fields on the wire

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.known = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ARG003 (LenientModel needs it)
        """Leave out unknown nulls, and all unknown fields but the first: listing thousands of them takes seconds."""
        if not isinstance(value, dict) or value.keys() <= cls.known:
            return value
        first = next((name for name, given in value.items() if given is not None and name not in cls.known), None)
        return {name: given for name, given in value.items() if name in cls.known or name == first}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Its JSON schema, no-ops included; those of other servers' APIs stand in an extension, as they are many.

        Programs that make requests of a schema, such as schemathesis, give up on that many properties.
        """
        written = handler.resolve_ref_schema(handler(schema))
        for name, allowed in cls.no_ops.items():
            values: list[object] = [*allowed, *(() if None in allowed else (None,))]
            place = NEUTRAL_VALUES if NEUTRAL.get(name) == allowed else "properties"
            written.setdefault(place, {})[name] = {} if allowed == ANY_VALUE else {"enum": values}
        if written.get("additionalProperties") is False:
            written["additionalProperties"] = {"type": "null"}
        if cls.together:
            written["allOf"] = [dict(schema) for schema in cls.together]
        return written


class LenientModel(WireModel):
    """A JSON object within a history or a list of tools, which other programs write: unknown keys are dropped.

    A warning names each key and `where` it stood, such as `messages[]`. Keys in `idle`, and those without a value, are
    dropped without one: no model has a use for them. A null is as good as no key.
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
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Its JSON schema, in which fields that may be left out may also be null."""
        written = super().__get_pydantic_json_schema__(schema, handler)
        fields, needed = written.get("properties", {}), written.get("required", ())
        for name in fields.keys() - set(needed):
            if {"type": "null"} not in fields[name].get("anyOf", ()):
                fields[name] = {"anyOf": [fields[name], {"type": "null"}]}
        return written


def drop_keys(value: Mapping[str, Any], known: Set[str], where: str, info: ValidationInfo) -> None:
    """Warn of the keys of an object that are dropped: all that have a value and are not `known`."""
    if isinstance(info.context, Warnings):
        for name, given in value.items():
            if given and name not in known:
                info.context.add("field", f"{where}.{name_of(name)} is not used by this server and was dropped")


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


Body = TypeVar("Body", bound=RequestBody)


def parse(model: type[Body], raw: bytes, limits: ServerLimits = ServerLimits()) -> Body:
    """Read a body. Raises RequestError that names the field at fault."""
    check_structure(raw, limits)
    try:
        document = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object, such as {...}")
    check_depth(raw, document, limits.json_depth)
    check_bounds(document, limits)
    document = without_no_ops(model, document)
    try:
        return model.model_validate(document, context=Warnings())
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        # Where several kinds are possible, the one that fits furthest is what was meant; a wrong word or size is nearer
        # than another kind of value.
        same = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
        near = ("literal_error", "too_short", "too_long")
        detail = max(same, key=lambda one: (len(_place(document, one)), one["type"] in near))
        place = _place(document, detail)
        alike = [one for one in same if one is not detail and _place(document, one) == place]
        fault = value_fault([detail, *alike], _quoted(document, place))
        if fault is not None:
            raise RequestError(f"{shown(_path(place))} {fault}", _path(place)[:_SHOWN]) from error
        raise _refusal(model, detail, place) from error


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error in the words of another body, which has other names for fields."""
    field = None if error.param is None else error.param.split("[")[0]
    if field is None or names.get(field, field) == field:
        return error
    told = type(error)(str(error).replace(field, names[field]), names[field])
    told.__cause__ = error
    return told


def shown(text: str) -> str:
    """A client's own words, quoted and cut, for use in a message."""
    return f"`{text[:_SHOWN]}...`" if len(text) > _SHOWN else f"`{text}`"


def without_no_ops(model: type[WireModel], document: dict[str, Any]) -> dict[str, Any]:
    """An object without the fields that change nothing. Raises RequestError at one that would change something."""
    for name, allowed in model.no_ops.items():
        given = document.get(name)
        if given is not None and not any(_same(given, value) for value in allowed):
            wanted = " or ".join(to_json(value).decode() for value in allowed if value is not None) or "null"
            remedy = model.remedies.get(name, f"leave it out (or send {wanted})")
            raise RequestError(f"{name} is not supported by this server; {remedy}", name)
    return {name: value for name, value in document.items() if name not in model.no_ops}


def _same(given: object, value: object) -> bool:
    """Whether two values are one in JSON: 1 is 1.0, and true is no number."""
    return value is ... or (given == value and isinstance(given, bool) is isinstance(value, bool))


def check_structure(raw: bytes, limits: ServerLimits) -> None:
    """Raise RequestError for a body of so many parts that reading it would hold up everybody.

    It is told from the bytes, before any JSON is read; of a body that is none, anything may be said.
    """
    if len(raw) <= min(limits.json_parts, limits.json_items):
        return  # cheap, and true of nearly every request: each of them takes a byte
    parts = items = 0
    for outside in _outside_strings(raw):
        parts += sum(np.count_nonzero(outside == mark) for mark in b"{[:")
        items += np.count_nonzero(outside == ord(","))
        if parts > limits.json_parts:
            raise RequestError(
                f"the body has more than {limits.json_parts} objects, lists and names of fields; send fewer of them in "
                "one request"
            )
        if items > limits.json_items:
            raise RequestError(
                f"the lists of the body have more than {limits.json_items} entries; send fewer in one request, such as "
                "texts instead of token ids"
            )


def _outside_strings(raw: bytes) -> Iterator[Any]:
    """What is no string of a body, as arrays of bytes, piece by piece; strings are zeros."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    plain = np.frombuffer(raw, np.uint8)
    inside = np.uint8(0)
    for start in range(0, len(plain), _AT_ONCE):
        piece = plain[start : start + _AT_ONCE]
        within = np.bitwise_xor.accumulate((piece == ord('"')).view(np.uint8)) ^ inside
        yield piece * (1 - within)
        inside = within[-1]


def check_depth(raw: bytes, document: object, most: int) -> None:
    """Raise RequestError if objects and lists lie deeper within each other than `most`."""
    if raw.count(b"[") + raw.count(b"{") <= most:
        return  # cheap, and true of nearly every request: only lists of long lists are walked through
    level: list[Any] = [document]
    for _ in range(most):
        inside = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in inside if isinstance(inner, (dict, list))]
        if not level:
            return
    raise RequestError(f"the body nests more than {most} objects and lists; send it flatter")


def check_bounds(document: Mapping[str, Any], limits: ServerLimits) -> None:
    """Raise RequestError, with the field at fault, for more than the limits allow.

    Fields are looked at as they came: what else is wrong with them is said by whoever reads them.
    """
    for name, limit in _NUMBERS.items():
        value, most = document.get(name), getattr(limits, limit)
        if isinstance(value, (int, float)) and value > most:
            raise RequestError(f"{name} is above what this server allows; ask for at most {most}", name)
    sizes = {name: getattr(limits, limit) for name, limit in _SIZES.items()} | {"metadata": METADATA}
    for name, most in sizes.items():
        value = document.get(name)
        if isinstance(value, (list, dict)) and len(value) > most:
            raise RequestError(f"{name} has {quantity(len(value), 'entry', 'entries')}; send at most {most}", name)
    prompt, stop = document.get("prompt"), document.get("stop")
    if isinstance(prompt, list) and len(prompt) > limits.prompts and not isinstance(prompt[0], int):
        given = quantity(len(prompt), "prompt")
        raise RequestError(f"prompt has {given}; send at most {limits.prompts} in one request", "prompt")
    stops, most = stop if isinstance(stop, list) else [stop], limits.stop_characters
    if any(isinstance(text, str) and len(text) > most for text in stops):
        raise RequestError(f"stop has a string of more than {quantity(most, 'character')}; send a shorter one", "stop")


def _refusal(model: type[WireModel], detail: ErrorDetails, place: tuple[int | str, ...]) -> RequestError:
    path = _path(place)
    if detail["type"] == "extra_forbidden":
        return RequestError(
            f"{shown(path)} is not a field this server supports; leave it out{_hint(model, place)}", path[:_SHOWN]
        )
    if detail["type"] == "missing":
        return RequestError(f"{path} is missing; add it", path)
    if detail["type"] == NOT_TEXT:
        remedy = "leave it out, or write its content as text"
        return RequestError(f"this server reads text only; {shown(path)} {detail['msg']}: {remedy}", path[:_SHOWN])
    return RequestError(f"{shown(path)} {_reason(detail)}", path[:_SHOWN])


def _hint(model: type[WireModel], place: tuple[int | str, ...]) -> str:
    """What may be meant by an unknown field."""
    name, known = str(place[-1])[:_SHOWN], _fields_at(model, place[:-1])  # what is longer is near none of them
    other = model.other_names.get(name) if len(place) == 1 else None
    near = [other] if other is not None else get_close_matches(name, known, n=1, cutoff=_NEAR)
    if near:
        return f" (did you mean {_path((*place[:-1], near[0]))}?)"
    return f" (its fields are {', '.join(sorted(known))})" if len(place) > 1 and 0 < len(known) <= _LISTED else ""


def _place(document: dict[str, Any], detail: ErrorDetails) -> tuple[int | str, ...]:
    """Where in the document it is: pydantic also names the kinds that it tried where several are possible."""
    steps = detail["loc"]
    if detail["type"] == "missing":
        return (*max(_ways(document, steps[:-1]), key=len), steps[-1])
    # A kind may have the name of a key that is there, too: what is at fault comes last, and is there.
    return max(_ways(document, steps), key=lambda way: (way[-1:] == steps[-1:], len(way)))


def _ways(at: Any, steps: tuple[int | str, ...]) -> Iterator[tuple[int | str, ...]]:
    """Places in a document that steps may mean, some of which are names of kinds."""
    if not steps:
        yield ()
        return
    name, rest = steps[0], steps[1:]
    if _has(at, name):
        yield from ((name, *way) for way in _ways(at[name], rest))
    yield from _ways(at, rest)


def _has(at: Any, name: int | str) -> bool:
    """Whether a value is an object with such a key, or a list with such a place."""
    return name in at if isinstance(at, dict) else isinstance(at, list) and isinstance(name, int) and name < len(at)


def _quoted(document: dict[str, Any], place: tuple[int | str, ...]) -> str | None:
    """The value at a place, for use in a message; None for lists and objects, and where there is none."""
    at: Any = document
    for name in place:
        if not _has(at, name):
            return None
        at = at[name]
    return None if isinstance(at, (dict, list)) else shown(at if isinstance(at, str) else to_json(at).decode())


def _reason(detail: ErrorDetails) -> str:
    part = "character" if detail["type"].startswith("string") else "item"
    if detail["type"] in ("too_short", "string_too_short"):
        return f"is too short; send at least {quantity(detail['ctx']['min_length'], part)}"
    if detail["type"] in ("too_long", "string_too_long"):
        return f"is too long; send at most {quantity(detail['ctx']['max_length'], part)}"
    if detail["type"] == "union_tag_not_found":
        return "has no type that can be read; send an object with one"
    if detail["type"] == "union_tag_invalid":
        kind = str(detail["ctx"]["tag"])
        stored = "; this server keeps no responses, so send the item itself" if kind == "item_reference" else ""
        return f"is of the type {shown(kind)}; types here are {detail['ctx']['expected_tags']}{stored}"
    return f"cannot be used: {detail['msg']}"


def _fields_at(model: type[WireModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names an object at this place of a body may have; none if it is no object of ours."""
    at: type[WireModel] | None = model
    for name in loc:
        if isinstance(name, str) and at is not None:
            at = _nested(at.model_fields[name].annotation) if name in at.model_fields else None
    return [] if at is None else list(at.known)


def _nested(annotation: object) -> type[WireModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
