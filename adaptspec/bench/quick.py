"""The quick benchmark: batch 1, greedy, every contender on every prompt in turn, ratios per workload.

Fixed depths and always-wrong drafts use the policy's drafters. Tasks are detected, as a server does. Speculation is
judged by decode time (first token to last, the draft's catch-up of the prompt included), transformers by the whole
request on both sides.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from adaptspec.bench.contenders import Contender, OwnEngine, Run, TransformersGenerate, wrong
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.control.cost import CostTable
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.tasks import TaskDetector
from adaptspec.drafters import Kind, kind_of
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.engine.profiler import processor
from adaptspec.errors import ConfigError
from adaptspec.simulation.replay import static_spec
from adaptspec.tables import Table

STATIC_DEPTHS = (1, 2, 3, 5, 7)
MODEL_FREE_DEPTHS = (3, 7)
BUSY = 2
# Ends by itself when whoever started it is gone, however that ended.
_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))\n"


@dataclass(frozen=True)
class QuickSettings:
    """How much to run: prompts per task come from the caller; each is run `repeats` times by everyone.

    `policy` is the name of a shipped one, or a YAML file.
    """

    tokens: int = 128
    repeats: int = 5
    policy: str = "goodput"

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.repeats < 1:
            raise ConfigError("a timing needs at least 2 tokens (--tokens) and 1 repeat (--repeats)")


# By contender and task: the runs of each repeat.
Runs = dict[tuple[str, str], list[list[Run]]]


def run_quick(
    config: EngineConfig, workloads: Workloads, settings: QuickSettings, tick: Callable[[], None]
) -> dict[str, Any]:
    """Run everything and return the result object; `tick` is called after each prompt of each repeat.

    Raises:
        ConfigError: there is no such policy, or it needs a draft model and there is none.
    """
    built = build(replace(config, policies=(settings.policy,)))
    settings = replace(settings, policy=built.core.controller.default)
    contenders = _contenders(config, built, settings.policy)
    longest = built.target.info.context - settings.tokens
    runs: Runs = {(c.name, task): [[] for _ in range(settings.repeats)] for c in contenders for task in workloads}
    for contender in contenders:  # warm
        contender.run(encode(built.template, next(iter(workloads.values()))[0], longest), 16)
    for repeat in range(settings.repeats):
        for task, prompts in workloads.items():
            for prompt in prompts:
                ids = encode(built.template, prompt, longest)
                # Whoever goes first meets a colder machine: take turns.
                order = contenders[repeat % len(contenders) :] + contenders[: repeat % len(contenders)]
                for contender in order:
                    runs[contender.name, task][repeat].append(contender.run(ids, settings.tokens))
                tick()
    return _result(runs, workloads, settings, built)


def _contenders(config: EngineConfig, built: Built, policy: str) -> list[Contender]:
    specs = _fixed(built)
    detector = TaskDetector.load() if config.detect_tasks else None
    core = assemble(
        built.target,
        built.drafters,
        built.tokenizer,
        specs=[*built.specs, *specs],
        costs=built.costs,
        limits=config.limits,
        detector=detector,
    )
    hostile = assemble(
        built.target,
        [wrong(drafter, built.target.info.vocab_size) for drafter in built.drafters],
        built.tokenizer,
        specs=[s for s in built.specs if s.name == policy],
        costs=CostTable(built.costs.profile),  # its own: what it learns of wrong drafts is not for the others
        limits=config.limits,
        detector=detector,
    )
    place = model_place(config.model, "target")
    own = dict.fromkeys(["off", *(spec.name for spec in specs), policy])
    return [
        TransformersGenerate(
            place, getattr(torch, built.target.info.dtype), built.target.device, built.target.info.eos_token_ids
        ),
        *(OwnEngine(core, name) for name in own),
        OwnEngine(hostile, policy, "wrong-draft"),
    ]


def _drafter(built: Built) -> str:
    """What the fixed depths draft with: the same as the policy."""
    names = [drafter.name for drafter in built.drafters]
    wanted = built.specs[0].drafters[0]
    return wanted if wanted in names else names[0]


def _fixed(built: Built) -> list[PolicySpec]:
    """Every fixed depth of the policy's drafters."""
    first = _drafter(built)
    model_free = [name for name in built.specs[0].drafters if kind_of(name) is Kind.MODEL_FREE and name != first]
    depths = MODEL_FREE_DEPTHS if kind_of(first) is Kind.MODEL_FREE else STATIC_DEPTHS
    return [
        *(static_spec(depth, first, name=f"fixed-{depth}") for depth in depths),
        *(static_spec(depth, name, name=f"fixed-{name}-{depth}") for name in model_free for depth in MODEL_FREE_DEPTHS),
    ]


