"""Hours of service in minutes: ragged contexts, arrivals, aborts, all ways to draw: the part `soak` of the GPU kit."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_engine import Pair
from adaptspec.bench.random_models import prompts, room_for
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.results import Completion

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ABORTED, SAMPLED, EVERY = 0.15, 12, 2.0  # share of requests, texts that run again by themselves, seconds
LEFT = 0.15  # of the time, for those
GROWS = 1.02  # memory that may differ by what caches of allocators keep


@dataclass
class Seen:
    """What came of it."""

    done: int = 0
    aborted: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    kept: list[tuple[Request, tuple[int, ...]]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)  # bytes


def run(bench: Bench) -> None:
    """One piece."""
    bench.piece("soak", lambda: soak(bench))


def soak(bench: Bench) -> dict[str, Any]:
    """Requests come and go until little time is left; then the caches are empty, and some texts are written again."""
    sizes, device = bench.sizes, bench.device
    rows, longest = sizes.batches[-2], max(sizes.contexts)
    context = longest + 2 * sizes.tokens
    pair = Pair.of(sizes, device, rows=rows, cached=room_for(sizes, device), context=context)
    core, _ = pair.core(("goodput",), rows, pair.costs(rows, bench.seconds / 100))
    seen, until = Seen(), time.monotonic() + (1 - LEFT) * bench.left
    again = asyncio.run(_served(AsyncEngine(core), bench, seen, until, rows))
    free = [model.free_memory for model in (pair.target, pair.draft)]
    early = max(seen.held[: len(seen.held) // 3 + 1], default=0)
    flat = not early or seen.held[-1] <= GROWS * early
    return {
        "requests": seen.done,
        "aborted": seen.aborted,
        "tokens": seen.tokens,
        "errors": seen.errors[:10],
        "free_caches": free,
        "memory_gb": [round(one / 1e9, 3) for one in seen.held[:: max(1, len(seen.held) // 10)]],
        "texts_again": len(again),
        # In 16 bits a text may depend on how many run beside it; at one number of rows never on how deep they draft.
        "other_than_alone": sum(again),
        "good": not seen.errors and free == [1.0, 1.0] and flat and seen.done > 0,
    }


async def _served(engine: AsyncEngine, bench: Bench, seen: Seen, until: float, rows: int) -> list[bool]:
    """Which of the texts that are written again, one by one, are others."""
    chance = random.Random(0)
    try:
        clients = [_client(engine, bench, seen, until, random.Random(chance.random())) for _ in range(rows + rows // 2)]
        await asyncio.gather(_watch(seen, until, bench.device), *clients)
        again = []
        for request, tokens in seen.kept:
            if bench.has("texts again", 10.0):
                again.append((await engine.generate(request)).tokens != tokens)
        await engine.drain(5.0)
        return again
    finally:
        engine.close()


async def _watch(seen: Seen, until: float, device: torch.device) -> None:
    while time.monotonic() < until and device.type == "cuda":
        seen.held.append(torch.cuda.memory_reserved(device))
        await asyncio.sleep(EVERY)


async def _client(engine: AsyncEngine, bench: Bench, seen: Seen, until: float, chance: random.Random) -> None:
    """One request at least, however slow the machine is."""
    again = True
    while again:
        request = _request(bench, chance)
        leaves = chance.randrange(1, 20) if chance.random() < ABORTED else math.inf
        got, completion = 0, None
        try:
            async with aclosing(engine.stream(request)) as pieces:
                async for delta in pieces:
                    got, completion = got + len(delta.tokens), delta.completion
                    if got >= leaves:
                        break
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            seen.errors.append(f"{type(error).__name__}: {error}")
            return
        _note(seen, request, completion, got)
        again = time.monotonic() < until


def _note(seen: Seen, request: Request, completion: Completion | None, tokens: int) -> None:
    seen.tokens += tokens
    if completion is None:
        seen.aborted += 1
        return
    seen.done += 1
    if completion.error is not None:
        seen.errors.append(completion.error)
    elif len(seen.kept) < SAMPLED and len(request.prompt) < 2000:
        seen.kept.append((request, completion.tokens))


def _request(bench: Bench, chance: random.Random) -> Request:
    sizes, longest = bench.sizes, max(bench.sizes.contexts) - 8
    length = int(math.exp(chance.uniform(math.log(8), math.log(longest))))
    seed, vocab = chance.randrange(2**40), int(sizes.target["vocab_size"])
    draws: dict[str, Any] = {"max_tokens": chance.randrange(1, 2 * sizes.tokens), "seed": seed}
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 2.0, "ignore_eos": True},
        {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 0.3},
        {"temperature": 1.0, "top_k": 50, "logit_bias": {7: 3.0}},
    ]
    if find_spec("llguidance"):
        ways.append({"temperature": 1.0, "grammar": Grammar(json.dumps(SCHEMA))})
    params = SamplingParams(**draws, **chance.choices(ways, [4, 4, 1, 1, 1][: len(ways)])[0])
    return Request(f"r{seed}", prompts(1, length, vocab, seed)[0], params)
