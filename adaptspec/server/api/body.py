"""Reading the body of a request: strict JSON within bounds, and errors that name the field at fault."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

import numpy as np
from aiohttp import web
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from adaptspec.errors import RequestError
from adaptspec.quantity import quantity
from adaptspec.server import limits
from adaptspec.server.api.fields import (
    NOT_STRINGS,
    NOT_TEXT,
    QUOTED_CHARACTERS,
    RequestBody,
    Warnings,
    WireModel,
    quoted,
)
from adaptspec.server.errors import RefusedError
from adaptspec.server.threads import THREADS

_CHUNK = 2**16  # bytes of a body that are looked at together
_LONG_INTEGER = re.compile(rb"(?<![\d.eE])(?<![eE][+-])\d{%d,}(?![\d.eE])" % (limits.NUMBER_DIGITS + 1))
_MIN_SIMILARITY = 0.72  # of an unknown name and the name that may be meant, from 0 to 1
_MAX_LISTED = 10  # fields of an inner object that an error lists

Body = TypeVar("Body", bound=RequestBody)
Path = tuple[int | str, ...]  # of a value in a document


async def read_json(http: web.Request, model: type[Body]) -> Body:
    """The body of a request, read off the event loop where it is large. Raises RequestError.

    A JSON content type is required: browsers do not send it to other sites without asking, which keeps most web pages
    from using a server on their reader's machine. The Host check stops pages whose own name was made to point there.
    """
    if http.content_type != "application/json":
        words = "send the body as JSON, with the header Content-Type: application/json"
        raise RefusedError(415, "unsupported_media_type", words)
    words = f"the body did not arrive within {limits.BODY_SECONDS:g} seconds; send it faster, or a shorter one"
    late = RefusedError(408, "request_timeout", words, Connection="close")
    # Not asyncio.wait_for: before Python 3.12 it forgets to be cancelled when a client has gone just as its body came.
    timer = asyncio.get_running_loop().call_later(limits.BODY_SECONDS, http.content.set_exception, late)
    try:
        raw = await http.read()
    finally:
        timer.cancel()
    return await http.app[THREADS].run(len(raw), lambda: parse(model, raw))


def parse(model: type[Body], raw: bytes) -> Body:
    """The body in these bytes. Raises RequestError that names the field at fault."""
    check_structure(raw)
    try:
        document = read_document(raw)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object, such as {...}")
    check_depth(raw, document)
    try:
        return model.model_validate(document, context=Warnings())
    except ValidationError as error:
        raise refusal(model, document, error) from error


def read_document(raw: bytes) -> Any:
    """The value that JSON text stands for. Raises ValueError if it is not JSON.

    Raises RequestError at an integer of too many digits: Python neither reads nor prints thousands of digits.
    """
    if _LONG_INTEGER.search(raw):
        path = _path_of_infinity(from_json(_LONG_INTEGER.sub(b"1e999", raw)))
        if path:
            most, name = limits.NUMBER_DIGITS, path_name(path)[:QUOTED_CHARACTERS]
            raise RequestError(f"{quoted(name)} has more than {most} digits; send a smaller number", name)
    return from_json(raw, allow_inf_nan=False)


def _path_of_infinity(value: Any) -> Path | None:
    """The path of the first infinite number in a document."""
    if isinstance(value, float):
        return () if value == float("inf") or value == float("-inf") else None
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        path = _path_of_infinity(one)
        if path is not None:
            return (name, *path)
    return None


def check_structure(raw: bytes) -> None:
    """Raise RequestError for a body of so many parts that reading it would delay the streams of other clients.

    Parts are counted in the bytes, before any JSON is read. The result for bytes that are no JSON has no meaning.
    """
    if len(raw) <= min(limits.JSON_PARTS, limits.JSON_ITEMS):
        return  # cheap, and true of nearly every request: each part takes a byte
    parts = items = 0
    for outside in _outside_strings(raw):
        parts += sum(np.count_nonzero(outside == mark) for mark in b"{[:")
        items += np.count_nonzero(outside == ord(","))
        if parts > limits.JSON_PARTS:
            raise RequestError(
                f"the body has more than {limits.JSON_PARTS} objects, lists and names of fields; send fewer of them in "
                "one request"
            )
        if items > limits.JSON_ITEMS:
            raise RequestError(
                f"the lists of the body have more than {limits.JSON_ITEMS} entries; send fewer in one request, such as "
                "texts instead of token ids"
            )


def _outside_strings(raw: bytes) -> Iterator[Any]:
    """The bytes of a body outside of strings, as arrays, chunk by chunk; bytes of strings are zeros."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    plain = np.frombuffer(raw, np.uint8)
    inside = np.uint8(0)
    for start in range(0, len(plain), _CHUNK):
        chunk = plain[start : start + _CHUNK]
        within = np.bitwise_xor.accumulate((chunk == ord('"')).view(np.uint8)) ^ inside
        yield chunk * (1 - within)
        inside = within[-1]


