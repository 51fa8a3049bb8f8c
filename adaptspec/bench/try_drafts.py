"""Trying a draft here: prompts are answered by plain decoding and by fixed depths of each drafter, in turn.

Their rounds say where drafts agree, which makes a tape for whatever kind of drafter it was, and what rounds take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from adaptspec.analysis.journal_tape import DRAFTER, LoggedRequest, tape_of_rounds
from adaptspec.bench.contenders import OwnEngine
from adaptspec.bench.quick import static_policy
from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.drafting.drafter import ModelDrafter, Observing
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.profiler import measured_costs
from adaptspec.errors import ConfigError
from adaptspec.journal import RequestStarted
from adaptspec.request import Request, SamplingParams
from adaptspec.simulation.cost_profiles import DraftCosts, MachineCosts, of_table
from adaptspec.simulation.tape import Tape, join, recorded
from adaptspec.types import Completion, RoundRecord

_DEPTHS, _MODEL_FREE_DEPTHS = (1, 3, 7), (4,)
_NOBODY = -2


@dataclass(frozen=True)
class Tried:
    """A draft that was tried (None: none), what it met, what rounds take with it, and how it drafts in words.
    `parameters` are those of the target.
    """

    draft: str | None
    tape: Tape
    costs: MachineCosts
    parameters: int


class _Notes:
    """The rounds that were told of since somebody asked."""

    def __init__(self) -> None:
        self._rounds: list[RoundRecord] = []

    def taken(self) -> list[RoundRecord]:
        rounds, self._rounds = self._rounds, []
        return rounds

    def started(self, request: Request) -> None:
        """See `Sink.started`."""

    def emit(self, record: RoundRecord) -> None:
        self._rounds.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        """See `Sink.finished`."""


def try_draft(
    config: EngineConfig, draft: str | None, workloads: Workloads, tokens: int, tick: Callable[[], None]
) -> Tried:
    """Load the model with a draft, and answer all prompts with it and without, one at a time, with at most `tokens`
    tokens. `tick` is called when it is loaded, and after each prompt.

    Raises:
        ModelError, PairError, ConfigError: the models cannot be used, or no prompt has an answer of two tokens.
    """
    alone = replace(config, draft=draft, policies=("off",), limits=EngineLimits(max_rows=1))
    built, notes = build(alone, costs=measured_costs), _Notes()
    longest = built.target.info.context - tokens
    if longest < 1:
        raise ConfigError(f"the context holds {built.target.info.context} tokens; give fewer --tokens")
    engines = list(_engines(built, alone, notes))
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
            ids = encode(built.tokenizer, prompt, longest)
            answers = [engine.run(ids, tokens).tokens for engine in engines]
            rounds, text = notes.taken(), answers[0]
            tick()
            if len(text) < 2:
                continue
            name, begun = f"{task}-{i}", (len(ids), len(text))
            one = LoggedRequest(RequestStarted(f"{task}-{i}", None, task, *begun, None, 0.0))
            for record in rounds:
                if len(record.rows):
                    one.add(record, 0, own)
            one.length, requests[name] = len(text), one
            views = judge.views(Written(ids, text, len(text), SamplingParams(tokens, 0.0, seed=0)))
            free_of.append(recorded(name, *begun, views, task))
    if not requests:
        raise ConfigError("the model ends every answer at once; give prompts that it answers (--prompts FILE)")
    tape = join(free_of)
    if draft is not None:
        if not any(one.known for one in requests.values()):
            raise ConfigError("it never drafted a token; use another draft")
        tape = replace(tape, views={**tape_of_rounds(requests, {}).views, **tape.views})
    return Tried(draft, tape, _costs(built), built.target.info.parameters)


def _engines(built: Built, config: EngineConfig, notes: _Notes) -> Iterator[OwnEngine]:
    """One that decodes plainly, then each drafter at fixed depths; they take turns."""
    wanted = [one for one in built.drafters if not isinstance(one, Observing)]
    specs = [static_policy("plain", 0, wanted[0].name)]
    for one in wanted:
        depths: Sequence[int] = _DEPTHS if isinstance(one, ModelDrafter) else _MODEL_FREE_DEPTHS
        specs += [static_policy(f"{one.name}-{depth}", depth, one.name) for depth in depths]
    parts = built.target, built.drafters, built.tokenizer
    core = assemble(*parts, specs=specs, costs=built.costs, sinks=[notes], limits=config.limits)
    return (OwnEngine(core, spec.name) for spec in specs)


def _costs(built: Built) -> MachineCosts:
    """What rounds of one request took here, model-free drafters with what they add to rounds."""
    table = built.costs
    costs = of_table("this machine", table)
    more = table.overhead_seconds(1, drafting=True) - table.overhead_seconds(1, drafting=False)
    for name, known in costs.drafters.items():
        if known.step is None:
            costs.drafters[name] = DraftCosts(per_row=table.ngram_seconds(name) + more)
    return costs
