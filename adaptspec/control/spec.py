"""The YAML language of policies: parse, validate with line and column, build a Policy.

`python -m adaptspec.control.spec` prints the JSON Schema that is committed as policies/policy.schema.json.
"""

from __future__ import annotations

import difflib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from adaptspec.control.ceilings import DEEPEST, Bounds, Ceilings, TaskTiers
from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.choosers.registry import ChooseSpec
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.cost import CostTable
from adaptspec.control.draft_temperature import DraftTemperatureSpec
from adaptspec.control.guards import Dwell, GuardSpec
from adaptspec.control.labels import MOST_OWN, OTHER, Labels
from adaptspec.control.library import find_policy, shipped_policies, unknown_policy
from adaptspec.control.policy import Policy
from adaptspec.control.rollout import LIVE, Rollout, RolloutSpec
from adaptspec.control.schema import EditorSchema, Part, Uses, suggestion
from adaptspec.control.spec_errors import problems_of
from adaptspec.control.stopping.registry import StopSpec
from adaptspec.control.stopping.stop import NoStopSpec
from adaptspec.control.task_spec import TaskSpec, Tiers
from adaptspec.control.tasks import TASKS
from adaptspec.control.verification_spec import CoupledSpec, VerificationSpec
from adaptspec.control.when import Switched, WhenSpec, case
from adaptspec.control.yaml_source import Source, parse_yaml, policy_error, read_yaml, shown
from adaptspec.drafters import DRAFTERS
from adaptspec.errors import PolicyError
from adaptspec.types import LABEL_WORDS, is_label

API_VERSION = "adaptspec.dev/v1"


def _label(name: str) -> str:
    """A task's name. One that is nearly that of a known task is more likely a slip than a task of one's own."""
    if not is_label(name):
        raise ValueError(f"a task's name must be {LABEL_WORDS}")
    near = [] if name in TASKS else difflib.get_close_matches(name.lower(), TASKS, n=1, cutoff=0.85)
    if near:
        raise ValueError(f"did you mean {near[0]!r}? A task of your own needs a name that is less like a known one's")
    return name


def _drafter(name: str) -> str:
    if name not in DRAFTERS:
        near = suggestion(name, list(DRAFTERS))
        raise ValueError(f"{shown(name)} is not supported{near}; there are: {', '.join(DRAFTERS)}")
    return name


def _each_once(drafters: list[str]) -> list[str]:
    if len(set(drafters)) < len(drafters):
        raise ValueError("each drafter once, preferred first")
    return drafters


Drafter = Annotated[str, AfterValidator(_drafter), Field(json_schema_extra=lambda s: s.update(enum=list(DRAFTERS)))]
TaskName = Annotated[str, AfterValidator(_label), Field(examples=[*TASKS, OTHER])]


