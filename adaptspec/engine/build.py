"""Putting an engine together from names: models, drafters, policies, cost table.

Knows where policies and the bundled pair live; what each part does is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.library import find_policy, shipped_policies
from adaptspec.control.spec import PolicySpec, build_policy, load_policy_spec
from adaptspec.control.tasks import TASKS
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, Limits
from adaptspec.engine.profile import profiled_costs
from adaptspec.errors import ConfigError
from adaptspec.models.loading import check_pair, check_tokenizer, load_runner, load_tokenizer
from adaptspec.models.runner import Runner
from adaptspec.types import Sink
from adaptspec.verification.registry import method

BUNDLED = "bundled"
AUTO = "auto"


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and how. `model` and `draft` are directories, hub ids, or "bundled".

    `draft` "auto" is the bundled draft for the bundled model and none for any other. `policies` are
    names of shipped policies or paths of YAML files; the first is the default for requests that name
    none (left empty: `goodput`, or `goodput-ngram` without a draft model), and every shipped policy
    whose drafters are at hand can be asked for by name.
    """

    model: str = BUNDLED
    draft: str | None = AUTO
    policies: tuple[str, ...] = ()
    device: str = AUTO
    dtype: str = AUTO
    context: int | None = None
    cache_tokens: int | None = None
    limits: Limits = Limits()

    @property
    def draft_model(self) -> str | None:
        """The draft model to load, if any."""
        if self.draft == AUTO:
            return BUNDLED if self.model == BUNDLED else None
        return self.draft

    @property
    def policy_names(self) -> tuple[str, ...]:
        """The policies to serve, the default first."""
        return self.policies or (("goodput",) if self.draft_model is not None else ("goodput-ngram",))


@dataclass(frozen=True)
class Built:
    """An engine ready to run, with the tokenizer that speaks for it."""

    core: EngineCore
    tokenizer: PreTrainedTokenizerFast
    target: Runner
    drafters: tuple[Drafter, ...]
    specs: tuple[PolicySpec, ...]
    costs: CostTable


def build(config: EngineConfig, sinks: Sequence[Sink] = ()) -> Built:
    """Load the models, measure their costs, read the policies.

    Raises:
        ModelError, PairError: a model cannot be used, or the two do not belong together.
        ConfigError, PolicyError: a setting or a policy cannot be used.
    """
    target = _load(config, resolve_model(config.model, "target"))
    tokenizer = load_tokenizer(resolve_model(config.model, "target"))
    check_tokenizer(tokenizer, target.info)
    drafters: list[Drafter] = []
    if config.draft_model is not None:
        place = resolve_model(config.draft_model, "draft")
        draft = _load(config, place)
        check_pair(tokenizer, load_tokenizer(place), target.info, draft.info)
        drafters.append(DraftModelDrafter(draft))
    drafters.append(NgramDrafter())
    costs = profiled_costs(target, drafters, config.limits.max_rows)
    specs = _specs(config.policy_names, drafters)
    core = assemble(target, drafters, tokenizer, specs=specs, costs=costs, sinks=sinks, limits=config.limits)
    return Built(core, tokenizer, target, tuple(drafters), tuple(specs), costs)


def assemble(
    target: Runner,
    drafters: Sequence[Drafter],
    tokenizer: PreTrainedTokenizerFast,
    *,
    specs: Sequence[PolicySpec],
    costs: CostTable,
    sinks: Sequence[Sink] = (),
    limits: Limits = Limits(),
) -> EngineCore:
    """An engine from parts that are already loaded; the first policy is the default."""
    policies = {spec.name: build_policy(spec, costs, limits.max_rows, TASKS) for spec in specs}
    names = [drafter.name for drafter in drafters]
    controller = Controller(policies, specs[0].name, names, limits.max_rows, cost=costs, task_names=TASKS)
    methods = {spec.name: method(spec.verification) for spec in specs}
    return EngineCore(target, drafters, tokenizer, controller=controller, methods=methods, sinks=sinks, limits=limits)


def resolve_model(name: str, role: str) -> str:
    """The directory of the bundled `role` ("target" or "draft") for "bundled", any other name as it is."""
    return str(Path(__file__).parents[1] / "models" / "bundled" / role) if name == BUNDLED else name


def _load(config: EngineConfig, place: str) -> Runner:
    return load_runner(
        place,
        device=config.device,
        dtype=config.dtype,
        max_rows=config.limits.max_rows,
        cache_tokens=config.cache_tokens,
        context=config.context,
    )


def _specs(wanted: Sequence[str], drafters: Sequence[Drafter]) -> list[PolicySpec]:
    """The policies asked for, then every shipped one that these drafters can run."""
    at_hand = {drafter.name for drafter in drafters}
    specs = [load_policy_spec(find_policy(name)) for name in wanted]
    for spec in specs:
        missing = [name for name in _needed(spec) if name not in at_hand]
        if missing:
            raise ConfigError(
                f"policy {spec.name} drafts with {', '.join(missing)}, which is not loaded: give a draft model "
                "(--draft DIR), or choose a policy that does without, such as goodput-ngram or off"
            )
    names = {spec.name for spec in specs}
    shipped = [load_policy_spec(path) for path in shipped_policies()]
    return specs + [s for s in shipped if s.name not in names and at_hand.issuperset(_needed(s))]


def _needed(spec: PolicySpec) -> tuple[str, ...]:
    """The drafters a policy cannot do without: none if it never drafts."""
    return spec.drafters if spec.drafts else ()
