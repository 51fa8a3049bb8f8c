"""Schemas of clients as the grammar compiler takes them: nothing odd breaks them, and objects are closed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import PreTrainedTokenizerFast

from adaptspec.errors import RequestError
from adaptspec.models.grammars import MAX_CHARACTERS, Grammars, schema_fault
from adaptspec.request import Grammar
from adaptspec.server.api.schemas.rewriting import rewrite
from adaptspec.server.api.schemas.schema_words import KEYWORDS as KEYWORDS_OF_SCHEMAS
from adaptspec.server.api.schemas.schema_words import NOT_HELD as WORDS_NOT_HELD
from adaptspec.server.api.schemas.schema_words import Origin
from tests.conftest import tiny_tokenizer

Json = dict[str, Any]
PATH = "tools[0].function.parameters"
END = 1
STYLE = {"whitespace_flexible": False}


def obj(**properties: Any) -> Json:
    return {"type": "object", "properties": properties}


class Accepting:
    """Says which texts a schema lets be written."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.grammars = Grammars(tokenizer, 260, (END,))

    def grammar(self, schema: Json, *, strict: bool = False) -> Grammar:
        rewritten = rewrite(schema, Origin(PATH, strict))
        return Grammar(json.dumps({**rewritten.schema, "x-guidance": STYLE}))

    def __call__(self, schema: Json, value: object) -> bool:
        text = json.dumps(value, separators=(",", ":"))
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), END]
        return self.grammars.start(self.grammar(schema)).valid(tokens) == len(tokens)


@pytest.fixture(scope="module")
def accepts(tokenizer: PreTrainedTokenizerFast) -> Accepting:
    return Accepting(tokenizer)


