"""Engines in this process that answer prompts for a benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from adaptspec.bench.core import Answers, Group
from adaptspec.bench.workloads import encode
from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.task_detector import SHIPPED, TaskDetector
from adaptspec.drafting.drafter import make_drafters
from adaptspec.engine.build import Built, assemble
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.prefix_cache import Mode
from adaptspec.errors import EngineError
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord


class Records:
    """A sink that keeps rounds."""

    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def started(self, request: Request) -> None:
        """Nothing to keep."""

    def emit(self, record: RoundRecord) -> None:
        self.rounds.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        """Nothing to keep."""


def complete(core: EngineCore, requests: Sequence[Request]) -> list[Completion]:
    """Serve the requests, all at once, to their ends.

    Raises:
        RequestError: one of them cannot be served.
        EngineError: one of them ends in an error.
    """
    for request in requests:
        core.check(request)
        core.add(request)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        for delta in core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion
    for request in requests:
        if (error := done[request.id].error) is not None:
            policy = request.speculation.policy or core.controller.default
            raise EngineError(f"request {request.id} fails under {policy}: {error}")
    return [done[request.id] for request in requests]


def policy_engine(
    built: Built, config: EngineConfig, spec: PolicySpec, rows: int, prefix_cache: Mode = "off"
) -> EngineCore:
    """A separate engine for a policy, over the same models: it shares no learned state with the other engines.

    By default it keeps no cached prompts, since each engine has to read its prompts. While an engine that keeps some is
    in use, no other may run: all write to the same rows.
    """
    return assemble(
        built.target,
        make_drafters(built.loaded),
        built.tokenizer,
        specs=[spec],
        costs=CostModel(built.costs.profile),
        limits=replace(EngineLimits.from_config(config), max_rows=rows, prefix_cache=prefix_cache),
        detector=TaskDetector.load(config.task_detector or SHIPPED) if config.detect_tasks else None,
    )


class EngineContender:
    """An engine as a contender: it answers groups of prompts, each up to the model's own end."""

    def __init__(self, name: str, core: EngineCore, built: Built, sampling: SamplingParams) -> None:
        """Requests have `sampling` with seeds of their own."""
        self.name = name
        self._core, self._template, self._sampling = core, built.template, sampling
        self._longest = built.target.info.context - sampling.max_tokens

    def run(self, group: Group) -> Answers:
        requests = [
            Request(
                f"{group.number}-{i}",
                encode(self._template, prompt, self._longest),
                replace(self._sampling, seed=1000 * group.number + i),
            )
            for i, prompt in enumerate(group.prompts)
        ]
        started = time.perf_counter()
        done = complete(self._core, requests)
        seconds = time.perf_counter() - started
        times = [one.timings for one in done]
        return Answers(
            seconds,
            [one.tokens for one in done],
            sum(len(one.tokens) for one in done),
            [(one.first_token or one.finished) - one.arrived for one in times],
            sum(one.stats.drafted for one in done),
        )
