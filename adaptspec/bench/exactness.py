"""Does speculation change the text? Greedy output against `transformers` `generate`, token for token.

Every prompt runs at each fixed depth and at one that changes every round, with each drafter, and with wide trees of it
and of two together, alone and in batches with random arrivals and aborts. A divergence counts as rounding only where
the target's two best logits lie within the data type's tie; each one is listed. Where one text goes on after the other
has ended the gap is None: that is no rounding.
Where 16 bits round passes of one and of several tokens differently, the report says how many texts speculation changed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from adaptspec.bench.workloads import Workloads, encode
from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision, Policy, Union
from adaptspec.decision_tables import StopTable, TreeTable
from adaptspec.drafting.drafter import Drafter, ModelFreeDrafter
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.core import EngineCore
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.request import Request, SamplingParams
from adaptspec.tables import Table
from adaptspec.training.measure import load_transformers
from adaptspec.types import Completion, IntArray, Reason
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import Method

# By how much the two best logits may differ where rounding alone can exchange them.
TIES = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.5}
DEPTHS = (0, 1, 3, 7)
WIDTH, NODES = 4, 32  # of trees
BATCH = 16  # as reports name it: requests arrive while others run


class Schedule(Policy):
    """A policy whose depth is a constant, or (None) another one every round for every row.

    `branching` drafts are wide trees, of two drafters united with what the second would draft.
    """

    max_depth = 7

    def __init__(self, drafters: tuple[str, ...], depth: int | None, *, branching: bool = False) -> None:
        self.drafters = drafters
        self._depth, self._branching = depth, branching
        self._random = np.random.default_rng(0)

    def decide(self, signals: BatchSignals) -> Decision:
        size = signals.batch_size
        drawn = self._random.integers(0, self.max_depth + 1, size)
        wanted = drawn if self._depth is None else np.full(size, self._depth)
        zeros: IntArray = np.zeros(size, dtype=np.int64)
        decision = Decision(np.minimum(wanted, signals.limits), zeros + int(Reason.FIXED), zeros)
        if self._branching:
            every = np.ones((size, 1))
            stated = np.tile((np.arange(10) + 0.5) / 10, (size, 1))
            decision.tree = TreeTable(zeros + WIDTH, zeros + NODES, np.zeros(size), stated[:, None])
            # Prices so low that nodes off the main chain are drafted on from, too.
            decision.stop = StopTable(
                survival=0.02 * every, calibration=stated, unstated=every, worth=every, step=0.0 * every
            )
            if len(self.drafters) > 1:
                decision.union = Union(zeros + 1, decision.depths)
        return decision


@dataclass(frozen=True)
class Reference:
    """What `generate` gave for a prompt, and how close its two best logits were at each position."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


# Ways to decode: their names in the report, and an engine that does it.
Way = tuple[Mapping[str, str], Callable[[], EngineCore]]


def run_exactness(
    config: EngineConfig,
    workloads: Workloads,
    tokens: int,
    tick: Callable[[str], None],
    *,
    drafters: Collection[str] = (),
    policies: bool = False,
    depths: Sequence[int] = DEPTHS,
    method: Callable[[], Method] = Coupled,
    load_reference: Callable[..., Any] = load_transformers,
) -> dict[str, Any]:
    """Compare every setting with the reference; `tick` is told of each piece of work done.

    Settings are each depth with each drafter, or with these ones; with `policies`, every policy that they suffice for.
    `method` makes what verifies drafts at fixed and changing depths; `load_reference` is called as `load_transformers`.
    """
    built = build(config)
    if drafters:
        built = replace(built, drafters=tuple(one for one in built.drafters if one.name in drafters))
    dtype = built.target.info.dtype
    longest = built.target.info.context - tokens
    prompts = [encode(built.template, p, longest) for all_of in workloads.values() for p in all_of]
    model = load_reference(model_place(config.model, "target"), getattr(torch, dtype), built.target.device)
    references = []
    for reference in _references(model, prompts, tokens):
        references.append(reference)
        tick("reference")
    ways = [*_fixed(built, config, depths, method), *(_policies(built, config) if policies else ())]
    settings = list(_settings(ways, references, tokens, TIES[dtype], tick))
    return {
        "benchmark": "exactness",
        "dtype": dtype,
        "prompts": len(references),
        "tokens": tokens,
        "tie": TIES[dtype],
        "worst_divergence_share": max(s["divergent"] for s in settings) / len(references),
        "changed_share": _changed_share(settings, len(references)),
        "unexplained": sum(s["unexplained"] for s in settings),
        "settings": settings,
    }


def exactness_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    where = ("depth", "drafter", "batch")
    columns = (*where, "changed", "divergent", "unexplained", "prompts_with_rejections", "drafted", "accepted")
    title = f"{result['prompts']} prompts x {result['tokens']} tokens in {result['dtype']} against transformers"
    table = Table(*(column.replace("_", " ") for column in columns), title=title, keys=3)
    for row in result["settings"]:
        table.add_row(*(str(row[column]) for column in columns))
    differing = [
        json.dumps({name: row[name] for name in where} | divergence, default=str)
        for row in result["settings"]
        for divergence in row["divergences"]
    ]
    shares = ", ".join(f"{share:.1%} at depth {depth}" for depth, share in result["changed_share"].items())
    return [table, *differing, f"texts that are not those of plain decoding, one request at a time: {shares}"]


