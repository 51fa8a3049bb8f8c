"""The YAML language of policies: parse, validate with line and column, build a Policy.

`python -m adaptspec.control.spec` prints the JSON Schema that is committed as policies/policy.schema.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.registry import ChooseSpec
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.cost import CostTable
from adaptspec.control.guards import Dwell, GuardSettings, NeverSlower, Probe, SwitchGuard
from adaptspec.control.policy import Policy
from adaptspec.control.schema import Part, suggestion
from adaptspec.control.stopping import ConfidenceStop, EntropyStop, MarginalGoodputStop, NoStop, StopRule
from adaptspec.control.yaml_source import Source, parse_yaml, read_yaml
from adaptspec.errors import PolicyError

API_VERSION = "adaptspec.dev/v1"
DEEPEST = 64


class MetadataSpec(Part):
    """What a policy is called."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Lower case letters, digits, '-', '.', '_'.")
    description: str = Field(default="", max_length=400)


class NoStopSpec(Part):
    """Draft the whole depth."""

    rule: Literal["none"]


class ConfidenceStopSpec(Part):
    """Stop after a token the draft gave less probability than this."""

    rule: Literal["confidence"]
    threshold: float = Field(ge=0.0, le=1.0)


class EntropyStopSpec(Part):
    """Stop after a token drawn from a distribution of more entropy than this, in nats."""

    rule: Literal["entropy"]
    threshold: float = Field(ge=0.0)


class MarginalGoodputStopSpec(Part):
    """Stop where one more token no longer earns what it costs."""

    rule: Literal["marginal-goodput"]


StopSpec = Annotated[
    NoStopSpec | ConfidenceStopSpec | EntropyStopSpec | MarginalGoodputStopSpec, Field(discriminator="rule")
]
TaskStopSpec = Annotated[NoStopSpec | ConfidenceStopSpec | EntropyStopSpec, Field(discriminator="rule")]


class TaskSpec(Part):
    """What is different for one task."""

    stop: TaskStopSpec


class VerificationSpec(Part):
    """Which drafted tokens are kept. Both methods are lossless."""

    method: Literal["coupled", "rejection"] = "coupled"


class NeverSlowerSpec(Part):
    """Switch speculation off while it delivers less than plain decoding."""

    margin: float = Field(default=0.03, ge=0.0, lt=1.0)
    window_rounds: int = Field(default=16, ge=1, le=10_000)
    losing_windows: int = Field(default=2, ge=1, le=1000)


class ProbeSpec(Part):
    """When speculation that is off is tried again."""

    after_tokens: int = Field(default=256, ge=1)
    backoff: float = Field(default=2.0, ge=1.0, le=100.0)


class GuardSpec(Part):
    """What keeps a policy from losing for long."""

    never_slower: NeverSlowerSpec | None = None
    disable_below_acceptance: float | None = Field(default=None, ge=0.0, le=1.0)
    probe: ProbeSpec = ProbeSpec()
    dwell_rounds: int = Field(default=0, ge=0, le=10_000)
    max_batch_size: int | None = Field(default=None, ge=1)


class BodySpec(Part):
    """The policy itself."""

    choose: ChooseSpec
    tiers: list[Annotated[int, Field(ge=0, le=DEEPEST)]] | None = Field(
        default=None, min_length=1, max_length=DEEPEST + 1
    )
    max_depth: int | None = Field(default=None, ge=0, le=DEEPEST)
    drafters: list[Literal["draft-model", "ngram"]] = Field(default=["draft-model"], min_length=1)
    stop: StopSpec = NoStopSpec(rule="none")
    verification: VerificationSpec = VerificationSpec()
    tasks: dict[str, TaskSpec] = Field(default={})
    guard: GuardSpec = GuardSpec()

    @field_validator("tiers")
    @classmethod
    def _ascending(cls, tiers: list[int] | None) -> list[int] | None:
        if tiers is not None and tiers != sorted(set(tiers)):
            raise ValueError("tiers must ascend, each once, such as [0, 1, 3, 7]")
        return tiers

    @field_validator("drafters")
    @classmethod
    def _one_drafter(cls, drafters: list[str]) -> list[str]:
        if len(drafters) > 1:
            raise ValueError("choosing among drafters is not supported yet; name one")
        return drafters

    @model_validator(mode="after")
    def _fits_together(self) -> BodySpec:
        if self.tiers is not None and self.max_depth is not None:
            raise ValueError("give either tiers or max-depth, not both")
        if self.choose.algorithm != "goodput":
            if self.tiers is not None or self.max_depth is not None:
                raise ValueError(
                    f"algorithm {self.choose.algorithm!r} has depths of its own; leave out tiers and max-depth"
                )
            if self.stop.rule == "marginal-goodput":
                raise ValueError("stop rule 'marginal-goodput' needs the costs that only algorithm 'goodput' weighs")
        return self


