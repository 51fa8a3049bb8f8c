"""Rewrites the JSON schema of a client into one that the grammar compiler can compile.

Three rules:

- Annotations and unknown words are left out; so are formats that the compiler does not know, which JSON Schema calls
  annotations. Targets of references are collected in `$defs`, so that whatever else a schema holds counts for nothing.
- Words that no grammar can hold (`not`, `if`, `uniqueItems`, a pattern that looks ahead ...) are left out of a schema
  without `strict`, and named; in a strict schema they are refused. Values that are not valid are refused, too, but in
  tools without `strict`: one odd tool must not keep an agent from the others.
- An object with `properties` takes no other keys, unless the schema says so by `additionalProperties`: weak models
  invent keys, or never end the object. Parts that hold for the same object (`allOf`, `$ref` and `anyOf` next to
  other words) are left open, and are closed together, by all their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

from adaptspec.errors import RequestError
from adaptspec.models.grammars import MAX_CHARACTERS, schema_fault
from adaptspec.server import limits
from adaptspec.server.api.fields import Warnings, loggable_key, quoted
from adaptspec.server.api.schemas.alternatives import are_exclusive
from adaptspec.server.api.schemas.bounds import DEEPEST, check_schema, spelled_out, target_of
from adaptspec.server.api.schemas.object_keys import ITEMS, PATTERNS, ObjectKeys, is_composed
from adaptspec.server.api.schemas.repair import Repairer
from adaptspec.server.api.schemas.schema_words import (
    APPLICATORS,
    BOUNDS,
    CONDITIONS,
    COUNTS,
    EXTENSION,
    NOT_HELD,
    PLAIN,
    SCHEMAS,
    TYPES,
    InvalidSchemaError,
    Origin,
    bound_of,
    count_of,
    is_known_format,
    kind_of,
    not_kept,
    refuse_value,
    shortened,
)

MAX_PARTS = 2**16  # that a rewritten schema may have, names of keys included
MAX_DROPPED = 64  # words of one schema that are named
# Characters that may be added to close objects: so many for each character of the schema, and so many besides.
_CLOSING_FACTOR, _CLOSING_MORE = 4, 16_384
_MAX_PATTERNS = 500  # that are compiled alone
_MAX_KEPT = 16_384  # characters of a schema that is remembered

# closed: an object with properties takes no others. open: it is a part of an object that is closed as a whole, but
# objects within it are closed. untouched: nothing is closed, as another part says something of the same values.
Mode = Literal["closed", "open", "untouched"]


@dataclass(frozen=True)
class Rewritten:
    """A schema that compiles, and why words were left out of it, by their paths in the client's request."""

    schema: dict[str, Any]
    dropped: Mapping[str, str]

    def warn(self, warnings: Warnings, whose: str = "") -> None:
        """Name the words that were left out; `whose` says of what, for what a path does not say."""
        for path, why in self.dropped.items():
            warnings.add("schema", f"{path}{whose} is not enforced: {why}")


def rewrite(schema: Mapping[str, Any], origin: Origin, *, arguments: bool = False) -> Rewritten:
    """The same schema in words that the compiler takes. `arguments`: it is of those of a function, so of an object.

    Raises RequestError, with the path of the part at fault: it is no valid JSON schema, it takes too much to compile,
    or it is strict and holds words that cannot be kept to.
    """
    text = json.dumps(schema)
    try:
        if len(text) <= _MAX_KEPT:
            return _rewritten_text(text, origin, arguments)
        return _rewritten(schema, origin, len(text), arguments=arguments)
    except RequestError as error:
        raise RequestError(str(error), origin.field) from error


@lru_cache(512)  # agents send the same tools with every request
def _rewritten_text(text: str, origin: Origin, arguments: bool) -> Rewritten:
    return _rewritten(json.loads(text), origin, len(text), arguments=arguments)


