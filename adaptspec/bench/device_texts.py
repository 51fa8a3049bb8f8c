"""Texts of random models on a device: the same at every depth, replayed or call by call, in bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_engine import Pair, texts
from adaptspec.bench.random_models import temperature_for
from adaptspec.request import SamplingParams

POLICIES = ("off", "static-3", "static-7", "goodput")
TURNS = 4  # of prompts


def texts_by_depth(bench: Bench) -> list[dict[str, Any]]:
    """Texts that are not those of plain decoding, by rows and policy, greedy and drawn; prompts come anew in turns."""
    sizes = bench.sizes
    rows = [count for count in (1, 4) if count <= max(sizes.rows)]
    context, most = sizes.prompt + 4 * sizes.tokens, max(rows)
    pair = Pair.of(sizes, bench.device, rows=most, cached=(most + 1) * (context + 64), context=context)
    heat = temperature_for(0.8, pair.target, pair.draft)
    costs = pair.costs(most, bench.seconds / 200)
    found = []
    for count in rows:
        cores = {
            "graphs": pair.core(POLICIES, count, costs),
            "eager": pair.core(POLICIES[:2], count, costs, eager=True),
        }
        for temperature in (0.0, heat):
            plain: dict[int, dict[str, tuple[int, ...]]] = {}
            for way, (core, records) in cores.items():
                for name in core.controller.policies:
                    records.rounds.clear()
                    other = 0
                    for turn in range(TURNS):
                        params = SamplingParams(sizes.tokens, temperature, seed=turn, ignore_eos=True)
                        done = texts(core, pair.requests(count, sizes, params, name, turn))
                        before = plain.setdefault(turn, done)
                        other += sum(done[key] != before[key] for key in before)
                    drafted = sum(int(one.drafted.sum()) for one in records.rounds)
                    accepted = sum(int(one.accepted.sum()) for one in records.rounds)
                    line = {"rows": count, "temperature": temperature, "policy": f"{name}, {way}"}
                    line |= {"texts": TURNS * count, "other": other, "drafted": drafted, "accepted": accepted}
                    found.append({**line, "good": not other})
        del cores
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return found
