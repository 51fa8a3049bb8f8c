"""An engine over random models (see `random_models`), with policies of fixed depths beside the default one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.bench.contenders import Records
from adaptspec.bench.random_models import Sizes, any_tokenizer, prompts, random_decoder
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.build import assemble, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.warm_up import warm_up
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import FinishReason
from adaptspec.simulation.simulator import static_spec

_DEEPEST = 7  # of the drafts that costs are learned from


@dataclass(frozen=True)
class Pair:
    """Target and draft on the device, and a tokenizer of their vocabulary."""

    target: DeviceDecoder
    draft: DeviceDecoder
    tokenizer: PreTrainedTokenizerFast

    @staticmethod
    def of(sizes: Sizes, device: torch.device, *, rows: int, cached: int, context: int) -> Pair:
        room = {"rows": rows, "cached": cached, "context": context}
        target, draft = (
            random_decoder(shape, device, seed=seed, **room) for seed, shape in enumerate((sizes.target, sizes.draft))
        )
        return Pair(target, draft, any_tokenizer(target.info.vocab_size))

    def costs(self, rows: int, seconds: float) -> CostModel:
        """Learned now; no row may be in use."""
        limits = EngineLimits(max_rows=rows, max_depth=_DEEPEST)
        executor = make_executor(self.target, self._drafters(), limits, eager=self.target.info.eager)
        return warm_up(executor, InputProcessor(self.target.info, self.tokenizer), limits, seconds=seconds)

    def core(
        self, policies: Sequence[str], rows: int, costs: CostModel, *, eager: bool = False
    ) -> tuple[EngineCore, Records]:
        """Policies: `off`, `static-N`, or one that ships. Its rounds are recorded.

        It keeps no cached prompts: other engines of this pair write to the same rows.
        """
        records = Records()
        specs, limits = [policy(name) for name in policies], EngineLimits(max_rows=rows, prefix_cache="off")
        self.target.info = replace(self.target.info, eager=eager)
        given: dict[str, Any] = {"specs": specs, "costs": CostModel(costs.profile), "limits": limits}
        core = assemble(self.target, self._drafters(), self.tokenizer, sinks=[records], **given)
        return core, records

    def requests(self, count: int, sizes: Sizes, params: SamplingParams, name: str, first: int = 0) -> list[Request]:
        """Of random prompts, under a policy; from the `first` on they are others."""
        texts = prompts(count, sizes.prompt, self.target.info.vocab_size, first)
        return [Request(f"{name}-{i}", text, params, SpeculationParams(name)) for i, text in enumerate(texts)]

    def _drafters(self) -> list[Any]:
        return [
            DraftModelDrafter(self.draft, self.draft.info.eos_token_ids),
            LookupDrafter(self.target.info.vocab_size),
        ]


def policy(name: str) -> PolicySpec:
    """`off`, `static-N` by the draft model, or one that ships."""
    if not name.startswith("static-"):
        return load_policy_spec(find_policy(name))
    return static_spec(int(name.removeprefix("static-")))


def texts(core: EngineCore, requests: Sequence[Request]) -> dict[str, tuple[int, ...]]:
    """Tokens of all, run together, by the id without the policy's name."""
    for request in requests:
        core.add(request)
    done: dict[str, tuple[int, ...]] = {}
    while not core.idle:
        for delta in core.step():
            if delta.completion is not None:
                assert delta.completion.error is None, delta.completion.error
                done[delta.request_id.rpartition("-")[2]] = delta.completion.tokens
    return done


def timed(core: EngineCore, records: Records, requests: Sequence[Request], tokens: int) -> dict[str, Any]:
    """Speed from when all prompts are read until so many tokens per row are there, and what rounds took meanwhile."""
    for request in requests:
        core.add(request)
    waiting = {request.id for request in requests}
    while waiting:
        waiting -= {delta.request_id for delta in core.step() if delta.tokens}
    records.rounds.clear()
    start, written = time.perf_counter(), 0
    while written < tokens * len(requests) and not core.idle:
        written += sum(len(delta.tokens) for delta in core.step())
    spent, rounds = time.perf_counter() - start, list(records.rounds)
    core.abort_all(FinishReason.ABORT, "timed")
    while not core.idle:
        core.step()
    drafted, accepted = (sum(int(getattr(one, what).sum()) for one in rounds) for what in ("drafted", "accepted"))

    def middle(part: str) -> float:
        return 1e3 * float(statistics.median(getattr(one.timing, part) for one in rounds))

    return {
        "tokens_per_second": written / spent,
        "tokens_per_round": written / max(len(rounds), 1) / len(requests),
        "accepted_share": accepted / max(drafted, 1),
        "drafted_per_round": drafted / max(len(rounds), 1) / len(requests),
        "round_ms": 1e3 * spent / max(len(rounds), 1),
        "draft_ms": middle("draft"),
        "verify_ms": middle("verify"),
    }