class PolicySpec(Part):
    """A policy file."""

    api_version: Literal["adaptspec.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["SpeculationPolicy"]
    metadata: MetadataSpec
    spec: BodySpec

    @property
    def name(self) -> str:
        """The policy's name, as requests and metrics use it."""
        return self.metadata.name

    @property
    def verification(self) -> str:
        """The verification method's name."""
        return self.spec.verification.method

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters it wants."""
        return tuple(self.spec.drafters)

    @property
    def drafts(self) -> bool:
        """Whether it can ever draft: plain decoding needs no drafter."""
        return getattr(self.spec.choose, "depth", None) != 0

    @property
    def tiers(self) -> tuple[int, ...]:
        """Depths allowed beside 0, for algorithms that choose freely."""
        if self.spec.tiers is not None:
            return tuple(tier for tier in self.spec.tiers if tier)
        deepest = 7 if self.spec.max_depth is None else self.spec.max_depth
        return tuple(range(1, deepest + 1))


def load_policy_spec(path: str | Path) -> PolicySpec:
    """Read a policy file.

    Raises:
        PolicyError: `file:line:column: path: what is wrong`.
    """
    return _validate(read_yaml(Path(path)))


def parse_policy_spec(text: str, name: str = "<policy>") -> PolicySpec:
    """The same for text.

    Raises:
        PolicyError: `name:line:column: path: what is wrong`.
    """
    return _validate(parse_yaml(text, name))


def build_policy(spec: PolicySpec, cost: CostTable, max_rows: int, task_names: Sequence[str] = ()) -> Policy:
    """The policy a spec describes. `task_names` are the controller's: task i + 1 is `task_names[i]`.

    Raises:
        PolicyError: it overrides a task that is not among `task_names`.
    """
    body = spec.spec
    parts = Parts(
        cost=cost,
        max_rows=max_rows,
        tasks=1 + len(task_names),
        tiers=spec.tiers,
        drafters=spec.drafters,
        stops=body.stop.rule != "none",
    )
    chooser = body.choose.build(parts)
    calibrated = chooser if isinstance(chooser, Goodput) else None
    return ComposedPolicy(
        chooser,
        spec.drafters,
        max_rows,
        stop=_stop(body.stop, calibrated),
        guard=SwitchGuard(_guard_settings(body.guard), cost) if chooser.max_depth else None,
        dwell=Dwell(body.guard.dwell_rounds, max_rows) if body.guard.dwell_rounds else None,
        max_batch_size=body.guard.max_batch_size,
        task_stops={_task(spec, name, task_names): _stop(task.stop, None) for name, task in body.tasks.items()},
    )


def schema() -> dict[str, Any]:
    """The JSON Schema of policy files."""
    body = PolicySpec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"https://{API_VERSION}/policy", **body}


def _stop(spec: StopSpec | TaskStopSpec, goodput: Goodput | None) -> StopRule:
    if isinstance(spec, ConfidenceStopSpec):
        return ConfidenceStop(spec.threshold)
    if isinstance(spec, EntropyStopSpec):
        return EntropyStop(spec.threshold)
    if isinstance(spec, MarginalGoodputStopSpec) and goodput is not None:
        return MarginalGoodputStop(goodput.calibration)
    return NoStop()


def _guard_settings(spec: GuardSpec) -> GuardSettings:
    slower = spec.never_slower
    return GuardSettings(
        never_slower=None
        if slower is None
        else NeverSlower(slower.margin, slower.window_rounds, slower.losing_windows),
        disable_below_acceptance=spec.disable_below_acceptance,
        probe=Probe(spec.probe.after_tokens, spec.probe.backoff),
    )


def _task(spec: PolicySpec, name: str, task_names: Sequence[str]) -> int:
    if name not in task_names:
        near = suggestion(name, list(task_names))
        raise PolicyError(
            f"policy {spec.name!r}: spec.tasks.{name}: there is no such task{near}; "
            f"there are: {', '.join(task_names) or 'none'}"
        )
    return 1 + list(task_names).index(name)


def _validate(source: Source) -> PolicySpec:
    if not isinstance(source.data, dict):
        raise source.error((), "a policy is a mapping with apiVersion, kind, metadata and spec")
    try:
        return PolicySpec.model_validate(source.data)
    except ValidationError as error:
        raise _located(source, error.errors(include_url=False)[0]) from error


def _located(source: Source, problem: ErrorDetails) -> PolicyError:
    where: tuple[object, ...] = problem["loc"]
    context = problem.get("ctx", {})
    message = re.sub(r"^Value error, ", "", problem["msg"])
    if problem["type"] == "unknown_key":
        return source.error((*where, context["key"]), message, at_key=True)
    if problem["type"] == "missing":
        return source.error(where, f"{where[-1]!r} is missing")
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _unknown_variant(source, where, context)
    if problem["type"] == "literal_error":
        known = [word.strip("'") for word in re.split(r", | or ", context["expected"])]
        near = suggestion(str(problem["input"]), known)
        return source.error(where, f"{problem['input']!r} is not supported{near}; there are: {', '.join(known)}")
    given = "" if isinstance(problem["input"], (dict, list)) else f", not {problem['input']!r}"
    return source.error(where, message[0].lower() + message[1:] + given)


def _unknown_variant(source: Source, where: tuple[object, ...], context: dict[str, Any]) -> PolicyError:
    key = context["discriminator"].strip("'")
    if "tag" not in context:
        return source.error(where, f"{key!r} is missing")
    known = [word.strip("'") for word in context["expected_tags"].split(", ")]
    near = suggestion(context["tag"], known)
    return source.error((*where, key), f"there is no {key} {context['tag']!r}{near}; there are: {', '.join(known)}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