def check_depth(raw: bytes, document: object) -> None:
    """Raise RequestError if objects and lists lie deeper within each other than `JSON_DEPTH`."""
    if raw.count(b"[") + raw.count(b"{") <= limits.JSON_DEPTH:
        return  # cheap, and true of nearly every request: only lists of long lists are walked through
    level: list[Any] = [document]
    for _ in range(limits.JSON_DEPTH):
        inside = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in inside if isinstance(inner, (dict, list))]
        if not level:
            return
    raise RequestError(f"the body nests more than {limits.JSON_DEPTH} objects and lists; send it flatter")


# Errors of validation, in the words of the API.

# What is wanted, by the type of a validation error.
_WANTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "list_type": "a list",
    NOT_STRINGS: "a list of strings",
    "string_type": "a string",
}
# And with the name of the bound in the error's context.
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_SIZES: Mapping[str, tuple[str, str, str]] = {
    "too_short": ("short", "at least", "min_length"),
    "too_long": ("long", "at most", "max_length"),
    "string_too_short": ("short", "at least", "min_length"),
    "string_too_long": ("long", "at most", "max_length"),
}
# Errors that say more about a value of several kinds than that it is of another kind.
_CLOSE = frozenset({"literal_error", "too_many", *_SIZES})


def refusal(model: type[WireModel], document: Mapping[str, Any], error: ValidationError) -> RequestError:
    """The error of a document that is not of the model: it names one field at fault, and what to send instead."""
    details = error.errors(include_url=False, include_input=False)
    # Where several kinds are possible, the one that fits furthest is what was meant.
    same = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
    detail = max(same, key=lambda one: (len(_path_of(document, one)), one["type"] in _CLOSE))
    path = _path_of(document, detail)
    alike = [one for one in same if one is not detail and _path_of(document, one) == path]
    name = path_name(path)
    return RequestError(_text(model, document, path, [detail, *alike]), name[:QUOTED_CHARACTERS])


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error in the words of another body, which has other names for fields."""
    field = None if error.param is None else error.param.split("[")[0]
    if field is None or names.get(field, field) == field:
        return error
    other = type(error)(str(error).replace(field, names[field]), names[field])
    other.__cause__ = error
    return other


def path_name(path: Path) -> str:
    """A path as messages and `param` have it, such as `messages[0].content`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _text(model: type[WireModel], document: Mapping[str, Any], path: Path, details: Sequence[ErrorDetails]) -> str:
    """The words for the errors at one path; the first of them matters most."""
    detail, name = details[0], path_name(path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"{quoted(name)} is not a field this server supports; leave it out{_hint(model, path)}"
    if kind == "missing":
        return f"{name} is missing; add it"
    if kind == NOT_TEXT:
        remedy = "leave it out, or write its content as text"
        return f"this server reads text only; {quoted(name)} {detail['msg']}: {remedy}"
    if kind in ("not_supported", "too_many"):
        return f"{name} {detail['msg']}"
    return f"{quoted(name)} {_value_fault(details, _quoted(document, path))}"


def _value_fault(details: Sequence[ErrorDetails], given: str | None) -> str:
    """What is wrong with a value: where it may be of several kinds, there is an error for each.

    `given` is the value, as messages quote it; None for lists and objects.
    """
    detail = details[0]
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS or kind in _SIZES:
        return _bound_fault(kind, context)
    if kind == "string_pattern_mismatch":
        return f"must match the regular expression {context['pattern']}"
    if kind == "union_tag_not_found":
        return "has no type that can be read; send an object with one"
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        stored = "; this server keeps no responses, so send the item itself" if tag == "item_reference" else ""
        return f"is of the type {quoted(tag)}; types here are {context['expected_tags']}{stored}"
    if kind not in _WANTED and kind != "literal_error":
        return f"cannot be used: {detail['msg']}"
    literals = [one["ctx"]["expected"] for one in details if one["type"] == "literal_error"]
    wanted = [f"one of {words}" if " or " in words else words for words in literals]
    wanted = list(dict.fromkeys([*wanted, *(_WANTED[one["type"]] for one in details if one["type"] in _WANTED)]))
    listed = (", or " if literals else " or ").join(wanted)
    return f"is {given}; send {listed}" if literals and given is not None else f"must be {listed}"


def _bound_fault(kind: str, context: Mapping[str, Any]) -> str:
    """What is wrong with a value that is outside of its bounds."""
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        bound = context[name]
        return f"must be {words} {int(bound) if bound == int(bound) else bound}"
    size, words, name = _SIZES[kind]
    part = "character" if kind.startswith("string") else "item"
    return f"is too {size}; send {words} {quantity(context[name], part)}"


def _hint(model: type[WireModel], path: Path) -> str:
    """Which field may be meant by an unknown one."""
    name, useful = str(path[-1])[:QUOTED_CHARACTERS], _fields_at(model, path[:-1])
    other = model.other_names.get(name) if len(path) == 1 else None
    near = [other] if other is not None else get_close_matches(name, useful, n=1, cutoff=_MIN_SIMILARITY)
    if near:
        return f" (did you mean {path_name((*path[:-1], near[0]))}?)"
    return f" (its fields are {', '.join(sorted(useful))})" if len(path) > 1 and 0 < len(useful) <= _MAX_LISTED else ""


def _path_of(document: Mapping[str, Any], detail: ErrorDetails) -> Path:
    """Where in the document an error is: pydantic also names the kinds that it tried where several are possible."""
    steps = detail["loc"]
    if detail["type"] == "missing":
        return (*max(_possible_paths(document, steps[:-1]), key=len), steps[-1])
    # A kind may have the name of a key that is there, too: what is at fault comes last, and is there.
    return max(_possible_paths(document, steps), key=lambda path: (path[-1:] == steps[-1:], len(path)))


def _possible_paths(value: Any, steps: Path) -> Iterator[Path]:
    """Paths in a document that steps may mean, some of which are names of kinds."""
    if not steps:
        yield ()
        return
    name, rest = steps[0], steps[1:]
    if _has(value, name):
        yield from ((name, *path) for path in _possible_paths(value[name], rest))
    yield from _possible_paths(value, rest)


def _has(value: Any, name: int | str) -> bool:
    """Whether a value is an object with such a key, or a list with such an index."""
    if isinstance(value, dict):
        return name in value
    return isinstance(value, list) and isinstance(name, int) and name < len(value)


def _quoted(document: Mapping[str, Any], path: Path) -> str | None:
    """The value at a path, for use in a message; None for lists and objects, and where there is none."""
    value: Any = document
    for name in path:
        if not _has(value, name):
            return None
        value = value[name]
    if isinstance(value, (dict, list)):
        return None
    return quoted(value if isinstance(value, str) else to_json(value).decode())


def _fields_at(model: type[WireModel], path: Path) -> list[str]:
    """Names of the useful fields of the object at this path of a body; none if it is no object of ours."""
    at: type[WireModel] | None = model
    for name in path:
        if isinstance(name, str) and at is not None:
            at = _nested(at.model_fields[name].annotation) if name in at.model_fields else None
    return [] if at is None else list(at.useful)


def _nested(annotation: object) -> type[WireModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)
