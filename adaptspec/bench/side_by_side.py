"""Policies side by side on this machine: the same prompts under each in turn, speeds as ratios to the first one's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from adaptspec.bench.workloads import Workloads, encode
from adaptspec.control.cost import CostTable
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.tasks import TaskDetector
from adaptspec.drafting.drafter import make_drafters
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.core import EngineCore
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.profiler import processor
from adaptspec.errors import ConfigError
from adaptspec.request import Request, SamplingParams
from adaptspec.tables import Table
from adaptspec.types import Completion, FloatArray

_DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True)
class SideBySideSettings:
    """`policies` are names of shipped ones or YAML files; `batch` prompts of a task run at once. `cpu_time`: what the
    engine's thread computes is timed, not what passes meanwhile.
    """

    policies: Sequence[str]
    tokens: int = 128
    batch: int = 1
    temperature: float = 0.0
    repeats: int = 1
    cpu_time: bool = False

    def __post_init__(self) -> None:
        if len(self.policies) < 2:
            raise ConfigError("give at least two policies: speeds are ratios to the first one's")
        if self.tokens < 2 or self.batch < 1 or self.repeats < 1:
            raise ConfigError("a timing needs at least 2 tokens (--tokens), a batch of 1 (--batch) and 1 repeat")


def run_side_by_side(
    config: EngineConfig, workloads: Workloads, settings: SideBySideSettings, tick: Callable[[], None]
) -> dict[str, Any]:
    """Run every group of prompts under every policy in turn; `tick` is called after each group.

    Each policy has an engine of its own over the same models: what one learns or remembers is not the others'.

    Raises:
        ConfigError: there is no such policy, or one needs a drafter that is not there.
    """
    config = replace(config, policies=tuple(settings.policies), limits=replace(config.limits, max_rows=settings.batch))
    built = build(config)
    asked = built.specs[: len(settings.policies)]
    engines = {spec.name: _engine(built, spec, config) for spec in asked}
    longest = built.target.info.context - settings.tokens
    groups = [
        (task, [encode(built.template, prompt, longest) for prompt in prompts[i : i + settings.batch]])
        for task, prompts in workloads.items()
        for i in range(0, len(prompts), settings.batch)
    ]
    names, spent = list(engines), np.zeros((len(engines), len(groups), settings.repeats))
    written, drafted = np.zeros_like(spent), np.zeros(len(engines), dtype=np.int64)
    same = [True] * len(engines)
    for repeat in range(settings.repeats):
        # Tasks take turns: a server's traffic is mixed, and a policy may not settle on one of them.
        for at in np.random.default_rng(repeat).permutation(len(groups)).tolist():
            turn = (at + repeat) % len(names)  # whoever goes first meets a colder machine
            found: dict[int, _Answers] = {}
            for which in [*range(turn, len(names)), *range(turn)]:
                found[which] = answers = _timed(engines[names[which]], groups[at][1], settings, at)
                spent[which, at, repeat], written[which, at, repeat] = answers.seconds, answers.tokens
                drafted[which] += answers.drafted
            same = [alike and found[which].texts == found[0].texts for which, alike in enumerate(same)]
            tick()
    tasks = np.array([task for task, _ in groups])
    return {
        "benchmark": "policies",
        "machine": {
            "processor": processor(),
            "device": built.target.device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "settings": {
            "batch": settings.batch,
            "temperature": settings.temperature,
            "tokens": settings.tokens,
            "repeats": settings.repeats,
            "prompts": {task: len(prompts) for task, prompts in workloads.items()},
        },
        "policies": [
            {
                "policy": name,
                "tokens_per_second": float(written[which].sum() / spent[which].sum()),
                "tokens": int(written[which].sum()),
                "drafted": int(drafted[which]),
                "same_text": same[which],
                "over_first": _ratio(spent[0] / written[0], spent[which] / written[which]),
                "tasks": {
                    task: _ratio(spent[0, mine] / written[0, mine], spent[which, mine] / written[which, mine])
                    for task in workloads
                    for mine in (np.flatnonzero(tasks == task),)
                },
            }
            for which, name in enumerate(names)
        ],
    }


def _engine(built: Built, spec: PolicySpec, config: EngineConfig) -> EngineCore:
    return assemble(
        built.target,
        make_drafters(built.loaded),
        built.tokenizer,
        specs=[spec],
        costs=CostTable(built.costs.profile),
        limits=config.limits,
        detector=TaskDetector.load() if config.detect_tasks else None,
    )


class _Answers(NamedTuple):
    """Seconds from the first request to the last one's end, the tokens written meanwhile and drafted for them."""

    seconds: float
    texts: dict[str, tuple[int, ...]]
    drafted: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts.values()))


def _timed(core: EngineCore, prompts: Sequence[tuple[int, ...]], settings: SideBySideSettings, group: int) -> _Answers:
    requests = [
        Request(
            f"{group}-{i}",
            prompt,
            SamplingParams(max_tokens=settings.tokens, temperature=settings.temperature, seed=group * 1000 + i),
        )
        for i, prompt in enumerate(prompts)
    ]
    clock = time.thread_time if settings.cpu_time else time.perf_counter
    started, done = clock(), list[Completion]()
    for request in requests:
        core.check(request)
        core.add(request)
    while len(done) < len(requests):
        done += [delta.completion for delta in core.step() if delta.completion is not None]
    seconds = clock() - started
    return _Answers(seconds, {one.request_id: one.tokens for one in done}, sum(one.stats.drafted for one in done))


def _ratio(first: FloatArray, own: FloatArray) -> dict[str, float]:
    """How much faster than the first: time per token of groups [G, repeats], with the middle 95 % of a bootstrap."""
    ratios = np.median(first / own, axis=1)
    drawn = np.random.default_rng(0).integers(0, len(ratios), (_DRAWS, len(ratios)))
    low, high = np.quantile(np.exp(np.log(ratios)[drawn].mean(axis=1)), [0.025, 0.975]).tolist()
    return {"mean": float(np.exp(np.log(ratios).mean())), "low": low, "high": high}


def side_by_side_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    tasks = list(result["policies"][0]["tasks"])
    settings = result["settings"]
    title = f"speed over the first policy's (batch {settings['batch']}, temperature {settings['temperature']:g})"
    table = Table("policy", "tokens/s", "all", "95 %", *tasks, title=title)
    for row in result["policies"]:
        over, spread = row["over_first"], "{low:.3f}-{high:.3f}".format(**row["over_first"])
        cells = (f"{row['tasks'][task]['mean']:.3f}" for task in tasks)
        table.add_row(row["policy"], f"{row['tokens_per_second']:.0f}", f"{over['mean']:.3f}", spread, *cells)
    return [table]
