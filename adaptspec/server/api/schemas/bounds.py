"""Bounds on the JSON schemas of clients: what the grammar compiler cannot bound itself.

The compiler follows references recursively on its stack, which has an end. Each further pattern that one text must
match doubles time and memory. A literal of n bytes costs O(n) for every token mask while it is written, and O(n^2)
memory for all of it; the compiler's own fuel limits count neither. A counted repetition such as `(ab){5000}` becomes a
literal. `multipleOf` of m becomes an automaton of m states, and several that meet one of their product.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from adaptspec.errors import RequestError
from adaptspec.server import limits
from adaptspec.server.api.fields import quoted
from adaptspec.server.api.schemas.schema_words import EXTENSION

DEEPEST = 128  # parts within each other, with references followed; about 1,500 were too many
MOST_PATTERNS = 8  # and formats, that one text has to match
_REGULAR = ("pattern", "format")
_NOT_CHOSEN = ("allOf", "enum", "const", "default", "examples")  # lists that hold together, or hold no schemas
_ANNOTATIONS = frozenset(
    {"title", "description", "$comment", "default", "examples"}
)  # never written, so never compiled
_DEFINITIONS = ("$defs", "definitions")
_VALUES = ("const", "enum")  # below them everything is data: no name is a keyword, and every string is written
_NAMED = ("properties", "patternProperties", *_DEFINITIONS, "dependentSchemas")  # their names are no keywords
_MERGED = ("$ref", "allOf", "anyOf", "oneOf")  # with the keywords next to them
_ENOUGH = 10**9  # numbers are cut here, so that they stay small integers


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise RequestError, with the field that the schema came in, for one that takes too much to compile or to use."""
    _check_literals(schema, param)
    measure = _Measure(schema, param)
    if measure.of(schema, 0).multiples > limits.SCHEMA_MULTIPLES:
        measure.refuse_multiples()


