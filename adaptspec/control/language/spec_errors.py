"""What pydantic found wrong with a policy file in our words: where it stands, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from adaptspec.control.algorithms.registry import INSTALLED
from adaptspec.control.language.schema import suggestion
from adaptspec.control.language.yaml_source import Problem, Source, shown

_ARM_POLICY = "spec.choose.*.arms.*.policy"
_NO_MAPPING = ("model_type", "model_attributes_type", "dict_type")
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


def problems_of(source: Source, error: ValidationError, schema: Mapping[str, Any]) -> list[Problem]:
    """Everything pydantic found wrong with `source`, which is to follow `schema`."""
    errors = error.errors(include_url=False)
    # An arm with a removed `policy` had no depth: only the removed key is reported.
    policy_arms = {one["loc"][:-1] for one in errors if fnmatchcase(_path(one["loc"]), _ARM_POLICY)}
    found = [one for one in errors if one["type"] != "missing" or one["loc"][:-1] not in policy_arms]
    return [_problem(source, one, schema) for one in found]


def known_keys(schema: Mapping[str, Any], where: Sequence[object]) -> list[str]:
    """The keys that `schema` has for the mapping at `where`, a path as pydantic tells it (variants count as steps)."""
    here: Mapping[str, Any] = schema
    for step in where:
        here = _below(_resolved(schema, here), step)
    return list(_resolved(schema, here).get("properties", {}))


def _resolved(schema: Mapping[str, Any], here: Mapping[str, Any]) -> Mapping[str, Any]:
    """`here` without references and without the null that an optional field may be instead."""
    for option in here.get("anyOf", ()):
        if option.get("type") != "null":
            here = option
            break
    if "$ref" in here:
        target: Mapping[str, Any] = schema["$defs"][here["$ref"].rpartition("/")[2]]
        return target
    return here


def _below(here: Mapping[str, Any], step: object) -> Mapping[str, Any]:
    variants = here.get("discriminator", {}).get("mapping", {})
    if step in variants:
        return {"$ref": variants[step]}
    below = here.get("properties", {}).get(step) or here.get("items") or here.get("additionalProperties")
    for pattern in here.get("patternProperties", {}).values():
        below = below or pattern
    return below if isinstance(below, dict) else {}


def _problem(source: Source, problem: ErrorDetails, schema: Mapping[str, Any]) -> Problem:
    where, kind = problem["loc"], problem["type"]
    context = problem.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        instead = _instead_of(where)
        if instead is not None:
            return source.problem(where, f"there is no {where[-1]} any more; {instead}", at_key=True)
        known = known_keys(schema, where[:-1])
        near = suggestion(str(where[-1]), known)
        there = f"; there are: {', '.join(known)}" if known else ""
        return source.problem(where, f"unknown key{near}{there}", at_key=True)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _unknown_variant(source, where, context)
    if kind == "missing":
        return source.problem(where, f"{where[-1]!r} is missing")
    if kind in _NO_MAPPING:
        keys = known_keys(schema, where)
        return source.problem(where, f"a mapping is needed here{' with ' + ', '.join(keys) if keys else ''}")
    instead = _instead_of(where, problem["input"]) if kind == "literal_error" else None
    message = f"there is no {where[-1]} {shown(problem['input'])} any more; {instead}" if instead else _message(problem)
    return source.problem(where, message, at_key=where[-1:] == ("[key]",))


def _instead_of(where: Sequence[object], value: object = None) -> str | None:
    """What to write instead of a removed key, or of a removed value of a key; None: none such was removed."""
    path = _path(where) + ("" if value is None else f": {value}")
    return next((instead for pattern, instead in REMOVED.items() if fnmatchcase(path, pattern)), None)


def _path(where: Sequence[object]) -> str:
    """A path as `REMOVED` writes it."""
    return ".".join(map(str, where))


def _message(problem: ErrorDetails) -> str:
    """What is wrong with a value."""
    kind, value, message = problem["type"], problem["input"], problem["msg"]
    if kind == "literal_error":
        known = [word.strip("'") for word in re.split(r", | or ", problem["ctx"]["expected"])]
        return f"{shown(value)} is not supported{suggestion(str(value), known)}; there are: {', '.join(known)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    given = "" if isinstance(value, (dict, list)) else f", not {shown(value)}"
    return message[0].lower() + message[1:] + given


def _unknown_variant(source: Source, where: Sequence[object], context: Mapping[str, Any]) -> Problem:
    key = context["discriminator"].strip("'")
    if "tag" not in context:
        return source.problem(where, f"{key!r} is missing")
    instead = _instead_of((*where, key), context["tag"])
    if instead is not None:
        return source.problem((*where, key), f"there is no {key} {shown(context['tag'])} any more; {instead}")
    failed = INSTALLED.failed.get(context["tag"]) if key == "algorithm" else None
    if failed is not None:
        return source.problem((*where, key), f"there is no algorithm {shown(context['tag'])} here: {failed}")
    known = [word.strip("'") for word in context["expected_tags"].split(", ")]
    near = suggestion(context["tag"], known)
    there = f"there is no {key} {shown(context['tag'])}{near}; there are: {', '.join(known)}"
    return source.problem((*where, key), there)
