"""Trying a draft here: prompts are answered by plain decoding and by fixed depths of each drafter, in turn.

Their rounds say where drafts agree, which makes a tape for whatever kind of drafter it was, and what rounds take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from adaptspec.analysis.journal_tape import DRAFTER, LoggedRequest, tape_of_rounds
from adaptspec.bench.contenders import OwnEngine, Records
from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafters import Kind, kind_of
from adaptspec.drafting.drafter import ModelDrafter, Observing
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.profiler import Progress, no_progress
from adaptspec.errors import ConfigError
from adaptspec.journal import RequestStarted
from adaptspec.models.own_drafts import FIRST_LAYERS, QUANTIZED
from adaptspec.models.pass_range import exactness
from adaptspec.models.runner import Runner
from adaptspec.request import SamplingParams
from adaptspec.simulation.cost_profiles import Curve, DraftCosts, MachineCosts, packed
from adaptspec.simulation.replay import static_spec
from adaptspec.simulation.tape import Tape, join, recorded
from adaptspec.types import RoundRecord

_DEPTHS, _MODEL_FREE_DEPTHS = (1, 3, 7), (4,)
_NOBODY = -2
_ADAPTIVE = ("goodput", "goodput-ngram", "goodput-counts")
_CHAINS, _TREES = "goodput", "goodput-trees"
# Rounds of a kind that tell what such rounds take, and of a draft's first step what each further one takes at least.
_OFTEN, _LEAST_STEP = 8, 0.05


@dataclass(frozen=True)
class Tried:
    """A draft that was tried (None: none), what it met, and what rounds take with it; `deciding` is what those of
    adaptive policies take beyond that, by their drafters. `parameters` are those of the target. `branching` says how
    many times as fast drafts that branch were as chains, in the one turn that both had (None: none can). `memory` is
    an estimate of the bytes that the draft's weights take in addition to the target's. `exactness` is what
    `pass_range` says of the target.
    """

    draft: str | None
    tape: Tape
    costs: MachineCosts
    deciding: Mapping[tuple[str, ...], float]
    parameters: int
    branching: float | None = None
    memory: int = 0
    exactness: str = ""


@dataclass
class _Trial:
    """One engine's answers: their rounds, and the seconds of all of it."""

    engine: OwnEngine
    rounds: list[RoundRecord] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def decoding(self) -> list[RoundRecord]:
        return [record for record in self.rounds if len(record.rows) and not record.prefill_tokens]

    @property
    def beside(self) -> float:
        """Seconds of a round beside its passes. A mean: what is seldom done takes long."""
        passes = sum(record.draft_seconds + record.verify_seconds for record in self.rounds)
        return max(0.0, self.seconds - passes) / max(1, len(self.decoding))


def try_draft(
    config: EngineConfig,
    draft: str | None,
    workloads: Workloads,
    tokens: int,
    tick: Callable[[], None],
    *,
    progress: Progress = no_progress,
) -> Tried:
    """Load the model with a draft, and answer all prompts with it and without, one at a time, with at most `tokens`
    tokens. `tick` is called when it is loaded, and after each prompt.

    Raises:
        ModelError, PairError, ConfigError: the models cannot be used, or no prompt has an answer of two tokens.
    """
    alone = replace(config, draft=draft, policies=(), limits=EngineLimits(max_rows=1))
    built, notes = build(alone, progress=progress), Records()
    longest = built.target.info.context - tokens
    if longest < 1:
        raise ConfigError(f"the context holds {built.target.info.context} tokens; give fewer --tokens")
    # This thread's own time, of which nothing else on the machine takes any. What it waits for is not in there: others
    # that compute the same pass, or a device.
    alone_here = built.target.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone_here else time.perf_counter
    trials = [_Trial(engine) for engine in _engines(built, alone, notes, clock)]
    by_name = {trial.engine.name: trial for trial in trials}
    chained = [trial for trial in trials if trial.engine.name != _TREES]
    names = [drafter.name for drafter in built.drafters]
    own = names.index(DRAFTER) if DRAFTER in names else _NOBODY
    # Whatever runs a model is asked in rounds; what others find in a text, the text tells.
    free = [one for one in built.drafters if not isinstance(one, ModelDrafter | Observing)]
    judge = Judge(built.target, free, history=False)
    tick()
    requests: dict[str, LoggedRequest] = {}
    free_of: list[Tape] = []
    for task, prompts in workloads.items():
        for i, prompt in enumerate(prompts):
            ids = encode(built.template, prompt, longest)
            runs, rounds = [], list[RoundRecord]()
            for trial in trials:
                began = clock()
                runs.append(trial.engine.run(ids, tokens))
                trial.seconds += clock() - began
                trial.rounds += notes.rounds
                rounds += notes.rounds if trial in chained else []
                notes.rounds.clear()
            tick()
            text = runs[0].tokens
            if len(text) < 2:
                continue
            name, begun = f"{task}-{i}", (len(ids), len(text))
            one = LoggedRequest(RequestStarted(name, None, task, *begun, None, 0.0))
            for record in rounds:
                if len(record.rows):
                    one.add(record, 0, own)
            one.length, requests[name] = len(text), one
            views = judge.views(Written(ids, text, len(text), SamplingParams(tokens, 0.0, seed=0)))
            free_of.append(recorded(name, *begun, views, task))
    if not requests:
        raise ConfigError("the model ends every answer at once; give prompts that it answers (--prompts FILE)")
    plain, adaptive = trials[0], [spec for spec in _adaptive(built) if spec.name != _TREES]
    deciding = {tuple(spec.drafters): max(0.0, by_name[spec.name].beside - plain.beside) for spec in adaptive}
    costs = _costs([record for trial in chained for record in trial.decoding], names, plain.beside)
    tape = join(free_of)
    if draft is not None:
        tape = replace(tape, views={**tape_of_rounds(requests, {}).views, **tape.views})
    branching = by_name[_CHAINS].seconds / by_name[_TREES].seconds if _TREES in by_name else None
    memory = sum(_memory(draft, one.runner) for one in built.drafters if isinstance(one, ModelDrafter))
    target = built.target.info
    return Tried(draft, tape, costs, deciding, target.parameters, branching, memory, exactness(target))


