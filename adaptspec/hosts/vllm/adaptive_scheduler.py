"""vLLM's schedulers, with a policy that says how deep to draft: one number a step, and a cut for each request.

vLLM draws the drafts of the next step at the end of this one, as deep as `num_spec_tokens_to_schedule` says. Under
asynchronous scheduling it makes placeholders for them before the step has run, in `_update_after_schedule`, which
`schedule` calls at its end. So that is where the policy is asked: a number set later would have drafts verified that
were never drawn.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from adaptspec.control.host import VLLM, Host, drafters_of
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.rounds import Plan
from adaptspec.hosts.settings import PilotSettings, read_wishes
from adaptspec.hosts.vllm import contract
from adaptspec.results import FinishReason

_log = logging.getLogger(__name__)
_REASONS = {reason.value for reason in FinishReason}  # vLLM has some that nobody else has


class AdaptiveScheduler:
    """What `--scheduler-cls` names: makes the scheduler that fits the configuration, synchronous or not.

    Raises ConfigError, which says what to do, where vLLM's configuration is none that a policy can steer.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        contract.check_config(vllm_config)
        settings = PilotSettings.of((vllm_config.additional_config or {}).get("adaptspec", {}))
        if settings.skip_draft:
            contract.check_skipping(vllm_config)
        kind = _AdaptiveAsync if vllm_config.scheduler_config.async_scheduling else _Adaptive
        return kind(settings, vllm_config, *args, **kwargs)


