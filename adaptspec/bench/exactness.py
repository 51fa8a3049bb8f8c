"""Does speculation change an answer? Requests under policies that draft, against plain decoding of the same model.

The reference is the same runner without drafts, one request at a time. Each setting serves the same requests at several
batch sizes, where requests arrive and leave at random. Where the model has a pass range, tokens and log-probabilities
must be the same bits; elsewhere logits agree up to rounding, and only the tokens are compared.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.bench.contenders import complete, policy_engine
from adaptspec.bench.setup import described, title_of
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.config import EngineConfig
from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.decision import Decision, Reason, StopTable, TreeTable, Union
from adaptspec.drafters import Kind, default_drafters, kind_of
from adaptspec.drafting.drafter import Drafter, make_drafters
from adaptspec.engine.build import Built, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.models.pass_range import exactness
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.results import Completion, TokenLogprob
from adaptspec.simulation.simulator import static_spec
from adaptspec.tables import Table
from adaptspec.verification.coupled import Coupled

BATCHES = (1, 4, 16)
FIXED_DEPTHS = (3, 7)
WIDTH, NODES = 4, 32  # of trees
TOP = 5  # alternatives per token; the best two say how close a choice was
CHOICES = 3
SHOWN = 20  # differences that the report lists
_TEXT = {"type": "string", "maxLength": 60}
_SCHEMA = {
    "type": "object",
    "properties": {"answer": _TEXT, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}

# What requests ask for, in turn. Those of "text" ask for no log-probabilities: their tokens alone are compared.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.4, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "truncated": {"temperature": 0.8, "top_p": 0.9, "min_p": 0.05},
    "schema": {"temperature": 0.0, "grammar": Grammar(json.dumps(_SCHEMA))},
    "choices": {"temperature": 0.8},
    "logprobs": {"temperature": 0.0, "logprobs": 20, "prompt_logprobs": 1},
    "text": {"temperature": 0.8, "logprobs": None},
}


class RandomDepths(Policy):
    """Drafts of another depth for each row and round; `branching` drafts are wide trees.

    Trees of two drafters hold what either drafts.
    """

    max_depth = 7

    def __init__(self, drafters: tuple[str, ...], *, branching: bool = False) -> None:
        self.drafters = drafters
        self._branching = branching
        self._random = np.random.default_rng(0)

    def decide(self, signals: BatchSignals) -> Decision:
        size = signals.batch_size
        depths = self._random.integers(0, self.max_depth + 1, size)
        zeros: IntArray = np.zeros(size, dtype=np.int64)
        decision = Decision(np.minimum(depths, signals.limits), zeros + int(Reason.FIXED), zeros)
        if not self._branching:
            return decision
        every = np.ones((size, 1))
        stated = np.tile((np.arange(10) + 0.5) / 10, (size, 1))
        return replace(
            decision,
            tree=TreeTable(zeros + WIDTH, zeros + NODES, np.zeros(size), stated[:, None]),
            # Prices so low that nodes off the main chain are drafted on from, too.
            stop=StopTable(survival=0.02 * every, calibration=stated, unstated=every, worth=every, step=0.0 * every),
            union=Union(zeros + 1, decision.depths) if len(self.drafters) > 1 else None,
        )


@dataclass(frozen=True)
class EngineSetup:
    """A way to serve the requests: `engine(rows)` makes an engine that does, for so many rows at once."""

    name: str
    drafters: str
    engine: Callable[[int], EngineCore]


def exactness_settings(built: Built, config: EngineConfig) -> list[EngineSetup]:
    """Plain decoding, the policies asked for or the default, fixed and random depths with every drafter, and trees."""
    by_name = {spec.name: spec for spec in built.specs}
    asked = [by_name["off"], *built.specs[: len(config.policy_names)]]
    settings = [
        EngineSetup(name, " + ".join(spec.drafters if spec.drafts else ()), partial(policy_engine, built, config, spec))
        for name, spec in {spec.name: spec for spec in asked}.items()
    ]
    here = [drafter.name for drafter in built.drafters]
    for depth in FIXED_DEPTHS:
        for name in default_drafters(here):
            engine = partial(policy_engine, built, config, static_spec(depth, name))
            settings.append(EngineSetup(f"static-{depth}", name, engine))
    for name in default_drafters(here):
        settings.append(EngineSetup("random depths", name, partial(_random_engine, built, config, (name,))))
    if built.target.info.takes_trees:
        lookups = [name for name in here if kind_of(name) is Kind.MODEL_FREE]
        pairs = [(name, lookup) for name in here if name not in lookups for lookup in lookups]
        for names in [*((name,) for name in here), *pairs]:
            engine = partial(_random_engine, built, config, names, branching=True)
            settings.append(EngineSetup("random trees", " + ".join(names), engine))
    return settings


def exactness_requests(built: Built, workloads: Workloads, tokens: int) -> list[Request]:
    """A request of each kind in turn, one per prompt; `CHOICES` with seeds of their own for "choices"."""
    longest = built.target.info.context - tokens
    prompts = [encode(built.template, prompt, longest) for prompts in workloads.values() for prompt in prompts]
    requests = []
    for i, prompt in enumerate(prompts):
        kind = list(KINDS)[i % len(KINDS)]
        for choice in range(CHOICES if kind == "choices" else 1):
            sampling = SamplingParams(tokens, **{"logprobs": TOP, "seed": CHOICES * i + choice, **KINDS[kind]})
            requests.append(Request(f"{i}-{kind}-{choice}", prompt, sampling))
    return requests


def run_exactness(
    built: Built,
    config: EngineConfig,
    settings: Sequence[EngineSetup],
    requests: Sequence[Request],
    tick: Callable[[str], None],
) -> dict[str, Any]:
    """Serve the requests in every setting and compare; the first setting is plain decoding.

    `tick` is called after each request of the reference, and after each setting at each batch size.
    """
    reference = {}
    plain = settings[0].engine(1)
    for request in requests:
        sampling = replace(request.sampling, logprobs=max(TOP, request.sampling.logprobs or 0))
        (done,) = complete(plain, [replace(request, sampling=sampling)])
        reference[request.id] = done
        tick("reference")
    bits = bool(built.target.info.equal_passes)
    rows = []
    for setting in settings:
        for batch in BATCHES:
            found, most = _served(setting.engine(batch), requests)
            rows.append({"setting": setting.name, "drafters": setting.drafters, "batch": batch, "most_at_once": most})
            rows[-1] |= compared(requests, reference, found, bits=bits)
            tick(f"{setting.name} {setting.drafters}, batch {batch}")
    return {
        "benchmark": "exactness",
        "setup": described(built, config),
        "passes": exactness(built.target.info),
        "compared": "tokens and log-probabilities" if bits else "tokens",
        "requests": len(requests),
        "prompts": len({request.prompt for request in requests}),
        "tokens": sum(len(done.tokens) for done in reference.values()),
        "different": sum(row["different"] for row in rows),
        "settings": rows,
    }


def _random_engine(
    built: Built, config: EngineConfig, names: tuple[str, ...], rows: int, *, branching: bool = False
) -> EngineCore:
    made = {drafter.name: drafter for drafter in make_drafters(built.loaded)}
    drafters: list[Drafter] = [made[name] for name in names]
    policy = RandomDepths(names, branching=branching)
    limits = replace(EngineLimits.from_config(config), max_rows=rows, max_depth=policy.max_depth)
    return EngineCore(
        make_executor(built.target, drafters, limits, eager=config.enforce_eager),
        Controller({"random": policy}, "random", names, rows),
        InputProcessor(built.target.info, built.tokenizer),
        {"random": PolicySettings(Coupled())},
        limits=limits,
    )


def _served(core: EngineCore, requests: Sequence[Request]) -> tuple[dict[str, Completion], int]:
    """The answers by the ids of their requests, and how many requests ran at once at most.

    Requests arrive at random rounds; others come between them and are aborted.
    """
    chance = random.Random(0)
    waiting = list(requests)[::-1]
    done: dict[str, Completion] = {}
    most = 0
    to_abort: list[str] = []
    while waiting or not core.idle:
        if waiting and len(core.scheduler.running) < core.limits.max_rows and chance.random() < 0.5:
            request = waiting.pop()
            core.check(request)
            core.add(request)
            if chance.random() < 0.25:
                to_abort.append(f"to-abort-{request.id}")
                core.add(replace(request, id=to_abort[-1], prompt=tuple(request.prompt)[::-1]))
        if to_abort and chance.random() < 0.1:
            core.abort(to_abort.pop(0))
        for delta in [] if core.idle else core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion
        most = max(most, len(core.scheduler.running))
    return done, most


def compared(
    requests: Sequence[Request], reference: Mapping[str, Completion], found: Mapping[str, Completion], *, bits: bool
) -> dict[str, Any]:
    """How many answers differ from their reference, and where each begins to; `bits`: log-probabilities count, too."""
    differences = []
    for request in requests:
        expected, answer = reference[request.id], found[request.id]
        difference = _difference(expected, answer, logprobs=bits and request.sampling.logprobs is not None)
        if difference is not None:
            differences.append({"request": request.id, **difference})
    own = [found[request.id].stats for request in requests]
    return {
        "different": len(differences),
        "requests_with_rejections": sum(stats.accepted < stats.drafted for stats in own),
        "drafted": sum(stats.drafted for stats in own),
        "accepted": sum(stats.accepted for stats in own),
        "differences": differences,
    }


def _difference(expected: Completion, answer: Completion, *, logprobs: bool) -> dict[str, Any] | None:
    """The first place where an answer differs: its position, both tokens, and how far the best two logits are apart."""
    at = first_difference(expected.tokens, answer.tokens)
    if at is not None:
        return {"what": "token", **located(expected, at, answer.tokens)}
    if expected.finish is not answer.finish:
        return {"what": f"end: {expected.finish.value}, {answer.error or answer.finish.value}"}
    if not logprobs:
        return None
    if (at := first_difference(expected.logprobs, answer.logprobs)) is not None:
        ours, theirs = (_logprob(one.logprobs, at) for one in (expected, answer))
        return {"what": "log-probability", **located(expected, at, answer.tokens), "logprobs": [ours, theirs]}
    if (at := first_difference(expected.prompt_logprobs, answer.prompt_logprobs)) is not None:
        return {"what": "log-probability of the prompt", "position": at}
    return None


def first_difference(expected: Sequence[Any], found: Sequence[Any]) -> int | None:
    """The first position where two sequences differ, the end of the shorter one included; None: they are equal."""
    both = zip(expected, found, strict=False)
    at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(expected), len(found)))
    return at if at < max(len(expected), len(found)) else None


def located(expected: Completion, at: int, tokens: Sequence[int]) -> dict[str, Any]:
    """A position of an answer with both tokens there, and the gap between the target's best two logits.

    None stands for the token of an answer that has ended, and for the gap there.
    """
    best = expected.logprobs[at].top if at < len(expected.logprobs) else ()
    return {
        "position": at,
        "tokens": [one[at] if at < len(one) else None for one in (expected.tokens, tokens)],
        "gap": best[0][1] - best[1][1] if len(best) > 1 else None,
    }


def _logprob(logprobs: Sequence[TokenLogprob], at: int) -> float | None:
    return logprobs[at].logprob if at < len(logprobs) else None


def exactness_report(result: Mapping[str, Any]) -> list[Table | str]:
    """The result for people."""
    title = f"{result['requests']} requests ({result['tokens']} tokens): {title_of(result['setup'])}"
    columns = ("most at once", "different", "requests with rejections", "drafted", "accepted")
    table = Table("setting", "drafters", "batch", *columns, title=title)
    for row in result["settings"]:
        cells = (str(row[column.replace(" ", "_")]) for column in columns)
        table.add_row(row["setting"], row["drafters"], str(row["batch"]), *cells)
    differing = list(_differing(result["settings"]))
    more = [f"and {len(differing) - SHOWN} more (--json lists all)"] if len(differing) > SHOWN else []
    verdict = "All answers are" if not result["different"] else f"{result['different']} answers are not"
    return [
        f"Check at start: {result['passes']}.",
        table,
        *differing[:SHOWN],
        *more,
        f"{verdict} those of plain decoding at batch 1 ({result['compared']}).",
    ]


def _differing(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        for difference in row["differences"]:
            where = {name: row[name] for name in ("setting", "drafters", "batch")}
            yield json.dumps(where | difference)
