"""Trying a draft here: prompts are answered by plain decoding and by fixed depths of each drafter, in turn.

Their rounds say where drafts agree, which makes a tape for whatever kind of drafter it was, and what rounds take.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from adaptspec.analysis.journal_tape import DRAFTER, LoggedRequest, tape_of_rounds
from adaptspec.bench.contenders import Records, complete
from adaptspec.bench.setup import described
from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafters import Kind, kind_of
from adaptspec.drafting.drafter import ModelDrafter
from adaptspec.engine.build import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_path
from adaptspec.errors import ConfigError
from adaptspec.journal import RequestStarted
from adaptspec.models.gguf import parts
from adaptspec.models.llama_cpp import LlamaCppRunner
from adaptspec.models.pass_range import exactness
from adaptspec.models.runner import Runner
from adaptspec.models.self_speculation import FIRST_LAYERS, QUANTIZED
from adaptspec.models.source import find_model
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Curve, DraftTimes, Machine
from adaptspec.simulation.simulator import static_spec
from adaptspec.simulation.tape import Tape, join, recorded
from adaptspec.start_status import Progress, no_progress
from adaptspec.training.corpus import Prompt

_DEPTHS, _MODEL_FREE_DEPTHS = (1, 3, 7), (4,)
_NOBODY = -2
_ADAPTIVE = ("goodput", "goodput-ngram", "goodput-counts")
PLAIN, _CHAINS, _TREES = "plain", "goodput", "goodput-trees"
# Rounds of a kind that tell what such rounds take, and of a draft's first step what each further one takes at least.
_OFTEN, _LEAST_STEP = 8, 0.05
# Of an answer, however little time there is: lookups find nothing in less.
_LEAST_TOKENS = 32


@dataclass(frozen=True)
class Tried:
    """A draft that was tried (None: none), what it met, and what rounds take with it; `deciding` is what those of
    adaptive policies take beyond that, by their drafters. `parameters` are those of the target. `branching` says how
    many times as fast drafts that branch were as chains, in the one turn that both had (None: none can). `memory` is
    an estimate of the bytes that the draft's weights take in addition to the target's. `exactness` is what
    `pass_range` says of the target. `setup` describes the engine (see `described`); `measured` are the
    tokens of each answer, `tokens` at most, and the seconds from its request to its end, by policy and request.
    """

    draft: str | None
    tape: Tape
    costs: Machine
    deciding: Mapping[tuple[str, ...], float]
    parameters: int
    branching: float | None = None
    memory: int = 0
    exactness: str = ""
    setup: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, tuple[int, float]]] = field(default_factory=dict)
    tokens: int = 0


@dataclass
class _Trial:
    """A policy's answers: their rounds, and the tokens and seconds of each, by request."""

    rounds: list[RoundRecord] = field(default_factory=list)
    answers: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.answers.values())

    @property
    def decoding(self) -> list[RoundRecord]:
        return [record for record in self.rounds if len(record.rows) and not record.prefill_tokens]

    @property
    def overhead(self) -> float:
        """Seconds of a round outside its passes. A mean: what is seldom done takes long."""
        passes = sum(record.timing.draft + record.timing.verify for record in self.rounds)
        return max(0.0, self.seconds - passes) / max(1, len(self.decoding))