class _Adaptive(Scheduler):  # type: ignore[misc]  # vLLM is not there where types are checked
    """vLLM's scheduler. What is ours in it is fenced: an exception here would end the server for everybody."""

    def __init__(self, settings: PilotSettings, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        logging.getLogger("adaptspec").parent = logging.getLogger("vllm")  # where its operator looks
        models = {"target": vllm_config.model_config.model, "draft": str(vllm_config.speculative_config.model)}
        self._drafts_until = _draft_context(vllm_config)
        self._pilot = Pilot(
            settings,
            host_of(vllm_config),
            self.scheduler_config.max_num_seqs,
            model_len=self._drafts_until,
            models=models,
        )
        for note in self._pilot.notes:
            _log.warning("%s", note)
        host, named = self._pilot.host, ", ".join(settings.policy)
        _log.info("drafts (%s) follow %s, at most %d tokens deep", *host.drafters.values(), named, host.deepest)
        # Any table will do: without one, vLLM pads newcomers with drafts that nobody drew.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        self._entered: set[str] = set()
        self._left: list[Request] = []
        self._plan: Plan | None = None  # of the newest step; None: as vLLM does by itself
        self._steps: deque[tuple[SchedulerOutput, Plan | None]] = deque()  # whose outcome is to come

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        plan = None
        with self._pilot.fence("schedule"):
            plan = self._planned(scheduler_output)
        if plan is None:
            with self._pilot.fence("stock"):  # who opted out still has no drafts
                plan = self._pilot.stock([*scheduler_output.num_scheduled_tokens])
        self._plan = plan
        if plan is not None:
            scheduler_output.num_spec_tokens_to_schedule = plan.depth
            if plan.skip:
                setattr(scheduler_output, contract.SKIPPED, True)
        self._steps.append((scheduler_output, plan))
        super()._update_after_schedule(scheduler_output)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """The drafts are here: each request keeps what it may have verified. Asynchronous ones had placeholders."""
        super().update_draft_token_ids(draft_token_ids)
        with self._pilot.fence("cut"):
            self._cut(draft_token_ids.req_ids)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        plan = self._plan_of(scheduler_output)
        sampled = [*map(len, model_runner_output.sampled_token_ids or ())]
        # Those that are gone are told of nowhere else, and vLLM cuts in place what it does not emit.
        running = [id_ for id_ in scheduler_output.num_scheduled_tokens if id_ in self.requests]
        result = super().update_from_output(scheduler_output, model_runner_output)
        with self._pilot.fence("update"):
            if plan is not None:
                self._learned(plan, running, sampled, scheduler_output, model_runner_output)
            self._part()
        return result

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._left.append(request)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        with self._pilot.fence("close"):
            self._pilot.close()
        super().shutdown()

    def _planned(self, step: SchedulerOutput) -> Plan:
        """How deep to draft at the end of a step for those that will have come to the end of what is written by then"""
        self._part()
        ids, longest = [], 0
        for id_, tokens in step.num_scheduled_tokens.items():
            request = self.requests[id_]
            reach = request.num_computed_tokens + tokens
            longest = max(longest, reach)
            if request.sampling_params is None:
                continue
            if id_ not in self._entered:
                self._enter(id_, request)  # with the first part of its prompt, which the draft reads along, or does not
            if reach >= request.num_tokens + request.num_output_placeholders:
                ids.append(id_)
        drafts = sum(map(len, step.scheduled_spec_decode_tokens.values()))
        prefill = max(0, step.total_num_scheduled_tokens - drafts - len(ids))
        # Where one row is so near the end of the draft's context, vLLM drafts for nobody, and calls zeros drafts.
        room = longest + self.num_spec_tokens <= self._drafts_until
        return self._pilot.decide(ids, prefill, room=room)

    def _enter(self, id_: str, request: Request) -> None:
        wishes, ignored = read_wishes(request.sampling_params.extra_args)
        for name, reason in ignored.items():
            self._pilot.ignore(reason, f"{name!r:.100} of request {id_} cannot be used")
        self._entered.add(id_)
        self._pilot.enter(
            id_,
            wishes,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            temperature=request.sampling_params.temperature,
            waited=time.time() - getattr(request, "arrival_time", math.inf),
            headers=getattr(request, "trace_headers", None),
        )

    def _part(self) -> None:
        """Tell of those that have ended, once their last step was learned from."""
        for request in self._left:
            if request.request_id in self._entered:
                self._entered.remove(request.request_id)
                reason = str(request.get_finished_reason())
                self._pilot.leave(request.request_id, reason if reason in _REASONS else "stop")
        self._left.clear()

    def _plan_of(self, step: SchedulerOutput) -> Plan | None:
        """The plan that a step ran with; steps before it will never be told of."""
        while self._steps:
            told, plan = self._steps.popleft()
            if told is step:
                return plan
        return None

    def _learned(
        self, plan: Plan, running: list[str], sampled: list[int], step: SchedulerOutput, output: ModelRunnerOutput
    ) -> None:
        drafts, invalid = step.scheduled_spec_decode_tokens, step.num_invalid_spec_tokens or {}
        places = {id_: output.req_id_to_index[id_] for id_ in running if sampled and id_ in self._entered}
        ids = [id_ for id_, place in places.items() if sampled[place]]
        at = [places[id_] for id_ in ids]
        drafted = [len(drafts.get(id_, ())) - invalid.get(id_, 0) for id_ in ids]
        accepted = [sampled[place] - 1 for place in at]
        self._pilot.learn(plan, ids, drafted, accepted, [len(output.sampled_token_ids[place]) for place in at])

    def _cut(self, ids: list[str]) -> None:
        plan = self._plan
        if plan is None:
            return
        for id_ in ids:
            depth, request = plan.depths.get(id_, plan.depth), self.requests.get(id_)
            if request is not None and len(request.spec_token_ids) > depth:
                request.spec_token_ids = request.spec_token_ids[:depth]


class _AdaptiveAsync(_Adaptive, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, which makes placeholders of drafts before they are drawn: those are cut."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        with self._pilot.fence("cut"):
            self._cut(list(scheduler_output.num_scheduled_tokens))


def host_of(config: Any) -> Host:
    """What this vLLM can do. Where a table of depths was given, CUDA graphs were made for these, and no others."""
    speculative = config.speculative_config
    table = speculative.num_speculative_tokens_per_batch_size
    tiers = None if not table else tuple(sorted({0, *(depth for _, _, depth in table)}))
    lag = 2 if config.scheduler_config.async_scheduling else 1
    drafters, deepest = drafters_of(speculative.method), speculative.num_speculative_tokens
    return replace(VLLM, drafters=drafters, deepest=deepest, tiers=tiers, lag=lag)


def _draft_context(config: Any) -> int:
    """Tokens that both target and draft have room for."""
    draft = config.speculative_config.draft_model_config
    whole = config.model_config.max_model_len
    return int(whole if draft is None else min(whole, draft.max_model_len))