# A schema of one property `x`, and the path of the word that no grammar holds, below that of `x`.
NOT_HELD: dict[str, tuple[Json, str]] = {
    "uniqueItems": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
    "not": ({"type": "string", "not": {"const": "a"}}, "not"),
    "if": ({"type": "string", "if": {"const": "a"}, "then": {"minLength": 1}}, "if"),
    "else": ({"if": {"const": 1}, "else": {"type": "string"}}, "if"),
    "contains": ({"type": "array", "contains": {"type": "string"}, "minContains": 2}, "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, "propertyNames"),
    "dependentRequired": ({**obj(a={}, b={}), "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "dependentSchemas": ({**obj(a={}), "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
    "dependencies": ({**obj(a={}, b={}), "dependencies": {"a": ["b"]}}, "dependencies"),
    "unevaluatedItems": ({"type": "array", "prefixItems": [{}], "unevaluatedItems": False}, "unevaluatedItems"),
    "unevaluatedProperties": (
        {"type": "object", "unevaluatedProperties": {"type": "string"}},
        "unevaluatedProperties",
    ),
    "$dynamicRef": ({"$dynamicRef": "#node"}, "$dynamicRef"),
    "look-ahead": ({"type": "string", "pattern": "^(?!admin)[a-z]+$"}, "pattern"),
    "look-behind": ({"type": "string", "pattern": "(?<=a)b"}, "pattern"),
    "back reference": ({"type": "string", "pattern": r"^(a|b)\1$"}, "pattern"),
    "word boundary": ({"type": "string", "pattern": r"\bfoo\b"}, "pattern"),
    "no pattern at all": ({"type": "string", "pattern": "(["}, "pattern"),
    "pattern of names": ({"type": "object", "patternProperties": {"(?=a)": {}}}, "patternProperties.<5 characters>"),
    "patterns that overlap": ({"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}, "patternProperties"),
    "minProperties": ({**obj(a={}, b={}, c={}), "minProperties": 2}, "minProperties"),
    "oneOf": ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "oneOf"),
    "a reference to nowhere": ({"$ref": "#/$defs/none"}, "$ref"),
    "a reference elsewhere": ({"$ref": "https://example.org/a.json"}, "$ref"),
    "an empty choice": ({"type": "string", "enum": []}, "enum"),
    "an empty list of alternatives": ({"anyOf": []}, "anyOf"),
    "required of Draft 3": ({"type": "string", "required": True}, "required"),
    "what cannot be": ({"type": "integer", "minimum": 5, "maximum": 1}, "maximum"),
}


SAYS_NOTHING: list[Json] = [
    {"uniqueItems": False},
    {"if": {"const": 1}},
    {"then": {"const": 1}},
    {"dependentRequired": {}},
    {"dependencies": {}},
    {"propertyNames": True},
    {"type": "array", "contains": {"const": 1}, "minContains": 0},
    {"unevaluatedProperties": True},
    {"title": 5, "description": None, "deprecated": True, "readOnly": False, "examples": "none"},
    {"xml": {"name": "a"}, "discriminator": {"propertyName": "a"}, "externalDocs": {}, "example": 3},
    {"contentEncoding": "base64", "contentMediaType": "image/png", "contentSchema": {"not": {}}},
    {"enum": None, "minLength": None, "properties": None, "required": None, "anyOf": None, "items": None},
    *({"format": name} for name in ("password", "uri-reference", "byte", "binary", "path", "int64", "iri", "my-own")),
    {"type": "integer", "format": "int32"},
]


@pytest.mark.parametrize("part", SAYS_NOTHING)
@pytest.mark.parametrize("strict", [False, True])
def test_words_without_effect_are_left_out_in_silence(part: Json, strict: bool) -> None:
    """Formats that are not known are annotations, as JSON Schema says; null is what serializers write for nothing."""
    assert rewrite(obj(x=part), Origin(PATH, strict)).dropped == {}


@pytest.mark.parametrize(
    "schema",
    [
        obj(x={"description": "d" * MAX_CHARACTERS}),
        {**obj(), "title": "t" * MAX_CHARACTERS, "$comment": "c" * MAX_CHARACTERS},
        obj(x={"type": "array", "items": {"examples": [["e" * MAX_CHARACTERS]], "default": "d" * MAX_CHARACTERS}}),
        {**obj(x={"$ref": "#/$defs/a"}), "$defs": {"a": {"description": "d" * MAX_CHARACTERS}}},
        {**obj(), "$defs": {"unused": {"enum": ["x" * 4000 + str(i) for i in range(40)]}}},
    ],
)
def test_annotations_and_unused_definitions_do_not_count(schema: Json) -> None:
    """A hundred tools with long descriptions were refused for their size."""
    assert len(json.dumps(rewrite(schema, Origin(PATH, strict=True)).schema)) < 1000


def test_names_of_keywords_may_be_keys_and_values(accepts: Accepting) -> None:
    """Below `properties` and `const` nothing is a keyword."""
    schema = {
        **obj(description={"type": "integer"}, const={"const": {"title": "a", "not": 1}}, enum={"enum": [{"if": 2}]}),
        "required": ["description", "const", "enum"],
    }
    assert accepts(schema, {"description": 1, "const": {"title": "a", "not": 1}, "enum": {"if": 2}})


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, [None, "a"], [1]),
        ({"type": "integer", "nullable": True, "enum": [1, 2]}, [None, 1], [3]),
        ({"$ref": "#/definitions/a", "nullable": True}, [None, "a"], [1]),
        ({"type": "string", "nullable": False}, ["a"], [None]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
        ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, [3], [4]),
        ({"$ref": "#/definitions/a"}, ["a"], [1]),
        ({"$ref": "#/definitions/with%20space"}, [1], ["a"]),
        ({"$ref": "https://example.org/it#/definitions/a"}, ["a"], [1]),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [[1]], [["a"], [1, 1]]),
        ({"type": "any"}, [1, "a", None], []),
        ({"type": "string", "minLength": 2.0}, ["ab"], ["a"]),
        ({"id": "#here", "$id": "#x", "$anchor": "y", "$schema": "unknown", "type": "integer"}, [1], ["a"]),
    ],
)
def test_older_spellings_are_understood(accepts: Accepting, part: Json, good: list[object], bad: list[object]) -> None:
    """Of Draft 3, Draft 4 and OpenAPI."""
    schema = {
        **obj(x=part),
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "https://example.org/it",
        "definitions": {"a": {"type": "string"}, "with space": {"type": "integer"}},
    }
    assert rewrite(schema, Origin(PATH, strict=True)).dropped == {}
    assert [value for value in good if not accepts(schema, {"x": value})] == []
    assert [value for value in bad if accepts(schema, {"x": value})] == []


INVALID: list[tuple[Json, str]] = [
    ({"type": "nonsense"}, ".type"),
    ({"items": [{}, 5]}, ".items[1]"),
    ({"minItems": -(10**399)}, ".minItems"),
    ({"patternProperties": {"^a": 3}}, ".patternProperties.<2 characters>"),
]


