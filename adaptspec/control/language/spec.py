"""The YAML language of policies: all keys of a file, and which values do not go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from adaptspec.control.algorithms.fixed_depths import StaticSpec
from adaptspec.control.algorithms.registry import ChooseSpec
from adaptspec.control.draft_temperature import DraftTemperatureSpec
from adaptspec.control.guard import GuardSpec
from adaptspec.control.language.schema import EditorSchema, Part, ReadContext, suggestion, without_default
from adaptspec.control.language.verification_spec import CoupledSpec, VerificationSpec
from adaptspec.control.language.yaml_source import Problem, Source, shown
from adaptspec.control.limits import DEEPEST
from adaptspec.control.rollout import LIVE, Rollout, RolloutSpec, TaskName, WhenSpec
from adaptspec.control.stopping import NoStopSpec, StopSpec
from adaptspec.control.tasks import MAX_ADDED, OTHER, TASKS
from adaptspec.drafters import DRAFTERS, Kind, default_drafters, kind_of

API_VERSION = "adaptspec.dev/v1"
_ONLY_NAMED = ", ".join(name for name, entry in DRAFTERS.items() if not entry.by_default)


def _drafter(name: str) -> str:
    if name not in DRAFTERS:
        near = suggestion(name, list(DRAFTERS))
        raise ValueError(f"{shown(name)} is not supported{near}; there are: {', '.join(DRAFTERS)}")
    return name


def _each_once(drafters: list[str]) -> list[str]:
    if len(set(drafters)) < len(drafters):
        raise ValueError("each drafter once, preferred first")
    return drafters


def _depth(tier: Any) -> Any:
    """A tier as a depth. YAML 1.1 reads `off` as false, so what other programs send may be either."""
    if tier == "off" or tier is False:
        return 0
    if not isinstance(tier, int) or isinstance(tier, bool):
        raise ValueError(f"a tier is a number of tokens, or off for none, not {shown(tier)}")
    return tier


def _ascending(tiers: list[int]) -> list[int]:
    if tiers != sorted(set(tiers)):
        raise ValueError("tiers must ascend, each once, such as [off, 1, 3, 7]")
    return tiers


_A_TIER = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": DEEPEST}, {"enum": ["off", False]}]}
Tiers = Annotated[
    list[Annotated[int, Field(ge=0, le=DEEPEST), BeforeValidator(_depth), WithJsonSchema(_A_TIER)]],
    Field(min_length=1, max_length=DEEPEST + 1),
    AfterValidator(_ascending),
]
History = Literal["none", "key", "server"]
Drafter = Annotated[str, AfterValidator(_drafter), Field(json_schema_extra=lambda s: s.update(enum=list(DRAFTERS)))]


class TaskSpec(Part):
    """Settings for the requests of one task."""

    stop: StopSpec | None = Field(default=None, description="A stop rule of its own; absent: the policy's.")
    tiers: Tiers | None = Field(
        default=None, description="The depths it is kept to: what lies between two is lowered. Absent: the policy's."
    )
    max_depth: int | None = Field(default=None, ge=0, le=DEEPEST, description="Its deepest draft.")
    off: bool = Field(default=False, description="Never draft for it.")

    @model_validator(mode="after")
    def _one_bound(self) -> TaskSpec:
        bounds = {"tiers": self.tiers is not None, "max-depth": self.max_depth is not None, "off": self.off}
        given = [name for name, is_there in bounds.items() if is_there]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(given)}, not {len(given)}")
        return self

    @property
    def depths(self) -> Sequence[int] | None:
        """Those that its requests may have, next to 0; None: any."""
        deepest = 0 if self.off else self.max_depth
        return self.tiers if deepest is None else range(deepest + 1)


class MetadataSpec(Part):
    """What a policy is called."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Lower case letters, digits, '-', '.', '_'.")
    description: str = Field(default="", max_length=400, description="One line for lists: when to use it.")


_NO_STOP, _NO_GUARD = NoStopSpec(rule="none"), GuardSpec()


