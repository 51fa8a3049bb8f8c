"""vLLM's own schedulers, steered, with a worker that only says how many drafts were kept: `scripted.py STEPS`.

Requests come, end and are aborted at random; the cache is too small for them, so that some are preempted. Prints what
the worker saw of drafts that nobody drew, blocks that were not given back, and what the pilot had to say.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, deque
from typing import Any

import torch
from engines import DEEPEST, MODELS, RandomPilot
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from adaptspec.hosts.vllm import AdaptiveScheduler

ROWS, BLOCKS, BLOCK = 8, 40, 16


def make(kind: Any, *, asynchronous: bool) -> Any:
    """A scheduler as vLLM makes it, with a cache of few blocks."""
    config = EngineArgs(
        model=str(MODELS / "target"),
        speculative_config={
            "method": "draft_model",
            "model": str(MODELS / "draft"),
            "num_speculative_tokens": DEEPEST,
        },
        max_model_len=256,
        max_num_batched_tokens=256,
        enforce_eager=True,
        max_num_seqs=ROWS,
        enable_prefix_caching=False,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = BLOCKS
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    return kind(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def opted_out(id_: str) -> bool:
    """Of the requests that come, every fourth."""
    return int(id_[1:]) % 4 == 0


class Worker:
    """Draws drafts at the end of a step, as deep as it is told, and can verify no others in the next."""

    def __init__(self, scheduler: Any, seed: int) -> None:
        self.scheduler, self.chance = scheduler, random.Random(seed)
        self.drawn: dict[str, int] = {}
        self.seen: Counter[str] = Counter()

    def run(self, step: Any) -> ModelRunnerOutput:
        ids = list(step.num_scheduled_tokens)
        sampled = []
        for id_ in ids:
            tokens = step.scheduled_spec_decode_tokens.get(id_, [])
            self.seen["verified"] += len(tokens)
            self.seen["padded"] += len(tokens) if id_ not in self.drawn else 0
            self.seen["undrawn"] += len(tokens) > self.drawn.get(id_, 0)
            self.seen["unwanted"] += len(tokens) if opted_out(id_) else 0
            chunk = self.chunks.pop((id(step), id_))
            sampled.append([] if chunk else [7] * (1 + self.chance.randint(0, len(tokens))))
        self.drawn = dict.fromkeys(ids, step.num_spec_tokens_to_schedule)
        self.seen[f"depth {step.num_spec_tokens_to_schedule}"] += 1
        places = {id_: place for place, id_ in enumerate(ids)}
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index=places,
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    chunks: dict[tuple[int, str], bool] = {}  # noqa: RUF012 - one worker runs

    def note(self, step: Any) -> None:
        """Which requests have not read all of their prompt when a step ends."""
        for id_ in step.num_scheduled_tokens:
            self.chunks[id(step), id_] = self.scheduler.requests[id_].is_prefill_chunk

    def drafts(self) -> DraftTokenIds:
        return DraftTokenIds([*self.drawn], [[7] * depth for depth in self.drawn.values()])


def drive(scheduler: Any, steps: int, seed: int, *, asynchronous: bool) -> dict[str, Any]:
    """Random traffic for so many steps, and then until nothing is left."""
    chance, worker = random.Random(seed), Worker(scheduler, seed)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    under_way: deque[tuple[Any, Any]] = deque()
    came = preempted = 0
    for at in range(10 * steps):
        if at < steps and chance.random() < 0.15 and len(scheduler.requests) < 2 * ROWS:
            came += 1
            extra = {"adaptspec_max_depth": 0} if opted_out(f"r{came}") else None
            most = chance.randint(1, 120)
            params = SamplingParams(max_tokens=most, ignore_eos=True, temperature=0, extra_args=extra)
            scheduler.add_request(Request(f"r{came}", [7] * chance.randint(1, 100), params, None))
        if chance.random() < 0.02 and scheduler.requests:
            scheduler.finish_requests(chance.choice([*scheduler.requests]), RequestStatus.FINISHED_ABORTED)
        if at >= steps and not scheduler.requests and not under_way:
            break
        step = scheduler.schedule()
        preempted += len(step.preempted_req_ids or ())
        worker.note(step)
        if step.total_num_scheduled_tokens:
            under_way.append((step, worker.run(step)))
        if under_way and (len(under_way) > asynchronous or not step.total_num_scheduled_tokens):
            scheduler.update_from_output(*under_way.popleft())
        if not asynchronous and step.total_num_scheduled_tokens:
            scheduler.update_draft_token_ids(worker.drafts())
    scheduler.schedule()  # what has ended in between is told of in the next step
    left = free - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return {"came": came, "preempted": preempted, "leaked": left, "left": len(scheduler.requests), **worker.seen}


class Late(AsyncScheduler):
    """How not to do it: the depth is set when vLLM has made the placeholders. Shows that the worker would see it."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        step = super().schedule(*args, **kwargs)
        step.num_spec_tokens_to_schedule = 1
        return step


def blind(scheduler: Any) -> None:
    """From now on nothing can be decided: how far the draft may read is not known."""
    del scheduler._drafts_until


def main(steps: int) -> None:
    """Prints one JSON object: what happened in each kind of run."""
    told = {"late": drive(make(Late, asynchronous=True), steps // 100, 0, asynchronous=True)}
    for name, asynchronous in (("async", True), ("sync", False)):
        scheduler = make(AdaptiveScheduler, asynchronous=asynchronous)
        assert isinstance(scheduler, AsyncScheduler if asynchronous else Scheduler)
        own = scheduler._pilot
        scheduler._pilot = pilot = RandomPilot(0)
        told[f"random {name}"] = drive(scheduler, steps, 0, asynchronous=asynchronous) | {
            "errors": pilot.errors,
            "rows": len(pilot.here),
            **pilot.told,
        }
        scheduler._pilot = own
        told[f"policy {name}"] = drive(scheduler, steps // 10, 1, asynchronous=asynchronous) | {"errors": own.errors}
        blind(scheduler)
        told[f"blind {name}"] = drive(scheduler, steps // 10, 2, asynchronous=asynchronous) | {
            "errors": own.errors,
            "detached": own.detached,
        }
        scheduler.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
