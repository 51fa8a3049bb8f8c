"""The engine without threads: checks requests, runs rounds, ends requests.

Everything a request needs to be checked against is here; how a round works is in `rounds`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.control.labels import OTHER, Labels
from adaptspec.control.policy import Policy
from adaptspec.control.rollout import LIVE, Rollout
from adaptspec.control.shadow import ShadowEstimate
from adaptspec.control.tasks import TaskDetector
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.isolated_drafter import isolated
from adaptspec.engine.by_task import ByTask
from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.engine.prompt_text import PromptText
from adaptspec.engine.rounds import RoundLoop
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.engine.speculator import Speculator
from adaptspec.errors import ConfigError, PromptTooLongError, RequestError, StateError, UnknownModelError
from adaptspec.models.grammars import Grammars
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.sampling import check_vocabulary
from adaptspec.types import Delta, FinishReason, FloatArray, Grammar, Request, Sink
from adaptspec.verification.method import Method

_log = logging.getLogger(__name__)


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
        methods: Mapping[str, ByTask[Method]],
        sinks: Sequence[Sink] = (),
        limits: Limits = Limits(),
        detector: TaskDetector | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`methods` maps every policy of the controller to its verification methods.

        `detector` reads the task of requests that name none. `timer` gives the seconds that rounds are timed by.
        """
        self._runner = target
        self._drafters = tuple(drafters)
        self._tokenizer = tokenizer
        self._text = PromptText(tokenizer, detector)
        self._grammars = Grammars(tokenizer, target.info.vocab_size, target.info.eos_token_ids)
        self._controller = controller
        self._told_full = False  # that there is no room for more tasks
        for name, policy in controller.everyone.items():
            _check_drafters(name, policy, methods[name], drafters)
        distinct = list(dict.fromkeys(m for one in methods.values() for m in (one.usual, *one.tasks.values())))
        self._rounds = RoundLoop(
            target,
            Speculator([isolated(drafter) for drafter in drafters], distinct, target.info.vocab_size, target.device),
            controller,
            {policy: one.each(distinct.index) for policy, one in methods.items()},
            sinks,
            max_rows=limits.max_rows,
            max_depth=limits.max_depth,
            prefill_tokens=limits.prefill_tokens,
            timer=timer,
        )
        self.max_rows = limits.max_rows
        self.max_depth = limits.max_depth

    @property
    def target(self) -> ModelInfo:
        """The served model."""
        return self._runner.info

    @property
    def policies(self) -> tuple[str, ...]:
        """Names a request may ask for."""
        return tuple(self._controller.policies)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters that policies may use."""
        return tuple(drafter.name for drafter in self._drafters)

    @property
    def labels(self) -> Labels:
        """Names of tasks and API keys, as far as they have been met."""
        return self._controller.labels

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
        if request.sampling.grammar is not None:
            self._grammars.check(request.sampling.grammar)
        policy = request.speculation.policy
        if policy is not None and policy not in self._controller.policies:
            raise UnknownModelError(
                f"there is no policy {policy!r} here; served are: {', '.join(self.policies)}", "adaptspec.policy"
            )

    def check_grammar(self, grammar: Grammar) -> None:
        """Compile it, unless that was done a while ago; any thread may call it. Raises RequestError."""
        self._grammars.check(grammar)

    def with_task(self, request: Request) -> Request:
        """The request with its task detected, if it names none; touches no state, so any thread may call it."""
        return self._text.tagged(request)

    def add(self, request: Request) -> list[Delta]:
        """Queue a checked request; nothing comes out yet. Detects its task if nobody has done so.

        A task for which there is no room any more counts as `OTHER`, and is called so from here on.
        """
        request = self._with_policy(self._numbered(self.with_task(request)))
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        detokenizer = Detokenizer(self._tokenizer, request.sampling.stop)
        info, grammar = self.target, request.sampling.grammar
        sequence = Seq(
            request,
            detokenizer,
            seed=seed,
            eos=info.eos_token_ids,
            context=info.context,
            now=time.monotonic(),
            constraint=None if grammar is None else self._grammars.start(grammar),
        )
        self._rounds.scheduler.add(sequence)
        return []

    def adopt(
        self,
        name: str,
        policy: Policy,
        methods: ByTask[Method],
        rollout: Rollout = LIVE,
        *,
        carry: bool = False,
    ) -> bool:
        """Between rounds: from the next one on, have a policy, in place of one of its name. Returns whether what that
        one had learned was carried over, which `carry` asks for. Nothing has changed if it raises.

        Raises:
            ConfigError: see `Controller.adopt`; or it drafts deeper than this engine has room for, or by a drafter
                that one of its methods cannot judge.
        """
        self.check_policy(name, policy, methods)
        before = self._controller.everyone.get(name)
        carried = carry and before is not None and _carry(before, policy, name)
        waiting = {sequence.request.speculation.policy or "" for sequence in self._rounds.scheduler.waiting}
        self._controller.adopt(name, policy, rollout, waiting)
        self._rounds.verify_by(name, methods)
        return carried

    def drop(self, name: str) -> None:
        """Between rounds: have a policy no longer; requests that run or wait keep it. Raises as `Controller.drop`."""
        self._controller.drop(name)

    def check_policy(self, name: str, policy: Policy, methods: ByTask[Method]) -> None:
        """Raise ConfigError if a policy cannot run here; touches no state, so any thread may call it."""
        if policy.max_depth > self.max_depth:
            raise ConfigError(
                f"policy {name} drafts up to {policy.max_depth} tokens, but this engine was started with room for "
                f"{self.max_depth}: restart it with this policy among --policy"
            )
        self._controller.check(name, policy)
        _check_drafters(name, policy, methods, self._drafters)

    def learned(self) -> dict[str, dict[str, FloatArray]]:
        """Between rounds: copies of what policies have learned, by name; those that learn nothing are left out."""
        known = {name: policy.learned() for name, policy in self._controller.everyone.items()}
        return {name: arrays for name, arrays in known.items() if arrays}

    def restore(self, learned: Mapping[str, Mapping[str, FloatArray]]) -> None:
        """Before the first round: let policies go on from what they learned elsewhere, all of them or none.

        Raises:
            StateError: one of them cannot.
        """
        everyone = self._controller.everyone
        before = {name: everyone[name].learned() for name in learned}
        done: list[str] = []
        try:
            for name, arrays in learned.items():
                everyone[name].restore(arrays)
                done.append(name)
        except StateError as error:
            for restored in done:
                everyone[restored].restore(before[restored])
            raise StateError(f"policy {name}: {error}") from error

    def estimates(self) -> tuple[ShadowEstimate, ...]:
        """What each shadow policy would have earned; may be asked from any thread."""
        return self._controller.estimates()

    def abort(self, request_id: str) -> list[Delta]:
        """End a request wherever it is; one that has ended already is left alone."""
        return self._rounds.abort(request_id)

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request."""
        return self._rounds.abort_all(finish, error)

    def recover(self, error: Exception) -> list[Delta]:
        """After a step that raised: see `RoundLoop.recover`."""
        return self._rounds.recover(error)

    def step(self) -> list[Delta]:
        """Run one round."""
        return self._rounds.step()

    def _numbered(self, request: Request) -> Request:
        """The request with a task that has a number."""
        task, tasks = request.speculation.task, self._controller.labels.tasks
        if task is None or tasks.add(task) or task == OTHER:
            return request
        if not self._told_full:
            self._told_full = True
            _log.warning(
                "requests have named %d tasks of their own, and no more are told apart: from task %r on, new names "
                "count as %r; name fewer, such as tenants in place of sessions",
                len(tasks.own),
                task,
                OTHER,
            )
        return replace(request, speculation=replace(request.speculation, task=OTHER))

    def _with_policy(self, request: Request) -> Request:
        """The request with its policy named: what a canary's share was when it came stays its own."""
        policy = self._controller.assigned(request)
        return replace(request, speculation=replace(request.speculation, policy=policy))


def _check_drafters(name: str, policy: Policy, methods: ByTask[Method], drafters: Sequence[Drafter]) -> None:
    """Refuse methods that would be biased by what one of the policy's drafters may leave out."""
    wanted = policy.drafters if policy.max_depth else ()
    choosy = [drafter.name for drafter in drafters if drafter.name in wanted and not drafter.non_anticipating]
    tasks = {f"spec.tasks.{task}.verification": method for task, method in methods.tasks.items()}
    for where, method in {"spec.verification": methods.usual, **tasks}.items():
        if choosy and method.needs_distribution:
            raise ConfigError(
                f"policy {name}: {where}: {method.name} weighs each drafted token by what it was drawn from, but "
                f"{choosy[0]} may drop tokens for what they are, which would change how likely texts are: "
                "use coupled, or another drafter"
            )


def _carry(before: Policy, policy: Policy, name: str) -> bool:
    learned = before.learned()
    try:
        policy.restore(learned)
    except StateError as error:
        _log.warning("what policy %s had learned does not fit its new arms (%s); it learns anew", name, error)
        return False
    return bool(learned)
