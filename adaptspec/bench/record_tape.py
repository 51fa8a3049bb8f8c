"""Recording tapes: the target answers the workloads by plain decoding, then every drafter is asked at every position.

`bench record` writes one tape of all tasks and temperatures, which `policy simulate` replays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch

from adaptspec.bench.setup import processor
from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.engine.build import Built
from adaptspec.engine.warm_up import warm_up
from adaptspec.errors import ConfigError
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.simulation.tape import Tape, join, recorded

_COST_SECONDS = 30.0  # of synthetic rounds: slow models reach more sizes than at a start
# Positions kept after the token that ends a request: a draft may reach so far past it.
_BEYOND = 16


@dataclass(frozen=True)
class RecordSettings:
    """What to record: tokens per answer, temperatures, and the seed that the requests' seeds are made of. `history`:
    drafters that learn from other requests have those before it of the same temperature.
    """

    tokens: int = 160
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seed: int = 0
    history: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 2:
            raise ConfigError(f"--tokens is {self.tokens}; a tape needs answers of at least 2")
        if not self.temperatures:
            raise ConfigError("give at least one temperature to record at")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)  # raises RequestError for one that no request can have


def record(built: Built, workloads: Workloads, settings: RecordSettings, tick: Callable[[], None]) -> Tape:
    """Record every prompt at every temperature. `tick` is called twice for each: once written, once judged.

    Raises:
        ConfigError: the context is too short for the answers, the caches are too small, or the draft model has another
            tokenizer.
    """
    longest = built.target.info.context - settings.tokens
    if longest < 1:
        raise ConfigError(f"the context holds {built.target.info.context} tokens; give fewer --tokens")
    jobs = _jobs(built, workloads, settings, longest)
    judge = Judge(built.target, built.drafters, history=settings.history)
    texts = _write(built, [job.request for job in jobs], tick)
    tapes = []
    for job in jobs:
        prompt, sampling, tokens = tuple(job.request.prompt), job.request.sampling, texts[job.request.id]
        text = Written(prompt, tuple(tokens), _length(tokens, built.target.info.eos_token_ids), sampling)
        one = recorded(
            name=job.request.id,
            prompt_tokens=len(text.prompt),
            length=text.length,
            views=judge.views(text),
            task=job.task,
            source=job.source,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed or 0,
        )
        tapes.append(one)
        tick()
    info = built.target.info
    about = {"target": info.fingerprint, "models": built.pair, "dtype": info.dtype, "verification": "coupled"}
    return join(tapes, about)


@dataclass(frozen=True)
class _Job:
    request: Request
    task: str
    source: str


def _jobs(built: Built, workloads: Workloads, settings: RecordSettings, longest: int) -> list[_Job]:
    jobs: list[_Job] = []
    for temperature in settings.temperatures:
        for task, prompts in workloads.items():
            for i, prompt in enumerate(prompts):
                seed = settings.seed * 1_000_003 + len(jobs)
                sampling = SamplingParams(settings.tokens, temperature, seed=seed, ignore_eos=True)
                ids = encode(built.template, prompt, longest)
                plain = SpeculationParams(max_depth=0)
                # Cached tokens would stay in rows that `Judge` needs free.
                request = Request(f"{task}-{i}@{temperature:g}", ids, sampling, plain, prefix_cache=False)
                jobs.append(_Job(request, task, prompt.source))
    return jobs


def _write(built: Built, requests: Sequence[Request], tick: Callable[[], None]) -> dict[str, list[int]]:
    """What the target writes without any drafts, by request: past its end, so far as a draft may reach."""
    core, ends = built.core, built.target.info.eos_token_ids
    texts: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        core.check(request)
        core.add(request)
    while not core.idle:
        for delta in core.step():
            text = texts[delta.request_id]
            text.extend(delta.tokens)
            if delta.completion is not None:
                tick()
            elif len(text) >= _length(text, ends) + _BEYOND:
                core.abort(delta.request_id)
                tick()
    return texts


def _length(tokens: Sequence[int], ends: Collection[int]) -> int:
    """How many of the tokens are emitted: up to the first that ends a text."""
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))


def summarise(tape: Tape) -> list[dict[str, str | int | float]]:
    """Requests, tokens and each drafter's share of agreement, by temperature and task."""
    rows: list[dict[str, str | int | float]] = []
    for temperature in np.unique(tape.temperatures).tolist():
        at = tape.at_temperature(temperature)
        for task in dict.fromkeys(at.tasks):
            own = at.of_task(task)
            inside = own.emitted_positions
            rows.append(
                {
                    "temperature": temperature,
                    "task": task,
                    "requests": len(own),
                    "tokens": int(own.lengths.sum()),
                    **{name: float(view.agreed[inside].mean()) for name, view in own.views.items() if len(inside)},
                }
            )
    return rows


def write_costs(built: Built, max_rows: int, path: Path) -> None:
    """Run synthetic rounds for longer than a start does, and write the costs that they show.

    Raises:
        ConfigError: the file cannot be written.
    """
    core = built.core
    limits = replace(core.limits, max_rows=max_rows)
    profile = warm_up(built.executor, core.inputs, limits, seconds=_COST_SECONDS).profile
    about = {
        "about": "synthetic rounds, as `bench record --costs-out` runs them",
        "models": built.pair,
        "processor": f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
    try:
        text = json.dumps({**about, **json.loads(profile.to_json())}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: the cost table cannot be written ({error})") from error