class BodySpec(Part):
    """The policy itself."""

    choose: ChooseSpec = Field(description="The algorithm that chooses depths, and its settings.")
    tiers: Tiers | None = Field(
        default=None,
        description="The depths it may choose, ascending, such as [off, 1, 3, 7]. Absent: any up to max-depth.",
    )
    max_depth: int | None = Field(default=None, ge=0, le=DEEPEST, description="The deepest draft. Absent: 7.")
    max_width: int = Field(
        default=1, ge=1, le=32, description="Most candidates at each position of a draft. 1: drafts do not branch."
    )
    max_nodes: int = Field(default=64, ge=1, le=1024, description="Most tokens that a branching draft submits.")
    drafters: Annotated[list[Drafter], Field(min_length=1), AfterValidator(_each_once)] | None = Field(
        default=None,
        description="What proposes tokens, preferred first. Absent: all that the server has, in the order "
        f"{', '.join(default_drafters(tuple(DRAFTERS)))}; an algorithm that uses one takes the first of these. "
        f"{_ONLY_NAMED} must be named.",
    )
    history: History = Field(
        default="key",
        description="The earlier requests that the counts drafter may draft from, in addition to the request itself. "
        "none: no others; key: those with the same API key; server: all requests whose policies have history: "
        "server. The speed of an answer can reveal that a similar text was served before.",
    )
    when: Annotated[list[WhenSpec], Field(max_length=16)] = Field(
        default=[],
        description="Other policies for some requests that name none, where this is the default policy: the first "
        "whose conditions hold decides.",
    )
    stop: StopSpec = Field(
        default=_NO_STOP,
        validate_default=True,
        json_schema_extra=without_default,
        description="When a draft ends before its depth. Absent: marginal-goodput with goodput and slo, else none.",
    )
    verification: VerificationSpec = Field(default=CoupledSpec(), description="Which drafted tokens are kept.")
    draft_temperature: DraftTemperatureSpec | None = Field(
        default=None, description="Sharpen or flatten the draft's distribution. Absent: leave it as it is."
    )
    tasks: Annotated[dict[TaskName, TaskSpec], Field(max_length=1 + len(TASKS) + MAX_ADDED)] = Field(
        default={},
        description=f"Settings for the requests of a task, by its name: one that is detected from prompts, or a name "
        f"of your choice that requests send. {OTHER!r} are requests without a known task.",
    )
    guard: GuardSpec = Field(
        default=_NO_GUARD,
        validate_default=True,
        json_schema_extra=without_default,
        description="What may overrule the algorithm.",
    )
    rollout: RolloutSpec = Field(default=LIVE, description="Live, or a canary with a share of traffic.")

    @field_validator("stop", mode="before")
    @classmethod
    def _default_stop(cls, stop: Any, info: ValidationInfo) -> Any:
        """The stop rule of the algorithm, where the policy names none."""
        choose = info.data.get("choose")
        return {"rule": choose.default_stop} if stop is _NO_STOP and choose is not None else stop

    @field_validator("guard", mode="before")
    @classmethod
    def _default_guard(cls, guard: Any, info: ValidationInfo) -> Any:
        """Where never-slower is absent, it is on for the algorithms that are `guarded`."""
        choose, written = info.data.get("choose"), {} if guard is _NO_GUARD else guard
        if choose is None or not choose.guarded or not isinstance(written, dict):
            return guard
        return {"never-slower": True} | written

    @model_validator(mode="after")
    def _fits_together(self) -> BodySpec:
        if self.tiers is not None and self.max_depth is not None:
            raise ValueError("give either tiers or max-depth, not both")
        if not self.choose.takes_tiers and (self.tiers is not None or self.max_depth is not None):
            raise ValueError(
                f"algorithm {self.choose.algorithm!r} has depths of its own; leave out tiers and max-depth"
            )
        if self.max_width > 1 and self.verification.method != "coupled":
            raise ValueError(
                f"max-width: {self.max_width} lets drafts branch, which verification {self.verification.method!r} "
                "cannot judge: use coupled, or leave max-width out"
            )
        named = self.drafters or []
        if self.max_width > 1 and named and self._branches_in_vain(named):
            raise ValueError(
                f"max-width: {self.max_width} lets drafts branch, which {self.choose.algorithm!r} prices by a drafter "
                "that runs a model, and there is none: add one, leave max-width out, or choose static depths"
            )
        if len(named) > 1 and not self.choose.takes_drafters:
            raise ValueError(f"algorithm {self.choose.algorithm!r} does not choose among drafters; name one")
        return self

    def with_drafters(self, available: Sequence[str]) -> BodySpec:
        """The same for a server that has the `available` drafters; what the policy names stays.

        Without any drafter it is plain decoding. Drafts branch only where a drafter is left that can price branches.
        """
        if self.drafters is not None:
            return self
        drafters = list(self.choose.default_drafters(default_drafters(available)))
        changes: dict[str, Any] = {"drafters": drafters}
        if not drafters:
            changes |= {"choose": StaticSpec(algorithm="static", depth=0), "tiers": None, "max_depth": None}
        if self._branches_in_vain(drafters):
            changes["max_width"] = 1
        return self.model_copy(update=changes)

    def _branches_in_vain(self, drafters: Sequence[str]) -> bool:
        """Whether the algorithm prices branches by a drafter that runs a model, and none of these does."""
        return self.choose.has_value and all(kind_of(name) is Kind.MODEL_FREE for name in drafters)


