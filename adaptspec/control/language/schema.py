"""The base of every part of a policy file: kebab-case keys, frozen, nothing unknown; its JSON Schema and its errors."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from adaptspec.control.language.yaml_source import Problem, Source, policy_error, shown
from adaptspec.errors import PolicyError

M = TypeVar("M", bound=BaseModel)
_ARM_POLICY = "spec.choose.*.arms.*.policy"
# Keys and values of earlier versions, and what to write instead. A key is its path in the file, where the variant that
# it belongs to is a step of its own; a value follows its key; `*` is any part of a path.
REMOVED: Mapping[str, str] = {
    "spec.choose.algorithm: hedge": "write {algorithm: goodput}, which chooses among the drafters in every round",
    "spec.choose.algorithm: nightjar": "write {algorithm: ucb, scope: global}, which learns for each batch size, too",
    _ARM_POLICY: "an arm is a depth, with a stop rule or a drafter; `when` gives requests a policy",
    "spec.choose.*.horizon-rounds": "leave it out: the cost of catching up is spread over 32 rounds",
    "spec.choose.*.prior-rounds": "leave it out: the estimate of its task counts for 16 rounds of a request",
    "spec.choose.ucb.window": "write discount: 1 - 1 / window, such as 0.99 for 100 rounds",
    "spec.choose.*.scope: batch-bucket": "write global: every scope keeps batch sizes apart",
    "spec.choose.goodput.optimism": "leave it out: rows that do not draft are tried within a budget of time",
    "spec.choose.goodput.discount": "leave it out: what a request showed fades at one rate",
    "spec.choose.slo.horizon-tokens": "leave it out: lost time is made up within 16 tokens",
    "spec.choose.slo.margin": "leave it out, or ask for a shorter time-per-output-token-ms",
    "spec.choose.slo.discount": "leave it out: what a request showed fades at one rate",
    "spec.choose.slo.prior": "leave it out: slo starts from a fixed prior",
    "spec.guard.disable-below-acceptance": "leave it out: never-slower is on, and measures whether drafting pays",
    "spec.guard.min-free-memory": "leave it out: the scheduler never drafts beyond the free cache",
    "spec.guard.dwell-rounds": "leave it out; bandits have dwell-rounds under choose",
    "spec.tasks.*.guard": "give the task another policy: when: [{task: NAME, use: POLICY}]",
    "spec.when.*.batch-size": "write guard.depth-by-batch-size: [[first batch size, last batch size, depth], ...]",
    "spec.draft-temperature.dynamic.score-every": "leave it out: the temperature follows the draft's entropy",
    "spec.draft-temperature.dynamic.gain": "leave it out, or write a range that is nearer to 1",
    "spec.tasks.*.verification": "give the task another policy: when: [{task: NAME, use: POLICY}]",
    "spec.rollout.mode: shadow": "replay a journal with `adaptspec policy simulate --journal FILE --policy NEW`, or "
    "write {mode: canary, percent: 1} to serve a policy to some requests",
}


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
class ReadContext:
    """What a policy is validated with: its text, how policies that it names are found, and those found so far."""

    find: Callable[[str], Any]
    source: Source
    found: dict[str, Any] = field(default_factory=dict)

    def is_itself(self, name: str) -> bool:
        """Whether `name` is the policy itself: its name, or its file."""
        data, path = self.source.data, Path(self.source.path)
        metadata = data.get("metadata") if isinstance(data, dict) else None
        own_name = metadata.get("name") if isinstance(metadata, dict) else None
        # Without a look at the disk: the text may be a client's.
        return name == own_name or os.path.abspath(path.parent / name) == os.path.abspath(path)


def _find(name: str, info: ValidationInfo) -> str:
    context = info.context
    if isinstance(context, ReadContext):
        if context.is_itself(name):
            raise ValueError("a policy cannot use itself; name another policy")
        try:
            context.found[name] = context.find(name)
        except PolicyError as error:
            raise ValueError("; ".join(str(error).splitlines())) from error
    return name


PolicyName = Annotated[str, AfterValidator(_find)]


def without_default(schema: dict[str, Any]) -> None:
    """`json_schema_extra` of a field whose default depends on others: its description says how."""
    schema.pop("default")


class EditorSchema(GenerateJsonSchema):
    """A JSON Schema for people who write: descriptions and defaults, without titles that repeat the keys."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - the base's signature
        return False

    def get_title_from_name(self, name: str) -> str:
        return name