def try_draft(
    config: EngineConfig,
    draft: str | None,
    workloads: Workloads,
    tokens: int,
    tick: Callable[[], None],
    *,
    progress: Progress = no_progress,
    seconds: float = math.inf,
    fixed: bool = False,
) -> Tried:
    """Load the model with a draft, and answer all prompts with it and without, one at a time, with at most `tokens`
    tokens. `tick` is called when it is loaded, and after each prompt. Where `seconds` are too few for that, answers are
    shorter (unless their length is `fixed`), and the last prompts of each task are left out.

    Raises:
        ModelError, PairError, ConfigError: the models cannot be used, or no prompt has an answer of two tokens.
    """
    ends = time.perf_counter() + seconds
    alone = replace(config, draft=draft, policies=(), limits=EngineLimits(max_rows=1))
    built = build(alone, progress=progress)
    if built.target.info.context <= tokens:
        raise ConfigError(f"the context holds {built.target.info.context} tokens; give fewer --tokens")
    turns = _Turns(built)
    if not fixed:  # one prompt of each task is to fit
        each = (ends - time.perf_counter()) / (len(workloads) * len(turns.trials))
        tokens = int(min(tokens, max(_LEAST_TOKENS, each / built.costs.verify_seconds(1, 1))))
    tick()
    answered: dict[str, tuple[LoggedRequest, Tape]] = {}
    slowest = 0.0
    for task, name, prompt in _in_turn(workloads):
        began = time.perf_counter()
        if answered and began + slowest > ends:
            break
        if (found := turns.answer(task, name, prompt, tokens)) is not None:
            answered[name] = found
        tick()
        slowest = max(slowest, time.perf_counter() - began)
    if not answered:
        raise ConfigError("the model ends every answer at once; give prompts that it answers (--prompts FILE)")
    requests = {name: answered[name][0] for name in _names(workloads) if name in answered}
    tape = join([answered[name][1] for name in requests])
    if draft is not None:
        tape = replace(tape, views={**tape_of_rounds(requests, {}).views, **tape.views})
    target, trials = built.target.info, turns.trials
    plain, adaptive = trials[PLAIN], [spec for spec in _adaptive(built) if spec.name != _TREES]
    return Tried(
        draft,
        tape,
        _costs([record for trial in turns.chained for record in trial.decoding], turns.drafters, plain.overhead),
        {tuple(spec.drafters): max(0.0, trials[spec.name].overhead - plain.overhead) for spec in adaptive},
        target.parameters,
        trials[_CHAINS].seconds / trials[_TREES].seconds if _TREES in trials else None,
        sum(_memory(draft, one.runner) for one in built.drafters if isinstance(one, ModelDrafter)),
        exactness(target),
        described(built, alone),
        {name: trials[name].answers for name in (PLAIN, *(spec.name for spec in adaptive))},
        tokens,
    )


class _Turns:
    """An engine that answers each prompt under all policies in turn, and the answers: `trials`, by policy."""

    def __init__(self, built: Built) -> None:
        self._template, self._target, self._records = built.template, built.target, Records()
        # This thread's own time, of which nothing else on the machine takes any. What it waits for is not in there:
        # others that compute the same pass, or a device.
        alone = built.target.device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if alone else time.perf_counter
        specs = _policies(built)
        self._core = assemble(
            built.target,
            built.drafters,
            built.tokenizer,
            specs=specs,
            costs=built.costs,
            sinks=[self._records],
            limits=EngineLimits(max_rows=1),
            timer=self._clock,
        )
        self.trials = {spec.name: _Trial() for spec in specs}
        self.chained = [trial for name, trial in self.trials.items() if name != _TREES]
        self.drafters = [drafter.name for drafter in built.drafters]
        self._own = self.drafters.index(DRAFTER) if DRAFTER in self.drafters else _NOBODY
        # Drafters that run a model are measured in rounds; what others would propose is found from the text alone.
        free = [one for one in built.drafters if not (isinstance(one, ModelDrafter) or one.learns_from_choices)]
        self._judge = Judge(built.target, free, history=False)

    def answer(self, task: str, name: str, prompt: Prompt, tokens: int) -> tuple[LoggedRequest, Tape] | None:
        """The rounds of a prompt's answers, and the tape of its text; None if that is shorter than two tokens."""
        ids = encode(self._template, prompt, self._target.info.context - tokens)
        sampling = SamplingParams(tokens, 0.0, seed=0)
        texts, rounds = list[tuple[int, ...]](), list[RoundRecord]()
        for policy, trial in self.trials.items():
            # Each policy reads the prompt, and `Judge` needs free rows.
            request = Request(name, ids, sampling, SpeculationParams(policy=policy), prefix_cache=False)
            began = self._clock()
            (done,) = complete(self._core, [request])
            trial.answers[name] = len(done.tokens), self._clock() - began
            texts.append(done.tokens)
            trial.rounds += self._records.rounds
            rounds += self._records.rounds if policy != _TREES else []
            self._records.rounds.clear()
        text = texts[0]
        if len(text) < 2:
            return None
        begun = len(ids), len(text)
        one = LoggedRequest(RequestStarted(name, None, task, *begun, None, 0.0))
        for record in rounds:
            if len(record.rows):
                one.add(record, 0, self._own)
        one.length = len(text)
        return one, recorded(name, *begun, self._judge.views(Written(ids, text, len(text), sampling)), task)


