"""Tokens per second of the engine at forced acceptance, beside transformers: the part `goodput` of the GPU kit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_engine import Pair, timed
from adaptspec.bench.random_models import room_for, temperature_for
from adaptspec.bench.transformers_speed import compared
from adaptspec.control.cost_model import CostModel
from adaptspec.request import SamplingParams

RATES = (0.8, 0.6, 0.9)
POLICIES = ("off", "static-1", "static-3", "static-7", "goodput", "goodput-trees")
TURNS = 4
ANSWER = 10  # times as long as what is timed: nobody is to end before
# Of the time, for the engine. The rest is for transformers, of which one compiled start takes a minute.
OWN_SHARE = 0.62


def run(bench: Bench) -> None:
    """All pieces: the engine by batch and rate, then transformers at the first rate."""
    found = bench.piece("engine", partial(engine, bench))
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    heat = found["temperatures"][str(RATES[0])] if found else 1.0
    bench.piece("transformers", partial(compared, bench, heat))


def engine(bench: Bench) -> dict[str, Any]:
    """Every policy at every batch and rate: plain decoding in an engine of its own, too, and each line over that."""
    sizes, most = bench.sizes, max(bench.sizes.batches)
    context = sizes.prompt + (ANSWER + 1) * sizes.tokens
    cached = min(room_for(sizes, bench.device), (most + 1) * (context + 64))
    pair = Pair.of(sizes, bench.device, rows=most, cached=cached, context=context)
    heats = {str(rate): temperature_for(rate, pair.target, pair.draft) for rate in RATES}
    costs = pair.costs(most, bench.seconds / 100)
    lines: list[dict[str, Any]] = []
    result = {"temperatures": heats, "verify_ms": _milliseconds(costs), "runs": lines}
    bench.result["pieces"]["engine"] = result  # whatever fails later, what was measured stays
    for batch in sizes.batches:
        for line in _batch(bench, pair, heats, costs, batch):
            lines.append(line)
            bench.write()
    return result


def _batch(bench: Bench, pair: Pair, heats: dict[str, float], costs: CostModel, batch: int) -> Iterator[dict[str, Any]]:
    sizes = bench.sizes
    alone, together = pair.core(("off",), batch, costs), pair.core(POLICIES, batch, costs)
    ways = [("off, alone", "off", alone), *((name, name, together) for name in POLICIES)]
    for rate, heat in heats.items():
        plain = 0.0
        for shown, name, (core, records) in ways:
            if not bench.has(f"{shown} at {rate} with {batch} rows", (1 - OWN_SHARE) * bench.seconds):
                continue
            params = SamplingParams(ANSWER * sizes.tokens, heat, seed=1, ignore_eos=True)
            runs = [
                timed(core, records, pair.requests(batch, sizes, params, name, turn), sizes.tokens)
                for turn in range(TURNS)
            ]
            # The first ones warm up, and let a policy learn.
            middle = sorted(runs[1:], key=lambda run: run["tokens_per_second"])[(TURNS - 1) // 2]
            plain = plain or middle["tokens_per_second"]
            line = {"rows": batch, "rate": rate, "policy": shown, "over_plain": middle["tokens_per_second"] / plain}
            yield {**line, **middle}


def _milliseconds(costs: CostModel) -> list[dict[str, Any]]:
    profile = costs.profile
    return [
        {"rows": count, **{f"{width} tokens": 1e3 * one for width, one in zip(profile.tokens, line, strict=True)}}
        for count, line in zip(profile.rows, profile.verify, strict=True)
    ]