def validate(
    model: type[M],
    data: object,
    source: Source,
    context: ReadContext | None = None,
    unavailable: Mapping[str, str] = MappingProxyType({}),
    *,
    removed: Mapping[str, str] = REMOVED,
) -> M:
    """A model of `data`, which was read from `source`.

    Raises PolicyError: all problems with their lines and columns, and what was probably meant. `unavailable` are values
    that the model would have, had they not failed to load, with the reasons; `removed` are keys and values that it once
    had, as `REMOVED` has them.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # An arm with a removed `policy` had no depth: only the removed key is reported.
        policy_arms = {one["loc"][:-1] for one in errors if fnmatchcase(_path(one["loc"]), _ARM_POLICY)}
        found = [one for one in errors if one["type"] != "missing" or one["loc"][:-1] not in policy_arms]
        schema = _json_schema(model)
        raise policy_error([_problem(source, one, schema, unavailable, removed) for one in found]) from error


@functools.lru_cache(maxsize=4)
def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _problem(
    source: Source,
    error: ErrorDetails,
    schema: Mapping[str, Any],
    unavailable: Mapping[str, str],
    removed: Mapping[str, str],
) -> Problem:
    """One error of pydantic, in the language's words."""
    kind, where, value, context = error["type"], error["loc"], error["input"], error.get("ctx", {})
    unknown_key, unknown_variant = kind in ("extra_forbidden", "invalid_key"), kind == "union_tag_invalid"
    if unknown_variant:
        where, value = (*where, context["discriminator"].strip("'")), context["tag"]
    instead = None
    if unknown_key or unknown_variant or kind == "literal_error":
        path = _path(where) if unknown_key else f"{_path(where)}: {value}"
        instead = next((text for pattern, text in removed.items() if fnmatchcase(path, pattern)), None)
    if instead is not None:
        once = where[-1] if unknown_key else f"{where[-1]} {shown(value)}"
        message = f"there is no {once} any more; {instead}"
    elif unknown_key:
        known = _known_keys(schema, where[:-1])
        there = f"; there are: {', '.join(known)}" if known else ""
        message = f"unknown key{suggestion(str(where[-1]), known)}{there}"
    elif unknown_variant and value in unavailable:
        message = f"there is no {where[-1]} {shown(value)} here: {unavailable[value]}"
    elif unknown_variant:
        known = _words(context["expected_tags"])
        message = f"there is no {where[-1]} {shown(value)}{suggestion(value, known)}; there are: {', '.join(known)}"
    elif kind == "literal_error":
        known = _words(context["expected"])
        message = f"{shown(value)} is not supported{suggestion(str(value), known)}; there are: {', '.join(known)}"
    elif kind == "union_tag_not_found":
        message = f"{context['discriminator']} is missing"
    elif kind == "missing":
        message = f"{where[-1]!r} is missing"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = _known_keys(schema, where)
        message = f"a mapping is needed here{' with ' + ', '.join(keys) if keys else ''}"
    elif kind == "value_error":
        message = error["msg"].removeprefix("Value error, ")
    else:
        given = "" if isinstance(value, (dict, list)) else f", not {shown(value)}"
        message = error["msg"][0].lower() + error["msg"][1:] + given
    return source.problem(where, message, at_key=unknown_key or where[-1:] == ("[key]",))


def _words(listed: str) -> list[str]:
    """The words of `'a', 'b' or 'c'`."""
    return [word.strip("'") for word in re.split(r", | or ", listed)]


def _path(where: Sequence[object]) -> str:
    """A path as `REMOVED` writes it."""
    return ".".join(map(str, where))


def _known_keys(schema: Mapping[str, Any], where: Sequence[object]) -> list[str]:
    """The keys of the mapping at `where`, a path in which variants count as steps, as in pydantic's errors."""
    part = schema
    for step in where:
        mapping = _resolved(schema, part)
        variant = mapping.get("discriminator", {}).get("mapping", {}).get(step)
        children = (
            None if variant is None else {"$ref": variant},
            mapping.get("properties", {}).get(step),
            mapping.get("items"),
            mapping.get("additionalProperties"),
            *mapping.get("patternProperties", {}).values(),
        )
        part = next((child for child in children if child and isinstance(child, dict)), {})
    return list(_resolved(schema, part).get("properties", {}))


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """`part` without references and without the null that an optional field may be instead."""
    part = next((option for option in part.get("anyOf", ()) if option.get("type") != "null"), part)
    if "$ref" in part:
        target: Mapping[str, Any] = schema["$defs"][part["$ref"].rpartition("/")[2]]
        return target
    return part