def _names(workloads: Workloads) -> list[str]:
    """Of all requests, task by task."""
    return [f"{task}-{i}" for task, prompts in workloads.items() for i in range(len(prompts))]


def _in_turn(workloads: Workloads) -> Iterator[tuple[str, str, Prompt]]:
    """Tasks, names of requests and prompts: the first of each task, then the second of each."""
    for i in range(max(map(len, workloads.values()))):
        for task, prompts in workloads.items():
            if i < len(prompts):
                yield task, f"{task}-{i}", prompts[i]


def _memory(draft: str | None, runner: Runner) -> int:
    """Bytes of a draft's weights, estimated from above: embeddings that a quantized draft shares are counted, too."""
    if draft is not None and draft.startswith(FIRST_LAYERS):
        return 0
    if draft is not None and isinstance(runner, LlamaCppRunner):  # it maps the file as it is
        return sum(part.stat().st_size for part in parts(find_model(model_path(draft, "draft"), gguf=True)))
    bits = torch.finfo(getattr(torch, runner.info.dtype)).bits
    if draft is not None and draft.startswith(QUANTIZED):
        bits = int(draft.removeprefix(f"{QUANTIZED}int"))
    return runner.info.parameters * bits // 8


def _policies(built: Built) -> list[PolicySpec]:
    """Plain decoding, each drafter at fixed depths, and adaptive policies; they take turns."""
    wanted = [one for one in built.drafters if not one.learns_from_choices]
    specs = [static_spec(0, wanted[0].name, name=PLAIN)]
    for one in wanted:
        depths: Sequence[int] = _DEPTHS if isinstance(one, ModelDrafter) else _MODEL_FREE_DEPTHS
        specs += [static_spec(depth, one.name, name=f"{one.name}-{depth}") for depth in depths]
    return [*specs, *_adaptive(built)]


def _adaptive(built: Built) -> list[PolicySpec]:
    trees = (_TREES,) if any(isinstance(one, ModelDrafter) for one in built.drafters) else ()
    return [spec for spec in built.specs if spec.name in (*_ADAPTIVE, *trees)]


def _costs(rounds: Sequence[RoundRecord], drafters: Sequence[str], overhead: float) -> Machine:
    """What rounds of one request take: medians, since whatever else runs can only add to some of them."""
    verify = _medians((record.target_tokens, record.timing.verify) for record in rounds)
    if len(verify) < 2:  # then drafts would seem to be checked for nothing
        raise ConfigError("nothing was drafted; give longer answers (--tokens), or other prompts (--prompts FILE)")
    found = {}
    for which, name in enumerate(drafters):
        mine = [record for record in rounds if record.drafting and int(record.drafter[0]) == which]
        by_steps = _medians((r.draft_steps, r.timing.draft) for r in mine if not r.caught_up)
        if kind_of(name) is Kind.MODEL_FREE:
            found[name] = DraftTimes(per_row=min(by_steps.values(), default=0.0))
            continue
        if not by_steps:
            raise ConfigError("it hardly ever drafted; give longer answers (--tokens), or use another draft")
        (first, begun), (last, longest) = min(by_steps.items()), max(by_steps.items())
        step = max((longest - begun) / max(1, last - first), _LEAST_STEP * begun)
        start = max(0.0, begun - first * step)
        behind = [r for r in mine if r.caught_up]
        extra = sum(r.timing.draft - start - r.draft_steps * step for r in behind)
        read = sum(r.caught_up for r in behind)
        catch_up = max(0.0, extra / read) if read else 0.0
        found[name] = DraftTimes(Curve((1.0,), (step,)), catch_up, start=start)
    counts = sorted(verify)
    rising = np.maximum.accumulate([verify[count] for count in counts]).tolist()
    # Beyond the last count by the slope over all: neighbours differ by noise alone.
    onward = rising[-1] + (rising[-1] - rising[0]) / max(1, counts[-1] - counts[0])
    curve = Curve((*map(float, counts), counts[-1] + 1.0), (*rising, onward))
    return Machine("this machine", curve, found, overhead=overhead)


def _medians(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The median seconds of each count that was met often; of two at least, for what lies between them."""
    known: dict[int, list[float]] = {}
    for count, seconds in pairs:
        known.setdefault(count, []).append(seconds)
    often = min([_OFTEN, *sorted(map(len, known.values()))[-2:]])
    return {count: statistics.median(own) for count, own in known.items() if len(own) >= often}