def _check_literals(schema: Mapping[str, Any], param: str) -> None:
    """Raise RequestError for a string, name, number or pattern that spells out more than the limit allows."""
    most = limits.SCHEMA_LITERAL_BYTES

    def check(kind: str, size: int, text: str) -> None:
        if size > most:
            raise RequestError(
                f"{param} has a schema that holds a {kind} of {size} bytes, {quoted(text)}; this server takes at most "
                f"{most} in one: shorten it, or let a short pattern describe it, such as ^The .*",
                param,
            )

    for kind, leaf in _leaves(dict(schema)):
        if isinstance(leaf, str):
            if kind == "pattern":
                check("pattern that spells out a text", spelled_out(leaf), leaf)
            else:
                check(kind, _written_bytes(leaf), leaf)
        elif isinstance(leaf, int):  # the compiler takes a finite float of any size, and it is short
            check("number", leaf.bit_length() // 3, hex(leaf))
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            raise RequestError(
                f"{param} has a schema that holds the number {leaf}, or one so large that it is read as it; use a "
                "smaller one, or leave it out",
                param,
            )


def _leaves(schema: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """All that a schema may write: each name, pattern and other value, with its kind `name`, `pattern` or `string`."""
    parts: list[tuple[str, object]] = [("", schema)]  # each with the keyword that it stands below
    seen: set[tuple[str, int]] = set()
    while parts:
        keyword, part = parts.pop()
        if not isinstance(part, (dict, list)):
            yield "pattern" if keyword in ("pattern", EXTENSION) else "string", part
            continue
        if (keyword, id(part)) in seen:
            continue
        seen.add((keyword, id(part)))
        if isinstance(part, list):
            parts.extend((keyword, value) for value in part)
            continue
        for name in part:
            yield "name", name
            if keyword == "patternProperties":
                yield "pattern", name
        parts.extend(_members(keyword, part))
        if keyword not in _VALUES and isinstance(part.get("$ref"), str):
            parts.append(("", target_of(schema, part["$ref"])))  # a schema, even if it lies among examples


def _members(keyword: str, part: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The values of an object below a keyword that may be written, each with the keyword that it stands below."""
    for name, value in part.items():
        if keyword in (*_VALUES, EXTENSION):
            yield keyword, value
        elif keyword in _NAMED:
            yield "", value
        elif name not in _ANNOTATIONS or not isinstance(value, (str, list)):
            yield name, value


def target_of(schema: Mapping[str, Any], reference: str) -> object:
    """The part of a schema that a `$ref` refers to; None if it is not in it."""
    at: Any = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list):
            at = at[int(name)] if name.isdecimal() and len(name) < 6 and int(name) < len(at) else None
        else:
            at = at.get(name) if isinstance(at, dict) else None
    return at if reference.startswith("#") and reference[1:2] in ("", "/") else None


def _written_bytes(text: str) -> int:
    """How many bytes a string takes as JSON in UTF-8, without its quotes."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


_TOKEN = re.compile(
    r"""(?P<flags> \(\?[a-zA-Z-]{0,16}\) )
      | (?P<open> \((?:\?(?:P?<[^>]{1,64}>|[a-zA-Z-]{0,16}:))? )
      | (?P<close> \) )
      | (?P<branch> \| )
      | (?P<repeat> [*+?] | \{(?P<least>[0-9]{1,10})(?:,[0-9]*)?\} )
      | (?P<atom> \\[pPxuU]\{[^}]{0,64}\} | \\. | . )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Group:
    """A group of a pattern that is being read: bytes of its last atom, of its branch so far, and of its longest."""

    atom: int = 0
    branch: int = 0
    longest: int = 0

    def add(self, size: int) -> None:
        self.branch += self.atom
        self.atom = size

    def end_branch(self) -> None:
        self.add(0)
        self.longest = max(self.longest, self.branch)
        self.branch = 0


def spelled_out(pattern: str) -> int:
    """Bytes of the longest text that a regular expression writes out, counted repetitions included.

    `(ab){100}` spells out 200 bytes; of alternatives the longest counts, a class as one byte, and `x{2,9}` twice.
    `.*`, `x?` and `x{0,9}` spell out nothing more than one `x`. What is no regular expression has some size, too.
    """
    groups = [_Group()]
    longest = 0
    after_repeat = False  # there `?` only makes the repetition lazy
    for kind, text, count in _tokens(pattern + ")" * pattern.count("(")):
        group = groups[-1]
        longest = max(longest, group.atom, group.branch)
        if kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            groups.pop()
            group.end_branch()
            groups[-1].add(group.longest)
        elif kind == "branch":
            group.end_branch()
        elif kind == "repeat" and not (after_repeat and text in "*+?"):
            group.atom = min(group.atom * count, _ENOUGH)
        elif kind == "atom":
            group.add(_written_bytes(text))
        after_repeat = kind == "repeat"
    groups[0].end_branch()
    return max(longest, groups[0].longest)


def _tokens(pattern: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and least count of every token of a regular expression."""
    position = 0
    while position < len(pattern):
        if pattern[position] == "[":
            position = _end_of_class(pattern, position)
            yield "atom", "x", 1
            continue
        token = _TOKEN.match(pattern, position)
        assert token is not None  # an atom may be any character
        position = token.end()
        kind = str(token.lastgroup)
        count = 0
        if kind == "repeat":
            count = 1 if token[0] == "+" else min(int(token["least"] or 0), _ENOUGH)
        yield kind, token[0], count


def _end_of_class(pattern: str, start: int) -> int:
    """The position behind the character class that begins at `start`; classes may hold others."""
    position = start + 1
    depth = 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":  # as the first it is an ordinary character
        position += 1
    while position < len(pattern) and depth:
        character = pattern[position]
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        position += 2 if character == "\\" else 1
    return min(position, len(pattern))


@dataclass(frozen=True)
class _Size:
    """How large a part of a schema is, with references followed.

    `patterns`, `product` and `min_length` are those of one text or number: the patterns and formats that it must match,
    the product of every `multipleOf` and the largest `minLength`. Parts that hold together are combined; of parts that
    hold for different texts the largest counts. `levels` is the depth. `multiples` is the sum of all such products. The
    compiler compiles the target of a reference once, where it is written, but copies it into a part that it merges with
    others, and so on below it: `copied` is the sum with the targets of all references added where they are referred to.
    """

    patterns: int = 0
    levels: int = 0
    product: int = 1
    min_length: int = 0
    multiples: int = 0
    copied: int = 0


class _Measure:
    """Measures a schema recursively and raises RequestError at the first part that is too much."""

    def __init__(self, schema: Mapping[str, Any], param: str) -> None:
        self._schema = schema
        self._param = param
        self._known: dict[int, _Size] = {}

    def of(self, part: object, level: int) -> _Size:
        """The size of a part that lies `level` deep."""
        if not isinstance(part, (dict, list)):
            return _Size()
        if id(part) not in self._known:
            self._known[id(part)] = _Size()  # what comes back to itself adds nothing more
            self._known[id(part)] = self._measured(part, level)
        size = self._known[id(part)]
        if level + size.levels > DEEPEST:
            self._refuse(f"lies deeper than {DEEPEST} parts within each other, references followed", "make it flatter")
        return size

    def refuse_multiples(self) -> NoReturn:
        self._refuse(
            f"has values of multipleOf that come to more than {limits.SCHEMA_MULTIPLES}, without their decimal "
            "points; those that hold for one number are multiplied, all others added",
            "use smaller or fewer ones",
        )

    def _measured(self, part: dict[str, Any] | list[Any], level: int) -> _Size:
        if level > DEEPEST:
            return _Size(levels=1)  # refused by `of`, before anything goes deeper
        merged = [self.of(one, level + 1) for one in self._together(part)]
        # Next to `allOf` or a `$ref` these are definitions and no fields: they say nothing of the text of this part.
        apart = _DEFINITIONS if merged else ()
        inner = [self.of(one, level + 1) for one in _alternatives(part, apart)]
        defined = [self.of(part[name], level + 1) for name in apart if isinstance(part, dict) and name in part]
        patterns, multiple, min_length = _own(part) if isinstance(part, dict) else (0, 1, 0)
        patterns += sum(one.patterns for one in merged) + max((one.patterns for one in inner), default=0)
        if patterns > MOST_PATTERNS and merged:
            self._refuse(f"has a text match more than {MOST_PATTERNS} patterns and formats", "join them into fewer")
        product = multiple * max((one.product for one in inner), default=1)
        for one in merged:
            product = min(product * one.product, _ENOUGH)
        if product > limits.SCHEMA_MULTIPLES:
            self.refuse_multiples()
        min_length = max([min_length, *(one.min_length for one in (*inner, *merged))])
        if patterns and min_length > limits.SCHEMA_MIN_LENGTH:
            self._refuse(
                f"asks for a minLength above {limits.SCHEMA_MIN_LENGTH} next to a pattern or format",
                "lower it, or say the length in the pattern",
            )
        own = product if multiple > 1 or any(one.product > 1 for one in merged) else 0
        copied = own + sum(one.copied for one in (*inner, *merged, *defined))
        multiples = copied
        if not _is_merged(part):
            written = [] if _refers(part) else merged
            multiples = (product if multiple > 1 else 0) + sum(one.multiples for one in (*inner, *written, *defined))
        levels = 1 + max((one.levels for one in (*inner, *merged, *defined)), default=0)
        return _Size(patterns, levels, product, min_length, min(multiples, _ENOUGH), min(copied, _ENOUGH))

    def _together(self, part: object) -> Iterator[object]:
        """Schemas that must hold in addition to the part's own keywords: `allOf` and the target of `$ref`."""
        if isinstance(part, dict):
            every, target = part.get("allOf"), part.get("$ref")
            yield from every if isinstance(every, list) else ()
            if isinstance(target, str):
                yield self._referred(target)

    def _referred(self, reference: str) -> object:
        target = target_of(self._schema, reference)
        if target is None:
            self._refuse(f"refers to {quoted(reference)}, which is not in it", "refer to its parts as in #/$defs/NAME")
        return target

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise RequestError(f"{self._param} has a schema that {what}; {remedy}", self._param)


def _refers(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("$ref"), str)


def _is_merged(part: object) -> bool:
    """Whether the compiler merges schemas to compile a part: those of its fields, or all of it with those it names."""
    if not isinstance(part, dict):
        return False
    keywords = part.keys() - _ANNOTATIONS.union(_DEFINITIONS)
    every = part.get("allOf")
    several = isinstance(every, list) and len(every) > 1
    return several or "patternProperties" in part or (len(keywords) > 1 and not keywords.isdisjoint(_MERGED))


def _own(part: dict[str, Any]) -> tuple[int, int, int]:
    """What a part says itself: how many patterns and formats, the digits of its `multipleOf`, and its `minLength`."""
    patterns = sum(isinstance(part.get(name), str) for name in _REGULAR)
    multiple, min_length = _finite(part.get("multipleOf")), _finite(part.get("minLength"))
    if isinstance(multiple, float) and not multiple.is_integer():
        digits = int("".join(map(str, Decimal(str(multiple)).as_tuple().digits)))
    else:
        digits = abs(int(multiple))
    return patterns, max(1, min(digits, _ENOUGH)), min(int(min_length), _ENOUGH)


def _finite(value: object) -> int | float:
    """A number of a schema; 0 for what is none, among them the `inf` that 1e999 is read as."""
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else 0


def _alternatives(part: dict[str, Any] | list[Any], apart: tuple[str, ...]) -> Iterator[object]:
    """Schemas of other texts, or of which one is chosen, less those of the names `apart`.

    Fields may have any name, so what is an object may be one.
    """
    if isinstance(part, list):
        yield from part
        return
    for name, value in part.items():
        if name not in apart and (isinstance(value, dict) or name not in _NOT_CHOSEN):
            yield value