class MetadataSpec(Part):
    """What a policy is called."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Lower case letters, digits, '-', '.', '_'.")
    description: str = Field(default="", max_length=400, description="One line for lists: when to use it.")


class BodySpec(Part):
    """The policy itself."""

    choose: ChooseSpec = Field(description="The algorithm that chooses depths, and its settings.")
    tiers: Tiers | None = Field(
        default=None,
        description="The depths it may choose, ascending, such as [off, 1, 3, 7]. Absent: any up to max-depth.",
    )
    max_depth: int | None = Field(default=None, ge=0, le=DEEPEST, description="The deepest draft. Absent: 7.")
    drafters: Annotated[list[Drafter], AfterValidator(_each_once)] = Field(
        default=["draft-model"], min_length=1, description="What proposes tokens, preferred first."
    )
    when: Annotated[list[WhenSpec], Field(max_length=16)] = Field(
        default=[], description="Other policies for some requests or rounds: the first whose conditions hold decides."
    )
    stop: StopSpec = Field(default=NoStopSpec(rule="none"), description="When a draft ends before its depth.")
    verification: VerificationSpec = Field(default=CoupledSpec(), description="Which drafted tokens are kept.")
    draft_temperature: DraftTemperatureSpec | None = Field(
        default=None, description="Sharpen or flatten the draft's distribution. Absent: leave it as it is."
    )
    tasks: Annotated[dict[TaskName, TaskSpec], Field(max_length=1 + len(TASKS) + MOST_OWN)] = Field(
        default={},
        description=f"What is different for requests of a task, by its name: one that prompts are told by, or one of "
        f"your own that requests name. {OTHER!r} are those of no known task.",
    )
    guard: GuardSpec = Field(default=GuardSpec(), description="What may overrule the algorithm.")
    rollout: RolloutSpec = Field(default=LIVE, description="Live, a canary with a share of traffic, or only watching.")

    @model_validator(mode="after")
    def _fits_together(self) -> BodySpec:
        if self.tiers is not None and self.max_depth is not None:
            raise ValueError("give either tiers or max-depth, not both")
        if not getattr(self.choose, "takes_tiers", False) and (self.tiers is not None or self.max_depth is not None):
            raise ValueError(
                f"algorithm {self.choose.algorithm!r} has depths of its own; leave out tiers and max-depth"
            )
        if len(self.drafters) > 1 and not getattr(self.choose, "takes_drafters", False):
            raise ValueError(f"algorithm {self.choose.algorithm!r} does not choose among drafters; name one")
        return self


class PolicySpec(Part):
    """A policy file."""

    api_version: Literal["adaptspec.dev/v1"] = Field(alias="apiVersion", description="The version of this language.")
    kind: Literal["SpeculationPolicy"] = Field(description="What the file holds.")
    metadata: MetadataSpec = Field(description="What it is called.")
    spec: BodySpec = Field(description="What it does.")
    _used: Mapping[str, PolicySpec] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Keep the policies that it names, which were found as it was read."""
        self._used = dict(context.found) if isinstance(context, Uses) else {}

    @property
    def used(self) -> Mapping[str, PolicySpec]:
        """The policies that it names in `when:` and as arms."""
        return self._used

    @property
    def name(self) -> str:
        """The policy's name, as requests and metrics use it."""
        return self.metadata.name

    @property
    def verification(self) -> VerificationSpec:
        """Which drafted tokens are kept: a method's name and its parameters."""
        return self.spec.verification

    @property
    def task_verifications(self) -> dict[str, VerificationSpec]:
        """The same for tasks that have a method of their own, by name."""
        return {name: task.verification for name, task in self.spec.tasks.items() if task.verification is not None}

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters it wants."""
        return tuple(self.spec.drafters)

    @property
    def needed(self) -> tuple[str, ...]:
        """The drafters it cannot do without: none if it never drafts."""
        return self.drafters if self.drafts else ()

    @property
    def rollout(self) -> Rollout:
        """Whether it serves, takes a share, or only watches."""
        return self.spec.rollout

    @property
    def drafts(self) -> bool:
        """Whether it can ever draft: plain decoding needs no drafter."""
        return getattr(self.spec.choose, "depth", None) != 0

    @property
    def tiers(self) -> tuple[int, ...]:
        """Depths allowed beside 0, for algorithms that choose freely."""
        if self.spec.tiers is not None:
            return tuple(tier for tier in self.spec.tiers if tier)
        default: tuple[int, ...] = getattr(self.spec.choose, "default_tiers", tuple(range(8)))
        tiers = default if self.spec.max_depth is None else range(1, self.spec.max_depth + 1)
        return tuple(tier for tier in tiers if tier)

    def refused_tier(self, task: TaskSpec) -> int | None:
        """A tier of a task that the policy itself never runs at; None if there is none."""
        if not getattr(self.spec.choose, "takes_tiers", False):
            return None  # its algorithm has depths of its own
        return next((tier for tier in task.tiers or () if tier and tier not in self.tiers), None)


Find = Callable[[str], PolicySpec]


def found_anywhere(name: str) -> PolicySpec:
    """The policy that a file of this machine names: one that ships, or a file. Raises PolicyError."""
    return load_policy_spec(find_policy(name), find=_found_no_further)


def found_among(served: Mapping[str, PolicySpec]) -> Find:
    """For a policy that somebody sends: it may name what is served and what ships, but no files of this machine."""

    def find(name: str) -> PolicySpec:
        shipped = {path.stem: path for path in shipped_policies()}
        if name not in served and name not in shipped:
            known = list(dict.fromkeys([*served, *shipped]))
            there = (
                "a policy that is sent uses others by their names, no files; here are: "
                f"{', '.join(known)}; or serve the file first (--policy FILE)"
            )
            raise unknown_policy(name, known, there)
        if name not in served:
            return load_policy_spec(shipped[name], find=_found_no_further)
        if served[name].used:
            raise PolicyError(f"{name} uses {', '.join(served[name].used)}, so no other policy can use it")
        return served[name]

    return find


def load_policy_spec(
    path: str | Path,
    labels: Labels | None = None,
    here: Sequence[str] | None = None,
    find: Find = found_anywhere,
) -> PolicySpec:
    """Read a policy file. `labels` and the drafters that are `here`, where given, are what it will run with.

    `find` gives the policies that it names.

    Raises:
        PolicyError: `file:line:column: path: what is wrong`, a line for each thing that is.
    """
    return _validate(read_yaml(Path(path)), labels, here, find)


def parse_policy_spec(
    text: str,
    name: str = "<policy>",
    labels: Labels | None = None,
    here: Sequence[str] | None = None,
    find: Find = found_anywhere,
) -> PolicySpec:
    """The same for text; `name` stands for the file in errors.

    Raises:
        PolicyError: `name:line:column: path: what is wrong`, a line for each thing that is.
    """
    return _validate(parse_yaml(text, name), labels, here, find)


def build_policy(spec: PolicySpec, cost: CostTable, max_rows: int, labels: Labels | None = None) -> Policy:
    """The policy a spec describes. `labels` are the controller's: names that are new to them are added.

    Raises:
        PolicyError: it names more tasks than there is room for, or its arms do not fit.
    """
    body, labels = spec.spec, labels or Labels()

    def arm(name: str) -> Policy:
        return build_policy(spec.used[name], cost, max_rows, labels)

    parts = Parts(
        cost=cost,
        max_rows=max_rows,
        tasks=labels.tasks.size,
        tiers=spec.tiers,
        drafters=spec.drafters,
        stops=body.stop.rule != "none",
        policy=arm,
        labels=labels,
    )
    chooser = body.choose.build(parts)
    overrides = {_task(spec, name, labels): task for name, task in body.tasks.items()}
    stops = {task: override.stop for task, override in overrides.items() if override.stop is not None}
    weighs = "marginal-goodput" in {body.stop.rule, *(stop.rule for stop in stops.values())}
    keeper = None
    if weighs and chooser.max_depth and not getattr(body.choose, "has_outlook", False):
        settings = GoodputSettings(tuple(range(1, 1 + chooser.max_depth)), spec.drafters)
        keeper = Goodput(cost, max_rows, parts.tasks, settings)
    usual = ComposedPolicy(
        chooser,
        spec.drafters,
        stop=body.stop.build(),
        guard=body.guard.switch(cost) if chooser.max_depth else None,
        dwell=_dwell(spec, overrides, max_rows),
        ceilings=_ceilings(spec, overrides, parts.tasks) if chooser.max_depth else None,
        task_tiers=_task_tiers(overrides, parts.tasks, chooser.max_depth),
        task_stops={task: stop.build() for task, stop in stops.items()},
        keeper=keeper,
        temperature=None if body.draft_temperature is None else body.draft_temperature.build(),
    )
    if not body.when:
        return usual
    policies = {one.use: arm(one.use) for one in body.when}
    return Switched(usual, [case(one, policies[one.use], labels.keys) for one in body.when])


def schema() -> dict[str, Any]:
    """The JSON Schema of policy files."""
    body = PolicySpec.model_json_schema(by_alias=True, schema_generator=EditorSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"https://{API_VERSION}/policy", **body}


def _ceilings(spec: PolicySpec, overrides: Mapping[int, TaskSpec], tasks: int) -> Ceilings | None:
    usual = Bounds().over(spec.spec.guard)
    deepest = {task: override.deepest for task, override in overrides.items()}
    bound = {task: depth for task, depth in deepest.items() if depth is not None}
    own = {task: override.guard.over(usual) for task, override in overrides.items()}
    differing = {task: bounds for task, bounds in own.items() if bounds != usual}
    return Ceilings(usual, bound, tasks, differing) if bound or differing or usual != Bounds() else None


def _dwell(spec: PolicySpec, overrides: Mapping[int, TaskSpec], max_rows: int) -> Dwell | None:
    usual = spec.spec.guard.dwell_rounds
    own = {task: override.guard.dwell_rounds for task, override in overrides.items()}
    differing = {task: rounds for task, rounds in own.items() if rounds is not None}
    return Dwell(usual, max_rows, differing) if usual or any(differing.values()) else None


def _task_tiers(overrides: Mapping[int, TaskSpec], tasks: int, deepest: int) -> TaskTiers | None:
    own = {task: override.tiers for task, override in overrides.items() if override.tiers is not None}
    return TaskTiers(own, tasks, deepest) if own else None


@functools.cache
def _schema() -> dict[str, Any]:
    return schema()


def _task(spec: PolicySpec, name: str, labels: Labels) -> int:
    number = labels.tasks.add(name)
    if not number and name != OTHER:
        raise PolicyError(f"policy {spec.name!r}: spec.tasks.{name}: {_no_room(labels)}")
    return number


def _no_room(labels: Labels) -> str:
    own = labels.tasks.own
    return (
        f"there is no room for one more task: requests and policies have named {len(own)} of their own already "
        f"({', '.join(own[:5])}{' ...' if len(own) > 5 else ''}); write {OTHER!r}, or start anew without them"
    )


def _not_here(drafter: str, here: Sequence[str]) -> str:
    model = "give a draft model (--draft DIR), or " if DRAFTERS[drafter].needs_draft else ""
    return (
        f"drafts with {drafter}, which this server does not have: {model}choose a policy that does without, such as "
        f"goodput-ngram or off; it has: {', '.join(here) or 'none'}"
    )


def _found_no_further(name: str) -> PolicySpec:
    raise PolicyError(f"another policy uses this one, so it cannot use {name!r}: name that one there")


def _validate(source: Source, labels: Labels | None, here: Sequence[str] | None, find: Find) -> PolicySpec:
    if not isinstance(source.data, dict):
        raise source.error((), "a policy is a mapping with apiVersion, kind, metadata and spec")
    try:
        spec = PolicySpec.model_validate(source.data, context=Uses(find))
    except ValidationError as error:
        raise policy_error(problems_of(source, error, _schema())) from error
    own = [] if labels is None else [name for name in spec.spec.tasks if name not in labels.tasks]
    if labels is not None and len(own) > labels.tasks.left:
        where = ("spec", "tasks", own[labels.tasks.left])
        raise source.error(where, _no_room(labels), at_key=True)
    missing = [] if here is None else [name for name in spec.needed if name not in here]
    if missing:
        raise source.error(("spec", "drafters", spec.drafters.index(missing[0])), _not_here(missing[0], here or ()))
    problems = [source.problem(where, said) for where, said in _clashes(spec)]
    if problems:
        raise policy_error(problems)
    return spec


def _clashes(spec: PolicySpec) -> Iterator[tuple[tuple[object, ...], str]]:
    """What parts of a policy hold against each other: where, and what is wrong."""
    for name, task in spec.spec.tasks.items():
        tier = spec.refused_tier(task)
        if tier is not None:
            known = ", ".join(map(str, (0, *spec.tiers)))
            yield ("spec", "tasks", name, "tiers"), f"{tier} is none of the policy's depths ({known})"
    for number, one in enumerate(spec.spec.when):
        other = spec.used[one.use]
        if other.verification != spec.verification or other.task_verifications:
            said = (
                f"{one.use} verifies otherwise; a request is verified in one way, which is this policy's: give both "
                "the same verification"
            )
            yield ("spec", "when", number, "use"), said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
