"""Engines over fake models, with policies whose depths a test can dictate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.decision import Decision, Reason
from adaptspec.drafting.drafter import Drafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord, Sink
from adaptspec.verification import make_method
from tests.fakes import TableRunner


class Dictated(Policy):
    """A policy whose depths are what `choose(round, batch size)` says; remembers all it was told."""

    max_depth = 7

    def __init__(self, drafters: tuple[str, ...], choose: Callable[[int, int], Sequence[int]]) -> None:
        self.drafters = drafters
        self.live: set[int] = set()
        self.records: list[RoundRecord] = []
        self._choose = choose
        self._round = 0

    def start(self, row: int) -> None:
        assert row not in self.live
        self.live.add(row)

    def finish(self, row: int) -> None:
        self.live.discard(row)

    def decide(self, signals: BatchSignals) -> Decision:
        size = signals.batch_size
        self._round += 1
        depths = np.minimum(np.array(self._choose(self._round, size), dtype=np.int64).reshape(size), signals.limits)
        zeros = np.zeros(size, dtype=np.int64)
        drafter = (np.arange(size) + self._round) % len(self.drafters)
        return Decision(depths, zeros + int(Reason.FIXED), drafter)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self.records.append(record)


class Notes:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.begun: list[Request] = []
        self.completions: dict[str, Completion] = {}

    def started(self, request: Request) -> None:
        self.begun.append(request)

    def emit(self, record: RoundRecord) -> None:
        self.records.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        assert request.id not in self.completions, "a request ended twice"
        self.completions[request.id] = completion


def make_core(
    tokenizer: PreTrainedTokenizerFast,
    target: TableRunner,
    drafters: Sequence[Drafter],
    policies: dict[str, tuple[Dictated, str]],
    *,
    sinks: Sequence[Sink] = (),
    limits: EngineLimits = EngineLimits(max_rows=4, prefill_tokens=8),
    executor: Callable[[TableRunner, Sequence[Drafter]], ModelExecutor] = ModelExecutor,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """`policies` maps a name to a policy and its verification method; the first is the default."""
    controller = Controller(
        {name: policy for name, (policy, _) in policies.items()},
        next(iter(policies)),
        [drafter.name for drafter in drafters],
        limits.max_rows,
    )
    methods = {name: PolicySettings(make_method(how)) for name, (_, how) in policies.items()}
    inputs = InputProcessor(target.info, tokenizer)
    return EngineCore(executor(target, drafters), controller, inputs, methods, sinks=sinks, limits=limits, clock=clock)


def run(core: EngineCore, requests: Sequence[Request]) -> dict[str, Completion]:
    """Queue all, run until idle."""
    for request in requests:
        core.check(request)
        core.add(request)
    done: dict[str, Completion] = {}
    while not core.idle:
        for delta in core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion
    return done


def byte_level(vocabulary: list[bytes]) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are these bytes, in this order."""
    characters = bytes_to_unicode()
    tokens = {"".join(characters[byte] for byte in token): i for i, token in enumerate(vocabulary)}
    backend = Tokenizer(models.BPE(tokens, []))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)
