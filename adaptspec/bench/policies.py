"""Policies side by side on this machine: the same prompts under each in turn, speeds as ratios to the first one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptspec.bench.contenders import EngineContender, policy_engine
from adaptspec.bench.core import Group, compare, compared_table
from adaptspec.bench.setup import described, title_of
from adaptspec.bench.workloads import Workloads
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafters import default_drafters
from adaptspec.engine.build import Built
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.request import SamplingParams
from adaptspec.simulation.simulator import static_spec
from adaptspec.tables import Table

FIXED_DEPTHS = (1, 3, 7)


@dataclass(frozen=True)
class PolicySettings:
    """`batch` prompts of a task run at once, `repeats` times."""

    tokens: int = 128
    batch: int = 1
    temperature: float = 0.0
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.batch < 1 or self.repeats < 1:
            raise ConfigError("a timing needs at least 2 tokens (--tokens), a batch of 1 (--batch) and 1 repeat")


def policy_config(config: EngineConfig, policies: Sequence[str], batch: int) -> EngineConfig:
    """The configuration to build. `policies` are names of shipped ones or YAML files; a single one is a ConfigError."""
    if len(policies) == 1:
        raise ConfigError("give at least two policies, since speeds are ratios to the first one's, or none")
    return replace(config, policies=tuple(policies), limits=replace(config.limits, max_rows=batch))


def policy_specs(built: Built, config: EngineConfig) -> list[PolicySpec]:
    """The policies of the configuration; without any plain decoding, fixed depths of the first drafter, the default."""
    if config.policies:
        return list(built.specs[: len(config.policies)])
    off = next(spec for spec in built.specs if spec.name == "off")
    first = default_drafters([drafter.name for drafter in built.drafters])[0]
    return [off, *(static_spec(depth, first) for depth in FIXED_DEPTHS), built.specs[0]]


def policy_groups(workloads: Workloads, batch: int) -> list[Group]:
    """The prompts of each task, `batch` at once."""
    chunks = [
        (task, prompts[i : i + batch]) for task, prompts in workloads.items() for i in range(0, len(prompts), batch)
    ]
    return [Group(number, task, prompts) for number, (task, prompts) in enumerate(chunks)]


def run_policies(
    built: Built, config: EngineConfig, workloads: Workloads, settings: PolicySettings, tick: Callable[[], None]
) -> dict[str, Any]:
    """Run every group of prompts under every policy in turn; `tick` is called after each group."""
    sampling = SamplingParams(max_tokens=settings.tokens, temperature=settings.temperature)
    contenders = [
        EngineContender(spec.name, policy_engine(built, config, spec, settings.batch), built, sampling)
        for spec in policy_specs(built, config)
    ]
    groups = policy_groups(workloads, settings.batch)
    return {
        "benchmark": "policies",
        "setup": described(built, config),
        "settings": {
            "batch": settings.batch,
            "temperature": settings.temperature,
            "tokens": settings.tokens,
            "repeats": settings.repeats,
            "prompts": {task: len(prompts) for task, prompts in workloads.items()},
        },
        "policies": compare(contenders, groups, settings.repeats, tick),
    }


def policies_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    settings = result["settings"]
    how = f"batch {settings['batch']}, temperature {settings['temperature']:g}"
    return [compared_table(result["policies"], f"{how}: {title_of(result['setup'])}")]
