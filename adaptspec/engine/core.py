"""The engine without threads: checks requests, runs rounds, ends requests.

Everything a request needs to be checked against is here; how a round works is in `rounds`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.drafting.drafter import Drafter
from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.engine.rounds import RoundLoop
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.engine.speculator import Speculator
from adaptspec.errors import ConfigError, PromptTooLongError, RequestError, UnknownModelError
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.sampling import check_vocabulary
from adaptspec.types import Delta, FinishReason, Request, Sink
from adaptspec.verification.method import Method


@dataclass(frozen=True)
class Limits:
    """How much runs at once: rows, prompt tokens read per round, and a ceiling on what policies may draft."""

    max_rows: int = 16
    prefill_tokens: int = 512
    max_depth: int = 64

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.prefill_tokens < 1 or self.max_depth < 0:
            raise ConfigError(f"{self}: rows and prefill tokens must be at least 1, the depth at least 0")


class EngineCore:
    """One target, its drafters, and a controller, ready to run rounds."""

    def __init__(
        self,
        target: Runner,
        drafters: Sequence[Drafter],
        tokenizer: PreTrainedTokenizerFast,
        *,
        controller: Controller,
        methods: Mapping[str, Method],
        sinks: Sequence[Sink] = (),
        limits: Limits = Limits(),
    ) -> None:
        """`methods` maps every policy of the controller to its verification method."""
        self._runner = target
        self._tokenizer = tokenizer
        self._controller = controller
        distinct = list({method.name: method for method in methods.values()}.values())
        index = {method.name: i for i, method in enumerate(distinct)}
        self._rounds = RoundLoop(
            target,
            Speculator(drafters, distinct, target.info.vocab_size, target.device),
            controller,
            {policy: index[method.name] for policy, method in methods.items()},
            sinks,
            max_rows=limits.max_rows,
            max_depth=limits.max_depth,
            prefill_tokens=limits.prefill_tokens,
        )
        self.max_rows = limits.max_rows

    @property
    def target(self) -> ModelInfo:
        """The served model."""
        return self._runner.info

    @property
    def policies(self) -> tuple[str, ...]:
        """Names a request may ask for."""
        return tuple(self._controller.policies)

    @property
    def default_policy(self) -> str:
        """The policy of requests that name none."""
        return self._controller.default

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return self._rounds.scheduler.idle

    @property
    def running(self) -> int:
        """Requests that hold a row."""
        return len(self._rounds.scheduler.running)

    def check(self, request: Request) -> None:
        """Refuse what cannot be served; touches no state, so any thread may call it.

        Raises:
            RequestError: with the field at fault in `param`.
        """
        prompt, info = request.prompt, self.target
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", "prompt")
        if len(prompt) >= info.context:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens; {info.name} holds {info.context}, and one must be left "
                "for the answer: shorten the prompt",
                "prompt",
            )
        if min(prompt) < 0 or max(prompt) >= info.vocab_size:
            worst = min(prompt) if min(prompt) < 0 else max(prompt)
            raise RequestError(f"prompt has token id {worst}; {info.name} has 0 to {info.vocab_size - 1}", "prompt")
        check_vocabulary(request.sampling, info.vocab_size)
        task, tasks = request.speculation.task, self._controller.tasks
        if task is not None and task not in tasks:
            raise RequestError(
                f"there is no task {task!r}; known are: {', '.join(tasks) or 'none'}; or leave it out", "adaptspec.task"
            )
        policy = request.speculation.policy
        if policy is not None and policy not in self._controller.policies:
            raise UnknownModelError(
                f"there is no policy {policy!r} here; served are: {', '.join(self.policies)}", "adaptspec.policy"
            )

    def add(self, request: Request) -> list[Delta]:
        """Queue a checked request; nothing comes out yet."""
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        detokenizer = Detokenizer(self._tokenizer, request.sampling.stop)
        info = self.target
        sequence = Seq(
            request, detokenizer, seed=seed, eos=info.eos_token_ids, context=info.context, now=time.monotonic()
        )
        self._rounds.scheduler.add(sequence)
        return []

    def abort(self, request_id: str) -> list[Delta]:
        """End a request wherever it is; one that has ended already is left alone."""
        return self._rounds.abort(request_id)

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request."""
        return self._rounds.abort_all(finish, error)

    def abort_running(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request that holds a row."""
        return self._rounds.abort_running(finish, error)

    def step(self) -> list[Delta]:
        """Run one round."""
        return self._rounds.step()