def _result(runs: Runs, workloads: Workloads, settings: QuickSettings, built: Built) -> dict[str, Any]:
    tasks = {task: _task_ratios(runs, task, settings.policy) for task in workloads}
    mean = {key: statistics.fmean(row[key]["median"] for row in tasks.values()) for key in next(iter(tasks.values()))}
    return {
        "benchmark": "quick",
        "machine": {
            "processor": processor(),
            "device": built.target.device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "dtype": built.target.info.dtype,
        },
        "models": {"target": built.target.info.parameters, "name": built.target.info.name},
        "settings": {
            "tokens": settings.tokens,
            "repeats": settings.repeats,
            "policy": settings.policy,
            "drafter": _drafter(built),
            "prompts": {task: len(prompts) for task, prompts in workloads.items()},
        },
        "milliseconds_per_token": _speeds(runs),
        "acceptance_length": {task: _acceptance(runs[settings.policy, task]) for task in workloads},
        "mean": mean,
        "worst": {key: min(row[key]["median"] for row in tasks.values()) for key in mean},
        "tasks": tasks,
    }


def _task_ratios(runs: Runs, task: str, policy: str) -> dict[str, dict[str, float]]:
    """Median, lowest and highest ratio over the repeats; each repeat's times are summed over its prompts."""

    def decode(name: str) -> list[float]:
        return [sum(run.decode for run in repeat) for repeat in runs[name, task]]

    def total(name: str) -> list[float]:
        return [sum(run.total for run in repeat) for repeat in runs[name, task]]

    plain = decode("off")
    fixed = {name: decode(name) for name, of in sorted(runs) if of == task and name.startswith("fixed-")}
    best = min([plain, *fixed.values()], key=statistics.median)
    return {
        "plain_over_transformers": _ratio(total("transformers"), total("off")),
        "policy_over_plain": _ratio(plain, decode(policy)),
        "policy_over_plain_whole_request": _ratio(total("off"), total(policy)),
        "policy_over_best_fixed": _ratio(best, decode(policy)),
        "wrong_draft_over_plain": _ratio(plain, decode("wrong-draft")),
        **{f"{name}_over_plain": _ratio(plain, seconds) for name, seconds in fixed.items()},
    }


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def _speeds(runs: Runs) -> dict[str, float]:
    spent: dict[str, list[float]] = {}
    for (name, _), repeats in runs.items():
        spent.setdefault(name, []).extend(run.decode / max(1, len(run.tokens)) for run in chain(*repeats))
    return {name: 1e3 * statistics.median(seconds) for name, seconds in spent.items()}


def _acceptance(repeats: Sequence[Sequence[Run]]) -> dict[str, float]:
    """Accepted and drafted tokens per emitted token."""
    emitted = sum(len(run.tokens) for run in chain(*repeats))
    return {
        "accepted_per_token": sum(run.accepted for run in chain(*repeats)) / emitted,
        "drafted_per_token": sum(run.drafted for run in chain(*repeats)) / emitted,
    }


@contextmanager
def disturbed(count: int = BUSY) -> Iterator[list[int]]:
    """So many processes that only compute, by their ids: a machine that has other work."""
    with ExitStack() as closing:
        started = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", _LOOP, str(os.getpid())])
            closing.callback(process.wait)
            closing.callback(process.kill)
            started.append(process.pid)
        yield started


def quick_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    parts = _ratios(result, "speed ratios (medians; above 1 is faster)")
    if "disturbed" in result:
        parts += _ratios(result["disturbed"], f"the same beside {BUSY} busy processes")
    return parts


def _ratios(result: dict[str, Any], title: str) -> list[Table | str]:
    table = Table("against", *result["tasks"], "mean", "worst", title=title)
    for name, mean in result["mean"].items():
        cells = [row[name]["median"] for row in result["tasks"].values()]
        table.add_row(name.replace("_", " "), *(f"{value:.2f}" for value in [*cells, mean, result["worst"][name]]))
    took = (f"{name.replace('_', ' ')} {value:.3f}" for name, value in result["milliseconds_per_token"].items())
    return [table, f"milliseconds per token: {', '.join(took)}"]