def _memory(draft: str | None, runner: Runner) -> int:
    """Bytes of a draft's weights, estimated from above: embeddings that a quantized draft shares are counted, too."""
    if draft is not None and draft.startswith(FIRST_LAYERS):
        return 0
    bits = torch.finfo(getattr(torch, runner.info.dtype)).bits
    if draft is not None and draft.startswith(QUANTIZED):
        bits = int(draft.removeprefix(f"{QUANTIZED}int"))
    return runner.info.parameters * bits // 8


def _engines(built: Built, config: EngineConfig, notes: Records, timer: Callable[[], float]) -> Iterator[OwnEngine]:
    """One that decodes plainly, then each drafter at fixed depths, and adaptive policies; they take turns."""
    wanted = [one for one in built.drafters if not isinstance(one, Observing)]
    specs = [static_spec(0, wanted[0].name, name="plain")]
    for one in wanted:
        depths: Sequence[int] = _DEPTHS if isinstance(one, ModelDrafter) else _MODEL_FREE_DEPTHS
        specs += [static_spec(depth, one.name, name=f"{one.name}-{depth}") for depth in depths]
    parts = built.target, built.drafters, built.tokenizer
    specs += _adaptive(built)
    core = assemble(*parts, specs=specs, costs=built.costs, sinks=[notes], limits=config.limits, timer=timer)
    return (OwnEngine(core, spec.name) for spec in specs)


def _adaptive(built: Built) -> list[PolicySpec]:
    trees = (_TREES,) if any(isinstance(one, ModelDrafter) for one in built.drafters) else ()
    return [spec for spec in built.specs if spec.name in (*_ADAPTIVE, *trees)]


def _costs(rounds: Sequence[RoundRecord], drafters: Sequence[str], beside: float) -> MachineCosts:
    """What rounds of one request take: medians, since whatever else runs can only add to some of them."""
    verify = _medians((record.verify_tokens, record.verify_seconds) for record in rounds)
    if len(verify) < 2:  # then drafts would seem to be checked for nothing
        raise ConfigError("nothing was drafted; give longer answers (--tokens), or other prompts (--prompts FILE)")
    found = {}
    for which, name in enumerate(drafters):
        mine = [record for record in rounds if record.drafting and int(record.drafter[0]) == which]
        by_steps = _medians((r.draft_steps, r.draft_seconds) for r in mine if not r.caught_up)
        if kind_of(name) is Kind.MODEL_FREE:
            found[name] = DraftCosts(per_row=min(by_steps.values(), default=0.0))
            continue
        if not by_steps:
            raise ConfigError("it hardly ever drafted; give longer answers (--tokens), or use another draft")
        (first, begun), (last, longest) = min(by_steps.items()), max(by_steps.items())
        step = max((longest - begun) / max(1, last - first), _LEAST_STEP * begun)
        start = max(0.0, begun - first * step)
        behind = [r for r in mine if r.caught_up]
        extra = sum(r.draft_seconds - start - r.draft_steps * step for r in behind)
        read = sum(r.caught_up for r in behind)
        catch_up = max(0.0, extra / read) if read else 0.0
        found[name] = DraftCosts(Curve((1.0, 2.0), (step, step)), catch_up, start=start)
    counts = sorted(verify)
    rising = np.maximum.accumulate([verify[count] for count in counts]).tolist()
    # Beyond the last count by the slope over all: neighbours differ by noise alone.
    onward = rising[-1] + (rising[-1] - rising[0]) / max(1, counts[-1] - counts[0])
    curve = Curve((*map(float, counts), counts[-1] + 1.0), (*rising, onward))
    return MachineCosts("this machine", packed(curve), found, overhead=beside)


def _medians(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The median seconds of each count that was met often; of two at least, for what lies between them."""
    known: dict[int, list[float]] = {}
    for count, seconds in pairs:
        known.setdefault(count, []).append(seconds)
    often = min([_OFTEN, *sorted(map(len, known.values()))[-2:]])
    return {count: statistics.median(own) for count, own in known.items() if len(own) >= often}