def _rewritten(schema: Mapping[str, Any], origin: Origin, size: int, *, arguments: bool) -> Rewritten:
    rewriter = _Rewriter(dict(schema), origin, size, is_forgiving=arguments and not origin.strict)
    if arguments:
        rewriter.take_arguments()
    written = rewriter.root()
    # Options of the compiler are ours alone; a client's are refused where they are too much, and else left out.
    options = {EXTENSION: schema[EXTENSION]} if EXTENSION in schema else {}
    check_schema({**written, **options}, origin.path)
    if len(json.dumps(written)) > MAX_CHARACTERS:
        raise RequestError(
            f"{origin.path} has a schema of more than {MAX_CHARACTERS} characters, without descriptions; send a "
            "smaller one",
            origin.path,
        )
    repairer = Repairer(written, origin, rewriter.paths)
    repairer.repair()
    return Rewritten(repairer.schema, dict(islice({**rewriter.dropped, **repairer.dropped}.items(), MAX_DROPPED)))


@dataclass(frozen=True)
class _Keyword:
    """Where a keyword stands: its name and path, how parts below it are treated, and how deep they are."""

    name: str
    path: str
    mode: Mode
    level: int
    loose: frozenset[str]

    def mode_of(self, *names: str) -> Mode:
        """How parts below it are treated, where `names` say what they describe."""
        untouched = self.mode == "untouched" or not self.loose.isdisjoint(names)
        return "untouched" if untouched else "closed"


