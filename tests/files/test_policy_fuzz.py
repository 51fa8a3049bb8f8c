"""Whatever a policy file holds: a policy, or an error with a place. Never anything else."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import ConfigError, PolicyError
from tests.control.helpers import table

PLACE = re.compile(r"^p:\d+:\d+: ")
SHIPPED = [path.read_text() for path in shipped_policies()]
SCHEMA = schema()
PIECES = [*"{}[]:,-?!&*#|>'\"%@`\n \t\\~=<0aé", "!!", "<<: ", "a: ", "- ", "1e9"]
VALUES: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["goodput", "static", "ngram", [0, 1, 3], [[1, 4, 2]], {"rule": "none"}, {"margin": 0.1}, {}, []]),
)


def holds(text: str) -> None:
    """It is a policy, which can be built or says why not, or its errors have places."""
    try:
        spec = parse_policy_spec(text, "p", TaskNames())
    except PolicyError as error:
        refused(str(error))
        return
    with contextlib.suppress(ConfigError):
        build_policy(spec, table(), 2, TaskNames())


def refused(message: str) -> None:
    assert all(PLACE.match(line) or line.startswith("... and") for line in message.splitlines())
    message.encode()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
@example("\x85a: \u2028")
@example("? ? ? a")
@example("&a *a")
@example("a: !<tag:yaml.org,2002:str> b")
@example("!!str : 1")
@example("--- !!map\n...\n%TAG ! x\n")
def test_any_text(text: str) -> None:
    """From no YAML at all to YAML of every kind."""
    holds(text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_anything_like_yaml(parts: list[str]) -> None:
    """The characters that mean something to YAML, in any order."""
    holds("".join(parts))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SHIPPED), st.data())
def test_any_damage_to_what_ships(text: str, data: st.DataObject) -> None:
    """Cut, doubled or overwritten somewhere."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    holds(
        text[:start]
        + data.draw(st.sampled_from(["", "x", "-1", "\n", ": ", "{", "[1]", text[start:end] * 2]))
        + text[end:]
    )


def variants(part: dict[str, Any]) -> list[dict[str, Any]]:
    """What may stand where `part` may: its options, references followed."""
    options = part.get("oneOf") or part.get("anyOf") or [part]
    return [SCHEMA["$defs"][o["$ref"].rpartition("/")[2]] if "$ref" in o else o for o in options]


def numbers(part: dict[str, Any]) -> st.SearchStrategy[object]:
    """At the edges of a range and inside it."""
    low, high = part.get("minimum", part.get("exclusiveMinimum", 0)), part.get("maximum", 8)
    if part["type"] == "integer":
        return st.sampled_from([low, low + 1, min(high, 8), high])
    return st.sampled_from([float(low), (low + high) / 2.0, float(min(high, 8))])


@st.composite
def parts(draw: st.DrawFn, part: dict[str, Any]) -> object:
    """Something that mostly follows the schema."""
    here = draw(st.sampled_from(variants(part)))
    if "properties" in here:
        keys = [k for k in here["properties"] if k in here.get("required", ()) or draw(st.integers(0, 3)) == 0]
        return {key: draw(parts(here["properties"][key])) for key in keys}
    if here.get("type") == "array":
        return [draw(parts(here.get("items", {}))) for _ in range(draw(st.integers(0, 3)))]
    if here.get("type") in ("integer", "number"):
        return draw(numbers(here))
    known = [here["const"]] if "const" in here else here.get("enum")
    return draw(st.sampled_from(known) if known else VALUES)


@settings(max_examples=150, deadline=None)
@given(parts(SCHEMA["$defs"]["BodySpec"]))
def test_whatever_the_schema_allows(body: object) -> None:
    """Parts that are right by themselves need not fit together; then it is said so."""
    whole = {"apiVersion": "adaptspec.dev/v1", "kind": "SpeculationPolicy", "metadata": {"name": "x"}, "spec": body}
    holds(yaml.safe_dump(whole))


def test_what_ships_is_built() -> None:
    """The other side: the strategies above would be content if everything were refused."""
    for path in shipped_policies():
        build_policy(load_policy_spec(path, TaskNames()), table(), 2, TaskNames())