def _settings(
    ways: Sequence[Way], references: Sequence[Reference], tokens: int, tie: float, tick: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """What came of each way to decode, alone and batched. The first, alone, is plain decoding: see `_fixed`."""
    plain: list[Completion] = []
    for names, core in ways:
        for batched in (False, True):
            done = (_batched if batched else _alone)(core(), references, tokens)
            plain = plain or done
            changed = sum(a.tokens != b.tokens for a, b in zip(plain, done, strict=True))
            yield {
                **names,
                "batch": BATCH if batched else 1,
                "changed": changed,
                **compare(references, done, tie),
            }
            tick(f"{', '.join(names.values())}, {'batched' if batched else 'alone'}")


def _changed_share(settings: Sequence[Mapping[str, Any]], prompts: int) -> dict[str, float]:
    """By depth, the share of texts that are not those of plain decoding: of requests alone, with every drafter."""
    changed: dict[str, list[int]] = {}
    for row in settings:
        if row["batch"] == 1:
            changed.setdefault(row["depth"], []).append(row["changed"])
    return {depth: sum(counts) / (len(counts) * prompts) for depth, counts in changed.items()}


def _references(model: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> Iterator[Reference]:
    """What a model of transformers makes of the prompts, on its device."""
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = [torch.topk(step[0].float(), 2).values for step in out.logits]
        yield Reference(
            prompt, tuple(out.sequences[0, len(prompt) :].tolist()), tuple(float(two[0] - two[1]) for two in best)
        )


def _fixed(built: Built, config: EngineConfig, depths: Sequence[int], method: Callable[[], Method]) -> Iterator[Way]:
    for name, depth in [*((str(d), d) for d in depths), ("changing", None)]:
        for drafter in built.drafters:
            yield {"depth": name, "drafter": drafter.name}, partial(_core, built, [drafter], depth, config, method)
    free = [drafter for drafter in built.drafters if isinstance(drafter, ModelFreeDrafter)]
    pairs = [[drafter, beside] for drafter in built.drafters for beside in free if drafter not in free]
    for name, depth in (("tree", Schedule.max_depth), ("changing tree", None)):
        for drafters in [*([drafter] for drafter in built.drafters), *pairs]:
            names = {"depth": name, "drafter": " + ".join(drafter.name for drafter in drafters)}
            yield names, partial(_core, built, drafters, depth, config, method, branching=True)


def _policies(built: Built, config: EngineConfig) -> Iterator[Way]:
    here = {drafter.name for drafter in built.drafters}
    for spec in (spec for spec in built.specs if here.issuperset(spec.needed)):
        core = partial(
            assemble,
            built.target,
            built.drafters,
            built.tokenizer,
            specs=[spec],
            costs=built.costs,
            limits=config.limits,
        )
        yield {"depth": spec.name, "drafter": ", ".join(spec.drafters)}, core


def _core(
    built: Built,
    drafters: Sequence[Drafter],
    depth: int | None,
    config: EngineConfig,
    method: Callable[[], Method],
    *,
    branching: bool = False,
) -> EngineCore:
    names = tuple(drafter.name for drafter in drafters)
    schedule = Schedule(names, depth, branching=branching)
    controller = Controller({"schedule": schedule}, "schedule", names, config.limits.max_rows)
    methods = {"schedule": TaskMethods(method())}
    limits = replace(config.limits, max_depth=Schedule.max_depth)
    inputs = InputProcessor(built.target.info, built.tokenizer)
    return EngineCore(ModelExecutor(built.target, drafters), controller, inputs, methods, limits=limits)


def _alone(core: EngineCore, references: Sequence[Reference], tokens: int) -> list[Completion]:
    done = []
    for i, reference in enumerate(references):
        core.add(_request(f"r{i}", reference.prompt, tokens))
        while not core.idle:
            done += [delta.completion for delta in core.step() if delta.completion is not None]
    return done


def _batched(core: EngineCore, references: Sequence[Reference], tokens: int) -> list[Completion]:
    """Requests arrive at random rounds; between them, others arrive and are aborted half-way."""
    chance = random.Random(0)
    waiting = list(range(len(references)))[::-1]
    done: dict[str, Completion] = {}
    doomed: list[str] = []
    while waiting or not core.idle:
        if waiting and len(core.scheduler.running) < core.limits.max_rows and chance.random() < 0.5:
            i = waiting.pop()
            core.add(_request(f"r{i}", references[i].prompt, tokens))
            if chance.random() < 0.25:
                doomed.append(f"doomed{i}")
                core.add(_request(doomed[-1], references[i].prompt[::-1], tokens))
        if doomed and chance.random() < 0.1:
            core.abort(doomed.pop(0))
        for delta in [] if core.idle else core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion
    return [done[f"r{i}"] for i in range(len(references))]


def _request(name: str, prompt: tuple[int, ...], tokens: int) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=tokens, temperature=0.0))


def compare(references: Sequence[Reference], done: Sequence[Completion], tie: float) -> dict[str, Any]:
    """Where texts leave their references: rounding explains it where the two best scores are within `tie`."""
    divergences: list[dict[str, Any]] = []
    for i, (reference, completion) in enumerate(zip(references, done, strict=True)):
        if completion.tokens != reference.tokens:
            pairs = enumerate(zip(reference.tokens, completion.tokens, strict=False))
            shorter = min(len(reference.tokens), len(completion.tokens))
            at = next((j for j, (a, b) in pairs if a != b), shorter)
            gap = reference.gaps[at] if at < len(reference.gaps) else None
            divergences.append({"prompt": i, "position": at, "gap": gap})
    rejected = sum(c.stats.accepted < c.stats.drafted for c in done)
    return {
        "divergent": len(divergences),
        "unexplained": sum(d["gap"] is None or d["gap"] > tie for d in divergences),
        "prompts_with_rejections": rejected,
        "drafted": sum(c.stats.drafted for c in done),
        "accepted": sum(c.stats.accepted for c in done),
        "divergences": divergences,
    }