class _Rewriter:
    """Rewrites one schema, part by part; `dropped` and `paths` grow meanwhile."""

    def __init__(self, schema: dict[str, Any], origin: Origin, size: int, *, is_forgiving: bool) -> None:
        """`size`: of the schema as it came, in characters. `is_forgiving`: values that are not valid are left out."""
        self._schema = schema
        self._is_forgiving = is_forgiving
        self._origin = origin
        self._parts = 0
        self._patterns = 0
        self._closings: dict[tuple[str, ...], str] = {}  # names of definitions, by the keys that they allow
        self._added = 0  # characters that close objects
        self._may_add = min(MAX_CHARACTERS, _CLOSING_FACTOR * size + _CLOSING_MORE)
        self._definitions: dict[str, Any] = {}
        self._names: dict[tuple[int, Mode, frozenset[str]], str] = {}  # of definitions
        self._waiting: list[tuple[str, object, Mode, frozenset[str], str]] = []
        self._keys: dict[int, ObjectKeys] = {}
        identity = schema.get("$id", schema.get("id"))
        self._identity = identity.rstrip("#") if isinstance(identity, str) else ""
        self.dropped: dict[str, str] = {}
        self.paths: dict[int, str] = {}  # of rewritten parts, by their ids

    def take_arguments(self) -> None:
        """Have the schema be of an object: those of functions leave that out, or say something else of it."""
        kind, path = self._schema.get("type"), f"{self._origin.path}.type"
        if kind not in (None, "any", "object") and not isinstance(kind, list):
            if self._is_forgiving:
                self._drop(path, "the arguments of a function are an object")
            elif kind in TYPES:
                raise RequestError(
                    f"{path} is {quoted(str(kind))}, but the arguments of a function are an object", path
                )
            else:
                return  # no type at all, which is refused with the rest
        if kind != "object":
            others = {name: value for name, value in self._schema.items() if name != "type"}
            self._schema = {"type": "object", **others}

    def root(self) -> dict[str, Any]:
        written = self._part(self._schema, "closed", self._origin.path, 0)
        assert isinstance(written, dict)  # as its origin is
        while self._waiting:  # not recursive: references may make long chains
            name, part, mode, loose, path = self._waiting.pop()
            self._definitions[name] = self._part(part, mode, path, 0, loose)
        if self._definitions:
            written["$defs"] = self._definitions
        return written

    def _part(
        self, part: object, mode: Mode, path: str, level: int, loose: frozenset[str] = frozenset()
    ) -> dict[str, Any] | bool:
        """A part in the compiler's words. What `loose` names is left untouched, as other parts describe it, too."""
        if isinstance(part, bool):
            return part
        if not isinstance(part, dict):
            if self._is_forgiving:
                self._drop(path, "it is no valid JSON schema")
                return True
            refuse_value(path, part, "an object, or true or false")
        if level > DEEPEST:
            self._refuse_size(f"lies deeper than {DEEPEST} parts within each other; make it flatter")
        self._count(1)
        # Serializers write fields that are not set as null.
        words = {name: value for name, value in part.items() if value is not None or name == "const"}
        composed = is_composed(words)
        if composed and mode != "untouched":
            loose |= self._keys_of(part).contested
        elif "patternProperties" in words and isinstance(words.get("properties"), dict):
            loose |= frozenset(words["properties"])
        inner: Mode = "open" if composed and mode == "closed" else mode
        written: dict[str, Any] = {}
        for name, value in words.items():
            keyword = _Keyword(name, f"{path}.{loggable_key(name)}", inner, level + 1, loose)
            if name in NOT_HELD:
                self._not_held(value, words, keyword)
            else:
                self._write(written, value, keyword)
        if len(written.get("patternProperties", ())) < len(words.get("patternProperties", ())):
            written.pop("additionalProperties", None)  # keys of patterns that were left out may still be written
        elif mode == "closed" and (composed or "properties" in words or "unevaluatedProperties" in words):
            self._close(written, self._keys_of(part), composed=composed)
        if words.get("nullable") is True:
            written = _nullable(written)
        self.paths[id(written)] = path
        return written

    def _write(self, written: dict[str, Any], value: object, keyword: _Keyword) -> None:
        """Add one keyword to what is written, or leave it out."""
        try:
            self._write_valid(written, value, keyword)
        except InvalidSchemaError:
            if not self._is_forgiving:
                raise
            self._drop(keyword.path, "it is no valid JSON schema")

    def _write_valid(self, written: dict[str, Any], value: object, keyword: _Keyword) -> None:
        name = keyword.name
        if name in ("properties", "patternProperties"):
            written[name] = self._named(value, keyword)
        elif name in ("allOf", "anyOf", "oneOf"):
            self._several(written, value, keyword)
        elif name == "$ref":
            self._reference(written, value, keyword)
        elif name in SCHEMAS:
            written[name] = self._values(value, keyword)
        elif name in PLAIN:
            kept = self._plain(value, keyword)
            if kept is not None or name == "const":
                written[name] = kept

    def _not_held(self, value: object, words: dict[str, Any], keyword: _Keyword) -> None:
        name = keyword.name
        says_nothing = (
            any(value is one or (value == one and value == {}) for one in NOT_HELD[name])
            or (name == "if" and "then" not in words and "else" not in words)
            or (name == "contains" and words.get("minContains") == 0 and "maxContains" not in words)
            # What closes an object is done by `_close`.
            or (name == "unevaluatedProperties" and value is False and keyword.mode != "untouched")
        )
        if not says_nothing:
            self._drop(keyword.path)

    def _named(self, value: object, keyword: _Keyword) -> dict[str, Any]:
        if not isinstance(value, dict):
            refuse_value(keyword.path, value, "an object of schemas")
        written = {}
        for key, part in value.items():
            path = f"{keyword.path}.{loggable_key(key)}"
            if keyword.name == "patternProperties" and not self._compiles(key, path):
                continue
            mode = keyword.mode_of(key, PATTERNS)
            written[key] = self._part({} if part is None else part, mode, path, keyword.level)
        return written

    def _values(self, value: object, keyword: _Keyword) -> Any:
        """Schemas of items, or of further keys."""
        mode = keyword.mode_of(PATTERNS if keyword.name == "additionalProperties" else ITEMS)
        if isinstance(value, list) and keyword.name in ("items", "prefixItems"):
            return [self._part(one, mode, f"{keyword.path}[{i}]", keyword.level) for i, one in enumerate(value)]
        return self._part(value, mode, keyword.path, keyword.level)

    def _several(self, written: dict[str, Any], value: object, keyword: _Keyword) -> None:
        if not isinstance(value, list):
            refuse_value(keyword.path, value, "a list of schemas")
        if not value:
            self._drop(keyword.path, "it is empty")
            return
        name = keyword.name
        parts = [
            self._part(one, keyword.mode, f"{keyword.path}[{i}]", keyword.level, keyword.loose)
            for i, one in enumerate(value)
        ]
        if name == "oneOf":
            exclusive = are_exclusive([self._followed(one) for one in value])
            if not exclusive and not self._origin.strict:
                self._drop(keyword.path)
            if exclusive or not self._origin.strict:
                name = "anyOf"
        if name in written:  # oneOf next to anyOf
            written.setdefault("allOf", []).append({name: parts})
        elif name == "allOf":
            written.setdefault("allOf", []).extend(parts)
        else:
            written[name] = parts

    def _followed(self, part: Any) -> Any:
        """What a part that is a reference refers to."""
        for _ in range(8):
            if not (isinstance(part, dict) and isinstance(part.get("$ref"), str)):
                break
            part = self._target(part["$ref"])
        return part

    def _target(self, reference: str) -> object:
        if self._identity and reference.startswith(f"{self._identity}#"):
            reference = reference[len(self._identity) :]
        found = target_of(self._schema, reference)
        return found if found is not None else target_of(self._schema, unquote(reference))

    def _reference(self, written: dict[str, Any], value: object, keyword: _Keyword) -> None:
        if not isinstance(value, str):
            refuse_value(keyword.path, value, "a reference such as #/$defs/NAME")
        target = self._target(value)
        if not isinstance(target, (dict, bool)):
            self._drop(keyword.path, f"{quoted(value)} is not in this schema")
            return
        key = (id(target), keyword.mode, keyword.loose)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"d{len(self._names)}"
            self._definitions[name] = True  # keeps its position
            steps = [one.replace("~1", "/").replace("~0", "~") for one in value.partition("#")[2].split("/")[1:]]
            path = ".".join([self._origin.path, *map(loggable_key, steps)])
            self._waiting.append((name, target, keyword.mode, keyword.loose, path))
        written["$ref"] = f"#/$defs/{name}"

    def _plain(self, value: object, keyword: _Keyword) -> object:
        """The value of a keyword that holds no schemas; None if it is left out."""
        name, path = keyword.name, keyword.path
        if name in COUNTS:
            return count_of(value, path)
        if name in BOUNDS:
            return bound_of(name, value, path)
        if name == "type":
            return kind_of(value, path)
        if name in ("required", "enum"):
            return self._listed(value, keyword)
        if name in ("pattern", "format"):
            if not isinstance(value, str):
                refuse_value(path, value, "a string")
            is_kept = self._compiles(value, path) if name == "pattern" else is_known_format(value)
            return value if is_kept else None
        return value

    def _listed(self, value: object, keyword: _Keyword) -> list[Any] | None:
        """The values of `enum`, or the names of `required`."""
        names = keyword.name == "required"
        if names and isinstance(value, bool):
            self._drop(keyword.path, "it must be a list of names, next to properties")  # in Draft 3 it was not
            return None
        if not isinstance(value, list) or (names and not all(isinstance(one, str) for one in value)):
            refuse_value(keyword.path, value, "a list of names" if names else "a list of values")
        if not value and not names:
            self._drop(keyword.path, "it is empty")
            return None
        return value

    def _compiles(self, pattern: str, path: str) -> bool:
        """Whether a pattern compiles; it is dropped if not.

        One that is too long is refused later, and many are compiled with the whole schema.
        """
        self._patterns += 1
        if spelled_out(pattern) > limits.SCHEMA_LITERAL_BYTES or self._patterns > _MAX_PATTERNS:
            return True
        fault = schema_fault(json.dumps({"type": "string", "pattern": pattern}), path)
        if fault is not None:
            self._drop(path, f"it does not compile ({shortened(fault)})")
        return fault is None

    def _close(self, written: dict[str, Any], keys: ObjectKeys, *, composed: bool) -> None:
        """Let an object with properties take no others, unless its schema says so."""
        if keys.says_others or not keys.has_properties or keys.at_least > len(keys.all):
            return
        self._count(len(keys.all))
        if composed:
            written.setdefault("allOf", []).append({"$ref": f"#/$defs/{self._closing(tuple(keys.all))}"})
            return
        known = written.setdefault("properties", {})
        self._add(name for name in keys.all if name not in known)
        for name in keys.all:
            known.setdefault(name, True)
        written["additionalProperties"] = False

    def _closing(self, names: tuple[str, ...]) -> str:
        """The definition of an object that has no keys but these; objects with the same keys share it."""
        shared = self._closings.get(names)
        if shared is None:
            self._add(names)
            shared = self._closings[names] = f"c{len(self._closings)}"
            self._definitions[shared] = {"properties": dict.fromkeys(names, True), "additionalProperties": False}
        return shared

    def _add(self, names: Iterable[str]) -> None:
        """Count the characters of names that are written to close an object."""
        self._added += sum(len(json.dumps(name)) + len(": true, ") for name in names)
        if self._added > self._may_add:
            self._refuse_size(
                f"becomes too large: its objects are closed by naming their keys, and {self._may_add} characters are "
                "not enough for that; say additionalProperties in the parts that others refer to, or send a smaller one"
            )

    def _keys_of(self, part: object, level: int = 0) -> ObjectKeys:
        if not isinstance(part, dict) or level > DEEPEST:
            return ObjectKeys()
        known = self._keys.get(id(part))
        if known is not None:
            return known
        keys = self._keys[id(part)] = ObjectKeys()  # what comes back to itself adds nothing more
        alternatives: list[object] = []
        for name, value in part.items():
            if name == "allOf" and isinstance(value, list):
                for one in value:
                    keys.add_part(self._keys_of(one, level + 1))
            elif name == "$ref" and isinstance(value, str):
                keys.add_part(self._keys_of(self._target(value), level + 1))
            elif name in ("anyOf", "oneOf") and isinstance(value, list):
                alternatives += value
            elif name in CONDITIONS and isinstance(value, dict):
                # The compiler does not know of them, but they may name keys that are to be written.
                for one in (value,) if name in ("if", "then", "else") else value.values():
                    keys.all |= self._keys_of(one, level + 1).all
            else:
                keys.add_own(name, value)
        for one in alternatives:
            keys.add_alternative(self._keys_of(one, level + 1))
        self._count(len(keys.all))
        return keys

    def _drop(self, path: str, why: str = "no grammar can hold it") -> None:
        """A word is left out, which a strict schema does not allow."""
        if self._origin.strict:
            raise RequestError(not_kept(path, why), path)
        if len(self.dropped) < MAX_DROPPED:
            self.dropped.setdefault(path, why)

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > MAX_PARTS:
            self._refuse_size(f"has more than {MAX_PARTS} parts and names, references followed; send a smaller one")

    def _refuse_size(self, what: str) -> NoReturn:
        raise RequestError(f"{self._origin.path} has a schema that {what}", self._origin.path)


def _nullable(written: dict[str, Any]) -> dict[str, Any]:
    """A part that may be null, too: OpenAPI's `nullable`."""
    kind = written.get("type")
    if isinstance(kind, list) and "null" in kind:
        return written
    if isinstance(kind, str) and written.keys().isdisjoint(("const", "enum", *APPLICATORS)):
        return {**written, "type": [kind, "null"]}
    return {"anyOf": [written, {"type": "null"}]}