class PolicySpec(Part):
    """A policy file."""

    api_version: Literal["adaptspec.dev/v1"] = Field(alias="apiVersion", description="The version of this language.")
    kind: Literal["SpeculationPolicy"] = Field(description="What the file holds.")
    metadata: MetadataSpec = Field(description="What it is called.")
    spec: BodySpec = Field(description="What it does.")
    _used: Mapping[str, PolicySpec] = PrivateAttr(default_factory=dict)
    _source: Source = PrivateAttr(default=Source("<policy>", {}, {}, {}))

    def model_post_init(self, context: Any) -> None:
        """Keep the policies that it names, which were found as it was read, and where its values stand."""
        if isinstance(context, ReadContext):
            self._used = dict(context.found)
            self._source = context.source

    @property
    def used(self) -> Mapping[str, PolicySpec]:
        return self._used

    @property
    def source(self) -> Source:
        """The text that it was read from, which says where its values stand."""
        return self._source

    @property
    def path(self) -> Path:
        """The file that it was read from."""
        return Path(self._source.path)

    def with_body(self, body: BodySpec, used: Mapping[str, PolicySpec]) -> PolicySpec:
        """The same with another `spec`, and others for the policies that it uses. Nothing is checked."""
        copy = self.model_copy(update={"spec": body})
        copy._used = dict(used)
        return copy

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def verification(self) -> VerificationSpec:
        """Which drafted tokens are kept: a method's name and its parameters."""
        return self.spec.verification

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that it names, or that `with_drafters` gave it; else none."""
        return tuple(self.spec.drafters or ())

    def with_drafters(self, available: Sequence[str]) -> PolicySpec:
        """The same for a server that has the `available` drafters, preferred first: see `BodySpec.with_drafters`.

        The policies that it uses are treated alike.
        """
        used = {name: other.with_drafters(available) for name, other in self.used.items()}
        body = self.spec.with_drafters(available)
        if body is self.spec and all(used[name] is other for name, other in self.used.items()):
            return self
        return self.with_body(body, used)

    @property
    def history(self) -> History:
        return self.spec.history

    @property
    def needed(self) -> Mapping[str, tuple[object, ...]]:
        """The drafters that it cannot do without, and where the file names each."""
        if not self.drafts:
            return {}
        arms = getattr(self.spec.choose, "arms", None) or ()
        found: dict[str, tuple[object, ...]] = {
            arm.drafter: ("spec", "choose", "arms", number, "drafter")
            for number, arm in reversed(list(enumerate(arms)))
            if arm.drafter is not None
        }
        return found | {name: ("spec", "drafters", number) for number, name in enumerate(self.drafters)}

    @property
    def rollout(self) -> Rollout:
        return self.spec.rollout

    @property
    def drafts(self) -> bool:
        """Whether it can ever draft: plain decoding needs no drafter."""
        return getattr(self.spec.choose, "depth", None) != 0

    @property
    def tiers(self) -> tuple[int, ...]:
        """Depths allowed in addition to 0, for algorithms that choose freely."""
        if self.spec.tiers is not None:
            return tuple(tier for tier in self.spec.tiers if tier)
        most = self.spec.max_depth
        tiers = self.spec.choose.default_tiers if most is None else range(1, most + 1)
        return tuple(tier for tier in tiers if tier)

    def notes(self, *, default: bool = True) -> list[Problem]:
        """What is allowed and may not be meant: tasks that no prompt is ever detected as, and `when:` in a policy that
        is not the `default`, which a canary never is.
        """
        notes = []
        if self.spec.when and not (default and self.rollout == LIVE):
            message = "`when` counts only in the default policy, which this one is not"
            notes.append(self.source.problem(("spec", "when"), message, at_key=True))
        named: list[tuple[tuple[object, ...], str]] = [(("spec", "tasks", name), name) for name in self.spec.tasks]
        for number, when in enumerate(self.spec.when):
            named += [(("spec", "when", number, "task"), name) for name in when.tasks]
        for where, name in named:
            if name not in TASKS and name != OTHER:
                message = (
                    f"no prompt is detected as {name!r} (detected are: {', '.join(TASKS)}); this applies only to "
                    f'requests that name it: {{"adaptspec": {{"task": "{name}"}}}}'
                )
                notes.append(self.source.problem(where, message, at_key=True))
        return notes

    def clashes(self) -> list[Problem]:
        """Values that are wrong only together with others."""
        if not self.spec.choose.takes_tiers:  # it has depths of its own
            return []
        depths, problems = (0, *self.tiers), []
        for name, task in self.spec.tasks.items():
            other = next((tier for tier in task.tiers or () if tier not in depths), None)
            if other is not None:
                message = f"{other} is none of the policy's depths ({', '.join(map(str, depths))})"
                problems.append(self.source.problem(("spec", "tasks", name, "tiers"), message))
        return problems


def schema() -> dict[str, Any]:
    """The JSON Schema of policy files."""
    body = PolicySpec.model_json_schema(by_alias=True, schema_generator=EditorSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"https://{API_VERSION}/policy", **body}