@pytest.mark.parametrize(("part", "at"), INVALID)
def test_in_tools_what_is_not_valid_is_left_out_and_named(part: Json, at: str) -> None:
    """One odd tool among many must not keep an agent from the others; a strict one is refused."""
    schema = {**obj(x=part, y={"type": "integer"}), "required": ["y"]}
    rewritten = rewrite(schema, Origin(PATH), arguments=True)
    assert list(rewritten.dropped) == [f"{PATH}.properties.x{at}"]
    assert rewritten.schema["properties"]["y"] == {"type": "integer"}
    assert schema_fault(json.dumps(rewritten.schema), PATH) is None
    with pytest.raises(RequestError, match="which is no valid JSON schema; it must be"):
        rewrite(schema, Origin(PATH, strict=True), arguments=True)


BASE = {**obj(a={"type": "integer"}), "required": ["a"]}
CLOSED: dict[str, tuple[Json, list[object], list[object]]] = {
    "an object": (obj(a={}), [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    "one that says nothing of keys": ({"type": "object"}, [{}, {"a": 1}], []),
    "one that is open": ({**obj(a={"type": "integer"}), "additionalProperties": True}, [{"b": 1}], [{"a": "x"}]),
    "one of further keys": ({**obj(a={}), "additionalProperties": {"type": "integer"}}, [{"b": 1}], [{"b": "x"}]),
    "below an open one": ({**obj(a=obj(b={})), "additionalProperties": True}, [{"a": {"b": 1}}], [{"a": {"c": 1}}]),
    "below a pattern": (
        {"type": "object", "patternProperties": {"^x": obj(a={})}, "additionalProperties": False},
        [{"x": {"a": 1}}],
        [{"x": {"b": 1}}],
    ),
    "a key that is required alone": (
        {**obj(a={}), "required": ["b"]},
        [{"a": 1, "b": 2}],
        [{"a": 1}, {"b": 1, "c": 1}],
    ),
    "keys that a condition names": (
        {**obj(a={}), "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": obj(c={})},
        [{"a": 1, "b": 1}, {"c": 1}],
        [{"d": 1}],
    ),
    "more keys than are named": (
        {**obj(a={"const": 1}), "required": ["a"], "minProperties": 2},
        [{"a": 1, "b": 2}],
        [],
    ),
    "alternatives": (
        {"anyOf": [obj(a={}), obj(b={}), {"type": "null"}]},
        [{"a": 1}, {"b": 1}, None],
        [{"a": 1, "b": 1}],
    ),
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": BASE}}, [{"a": 1}], [{"a": 1, "b": 1}]),
    "itself": (obj(a={"$ref": "#"}), [{"a": {"a": {}}}], [{"a": {"b": {}}}]),
    "all of some": ({"allOf": [BASE, obj(b={})]}, [{"a": 1}, {"a": 1, "b": 1}], [{"b": 1}, {"a": 1, "c": 1}]),
    "all of references": (
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": BASE, "b": obj(b={})}},
        [{"a": 1, "b": 1}],
        [{"a": 1, "c": 1}],
    ),
    "what several describe": (
        {"allOf": [obj(k=obj(x={})), {**obj(k=obj(y={})), "required": ["k"]}]},
        [{"k": {"x": 1, "y": 1}}],
        [{"k": {}, "z": 1}],
    ),
    "a part of all that is open": (
        {"allOf": [BASE, {**obj(b={}), "additionalProperties": True}]},
        [{"a": 1, "c": 1}],
        [],
    ),
    "alternatives of required keys": (
        {**obj(a={"const": 1}, b={"const": 2}), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 2}],
        [{}, {"a": 1, "c": 1}],
    ),
    "what is not evaluated": (
        {"allOf": [BASE, obj(b={})], "unevaluatedProperties": False},
        [{"a": 1, "b": 1}],
        [{"a": 1, "c": 1}],
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_objects_take_no_other_keys_unless_they_say_so(accepts: Accepting, name: str) -> None:
    """Weak models invent keys, or never end. What must hold together stays possible."""
    schema, good, bad = CLOSED[name]
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


@pytest.mark.parametrize(
    "parts",
    [
        [{"const": "a"}, {"enum": ["b", "c"]}],
        [{"type": "string"}, {"type": "integer"}, obj(a={})],
        [{**obj(k={"const": "a"}), "required": ["k"]}, {**obj(k={"const": "b"}, x={}), "required": ["k"]}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    ],
)
def test_alternatives_that_exclude_each_other_may_be_strict(parts: list[Json]) -> None:
    """`oneOf` is `anyOf` then, as in tagged unions."""
    tagged = {name: {**obj(kind={"const": name}), "required": ["kind"]} for name in "ab"}
    assert rewrite({**obj(x={"oneOf": parts}), "$defs": tagged}, Origin(PATH, strict=True)).dropped == {}


def test_arguments_of_a_function_are_an_object() -> None:
    """Also where the schema does not say it, or says something else, which is refused in a strict one."""
    for schema in (
        {},
        {"properties": {"a": {}}},
        {"type": ["object", "null"]},
        {"anyOf": [obj(a={}), {"type": "null"}]},
    ):
        assert rewrite(schema, Origin(PATH), arguments=True).schema["type"] == "object"
    for kind in ("string", "array", "str", 5, {}):
        rewritten = rewrite({"type": kind, "properties": {"a": {}}}, Origin(PATH), arguments=True)
        assert (rewritten.schema["type"], list(rewritten.dropped)) == ("object", [f"{PATH}.type"])
        with pytest.raises(RequestError, match=r"the arguments of a function are an object|no valid JSON schema"):
            rewrite({"type": kind}, Origin(PATH, strict=True), arguments=True)


def test_what_grows_without_bound_is_refused() -> None:
    """Definitions that are used closed and open, and names that every closing repeats."""
    wide = obj(**{f"p{i}": {} for i in range(1000)})
    many = {f"c{i}": {"allOf": [{"$ref": "#/$defs/wide"}, obj(x={})]} for i in range(200)}
    with pytest.raises(RequestError, match="more than 65536 parts and names"):
        rewrite({**obj(**many), "$defs": {"wide": wide}}, Origin(PATH))
    deep: Json = {}
    for _ in range(400):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="lies deeper than"):
        rewrite(deep, Origin(PATH))
    with pytest.raises(RequestError, match="of more than 100000 characters"):
        rewrite(obj(x={"enum": [f"{i:050}" for i in range(3000)]}), Origin(PATH))


def test_keys_of_patterns_that_are_left_out_may_still_be_written(accepts: Accepting) -> None:
    """An object that was closed around them would have none."""
    for patterns in ({"^a": {"type": "integer"}, "^ab": {}}, {"^a(?!x)": {"type": "integer"}}):
        for more in ({}, {"properties": {"b": {}}}):
            part = {"type": "object", "patternProperties": patterns, "additionalProperties": False, **more}
            assert accepts(obj(x=part), {"x": {"abc": 1}})


@pytest.mark.parametrize("definitions", [0, 500])
def test_looking_for_faults_is_bounded(definitions: int) -> None:
    """A schema of very many faults, or a large one, is given up as a whole after some compilations."""
    bad = {"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}
    schema = obj(
        **{f"p{i}": bad for i in range(300)}, **{f"r{i}": {"$ref": f"#/$defs/q{i}"} for i in range(definitions)}
    )
    schema["$defs"] = {f"q{i}": obj(a={"type": "integer", "maximum": i}) for i in range(definitions)}
    rewritten = rewrite(schema, Origin(PATH), arguments=True)
    assert list(rewritten.dropped)[-1] == PATH
    assert rewritten.schema == {"type": "object"}


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([{"type": "string", "maxLength": 2}, {"type": "boolean"}, {"const": 1}, {"enum": ["x", "y"]}])


def _objects(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    more = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": st.lists(st.sampled_from(["a", "b", "d"]), unique=True, max_size=2),
            "additionalProperties": st.sampled_from([True, False, {"type": "boolean"}]),
        },
    )
    parts = st.lists(more, min_size=1, max_size=2)
    composed = st.builds(
        lambda base, parts, word: {**base, word: parts}, more, parts, st.sampled_from(["allOf", "anyOf"])
    )
    return st.one_of(more, composed, parts.map(lambda all_of: {"allOf": all_of}), st.just({"$ref": "#/$defs/r"}))


SCHEMAS = st.builds(
    lambda root, target: {**root, "$defs": {"r": target}},
    _objects(st.one_of(LEAVES, _objects(LEAVES), st.just({"type": "array", "items": {"$ref": "#/$defs/r"}}))),
    _objects(LEAVES).filter(lambda target: "$ref" not in target),
)


@settings(max_examples=80, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_closing_keeps_what_compiles_and_lets_nothing_invalid_be_written(schema: Json, seed: int) -> None:
    """What can be written fits the client's own schema, and closing makes no schema impossible."""
    if schema_fault(json.dumps(schema), PATH) is not None:
        return
    accepting = Accepting(tiny_tokenizer())
    assert rewrite(schema, Origin(PATH, strict=True)).dropped == {}
    constraint, output, draw = accepting.grammars.start(accepting.grammar(schema)), list[int](), random.Random(seed)
    while len(output) < 300:
        allowed = [int(token) for token in constraint.mask([]).nonzero()[0]]
        token = END if END in allowed else draw.choice(allowed)
        if token == END:
            text = tiny_tokenizer().decode(output)
            assert [*Draft202012Validator(schema).iter_errors(json.loads(text))] == []
            return
        constraint.commit([token])
        assert constraint.error is None
        output.append(token)


KEYWORDS = [
    *sorted(WORDS_NOT_HELD),
    "then",
    "$defs",
    *sorted(KEYWORDS_OF_SCHEMAS),
    "nullable",
    "$id",
    "$schema",
    "x-guidance",
    "a",
    "b",
]
ANY_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10**6),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(["string", "object", "integer", "#", "#/$defs/a", "#/a", "^(a|b)", "(?=a)", "date", "10**9"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=20,
)


def closed_often(names: int, parts: int, own: int, word: str) -> Json:
    """An object with `names` keys, to which each of `parts` others adds `own` that no other part has."""
    base = obj(**{f"k{number}": {} for number in range(names)})
    added = [[f"x{part}_{number}" for number in range(own)] or ["x"] for part in range(parts)]
    several = [
        {"allOf": [{"$ref": "#/$defs/A"}], "required": keys}
        if word == "required"
        else {word: [{"$ref": "#/$defs/A"}], **obj(**{key: {} for key in keys})}
        for keys in added
    ]
    return {**obj(**{f"p{number}": part for number, part in enumerate(several)}), "$defs": {"A": base}}


@settings(max_examples=60, deadline=None)
@given(
    names=st.integers(0, 400),
    parts=st.integers(1, 60),
    own=st.integers(0, 3),
    word=st.sampled_from(["required", "allOf", "anyOf", "oneOf"]),
)
def test_closing_objects_does_not_multiply_a_schema(names: int, parts: int, own: int, word: str) -> None:
    """What is written for it is at most a few times as long as what came, or it is refused."""
    schema = closed_often(names, parts, own, word)
    size = len(json.dumps(schema))
    try:
        written = rewrite(schema, Origin(PATH)).schema
    except RequestError:
        assert names * parts > 1000
        return
    assert len(json.dumps(written)) <= 7 * size + 20_000


@pytest.mark.parametrize("word", ["required", "allOf", "anyOf", "oneOf"])
def test_objects_with_the_same_keys_share_what_closes_them(word: str) -> None:
    """A schema of 5 KB stays as small, however many objects have its 300 keys; closed they are all the same."""
    schema = closed_often(300, 18, 0, word)
    assert len(json.dumps(rewrite(schema, Origin(PATH)).schema)) < 3 * len(json.dumps(schema))
    accepting, few = Accepting(tiny_tokenizer()), closed_often(2, 3, 0, word)
    assert accepting(few, {"p0": {"k0": 1, "k1": 1, "x": 1}, "p2": {"k0": 1, "k1": 1, "x": 1}})
    assert not accepting(few, {"p0": {"k0": 1, "k1": 1, "x": 1}, "p2": {"k0": 1, "k1": 1, "x": 1, "y": 1}})


@settings(max_examples=150, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), ANY_JSON, max_size=5), strict=st.booleans())
def test_any_json_compiles_or_is_refused(schema: Json, strict: bool) -> None:
    """There is no third outcome; what strictness lets through loses nothing."""
    try:
        rewritten = rewrite(schema, Origin(PATH, strict), arguments=True)
    except RequestError:
        return
    assert schema_fault(json.dumps(rewritten.schema), PATH) is None
    assert not (strict and rewritten.dropped)
