"""How near to the memory's bandwidth passes come, and what takes the rest: the part `bandwidth` of the GPU kit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from adaptspec.bench.device_laps import TURNS, DeviceLaps
from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_models import FULL, random_decoder, room_for, weight_bytes
from adaptspec.gpu.device_decoder import TILES, DeviceDecoder, kernels_for, padded, shared_tokens
from adaptspec.gpu.ops import token_keys
from adaptspec.gpu.plan import AttentionPlan, Workspace, programs, tiles
from adaptspec.models.attention import Heads
from adaptspec.models.config import read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK

NOMINAL = {"H200": 4.8e12, "H100": 3.35e12, "A100-SXM4-80GB": 2.04e12, "B200": 8e12}  # bytes per second, by the vendor
DEPTH, KERNELS, REPLAYS = 7, 15, 20
CACHED = 2.5e8  # bytes of weights that no cache of a device holds


@dataclass(frozen=True)
class Limit:
    """Bytes per second: what a large copy moves here, read and written, and what the vendor says."""

    copied: float
    nominal: float | None

    def shares(self, moved: float, seconds: float) -> dict[str, float]:
        known = {"of_copy": moved / seconds / self.copied}
        return known if self.nominal is None else {**known, "of_nominal": moved / seconds / self.nominal}


def run(bench: Bench) -> None:
    """All pieces, what is asked for most first."""
    limit = Limit(1e10, None)

    def copied() -> dict[str, Any]:
        nonlocal limit
        limit = memory(bench.device, 2**31 if bench.sizes is FULL else 2**20)
        return {"gb_per_second": limit.copied / 1e9, "nominal": limit.nominal}

    bench.piece("memory", copied)
    sizes, models = bench.sizes, {}
    longest = max(sizes.contexts) + 2 * (DEPTH + 1) + CUDA_BLOCK
    room = {"rows": max(sizes.rows), "cached": room_for(sizes, bench.device), "context": longest}

    def made() -> dict[str, Any]:
        for seed, (name, shape) in enumerate((("target", sizes.target), ("draft", sizes.draft))):
            models[name] = random_decoder(shape, bench.device, seed=seed, **room)
        return {name: weight_bytes(shape) / 1e9 for name, shape in (("gb", sizes.target), ("draft_gb", sizes.draft))}

    bench.piece("models", made)
    if len(models) == 2:
        target, draft = models["target"], models["draft"]
        bench.piece("plain rounds", partial(plain, bench, target, limit))
        bench.piece("draft steps", partial(steps, bench, target, draft, limit))
        bench.piece("one round", partial(profiled, bench, target, draft), 20)
        bench.piece("one draft step", partial(profiled, bench, target, draft, alone=True), 20)
    for name, shape in (("target", sizes.target), ("draft", sizes.draft)):
        bench.piece(f"products, {name}", partial(products, shape, bench, limit), 10)
        bench.piece(f"attention, {name}", partial(attention, shape, bench, limit), 10)
    bench.piece("choices", partial(choices, bench, limit), 10)


def memory(device: torch.device, size: int) -> Limit:
    """By a copy of so many bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return Limit(2 * len(source) / seconds, next((most for known, most in NOMINAL.items() if known in name), None))


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Of one call, replayed as a graph where there are graphs: the median of several turns."""
    run()
    if device.type != "cuda":
        return min(_clocked(run) for _ in range(3))
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYS):
            run()
    turns: list[float] = []
    for _ in range(5):
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        graph.replay()
        done.record()
        done.synchronize()
        turns.append(begun.elapsed_time(done) * 1e-3 / REPLAYS)
    return statistics.median(turns[1:])


def _clocked(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)


def plain(bench: Bench, target: DeviceDecoder, limit: Limit) -> list[dict[str, Any]]:
    """Rounds of one token per row, as they are captured, by rows and what each holds."""
    laps, found = DeviceLaps([target], max(bench.sizes.rows), 1), []
    each = target.cache.shape.bytes_per_token(torch.bfloat16)
    for count, context in product(bench.sizes.rows, bench.sizes.contexts):
        seconds = laps.seconds(count, context, 1) if bench.has(f"plain rounds of {count} x {context}") else None
        if seconds is not None:
            moved = weight_bytes(bench.sizes.target) + count * context * each
            line = {"rows": count, "context": context, "ms": 1e3 * sum(seconds), "verify_ms": 1e3 * seconds[1]}
            found.append({**line, **limit.shares(moved, seconds[1])})
    return found


def steps(bench: Bench, target: DeviceDecoder, draft: DeviceDecoder, limit: Limit) -> list[dict[str, Any]]:
    """Draft steps within rounds: what a token beyond the first takes, and what the first does; and verifying 8."""
    laps, found = DeviceLaps([target, draft], max(bench.sizes.rows), DEPTH + 1), []
    each = draft.cache.shape.bytes_per_token(torch.bfloat16)
    for count, context in product(bench.sizes.rows, bench.sizes.contexts):
        if not bench.has(f"draft steps of {count} x {context}"):
            continue
        short, long = (laps.seconds(count, context, width, drafts=True) for width in (2, DEPTH + 1))
        if short is None or long is None:
            continue
        step = max((long[0] - short[0]) / (DEPTH - 1), 1e-9)
        line = {"rows": count, "context": context, "step_ms": 1e3 * step, "first_ms": 1e3 * short[0]}
        shares = limit.shares(weight_bytes(bench.sizes.draft) + count * context * each, step)
        found.append({**line, **shares, "verify_8_ms": 1e3 * long[1]})
    return found


def profiled(bench: Bench, target: DeviceDecoder, draft: DeviceDecoder, *, alone: bool = False) -> dict[str, Any]:
    """Kernels of a round of one row at depth 7, or of drafting alone, by their time; and times that the host waits."""
    context, depth = bench.sizes.contexts[0], DEPTH
    laps = DeviceLaps([draft], 1, 1) if alone else DeviceLaps([target, draft], 1, depth + 1)
    width = 1 if alone else depth + 1
    laps.seconds(1, context, width, drafts=not alone)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.device.type == "cuda" else [])]
    with profile(activities=activities) as seen:
        laps.seconds(1, context, width, drafts=not alone)
    events, rounds = seen.key_averages(), TURNS + 1
    on_device = bench.device.type == "cuda"

    def spent(event: Any) -> float:
        return float(event.self_device_time_total if on_device else event.self_cpu_time_total)

    kernels = sorted((e for e in events if not on_device or spent(e)), key=spent, reverse=True)
    waits = sum(e.count for e in events if "Synchronize" in e.key)
    return {
        "waits_per_round": waits / rounds,
        "copies_per_round": sum(e.count for e in events if e.key.startswith("cudaMemcpy")) / rounds,
        "kernels_per_round": sum(e.count for e in kernels) / rounds,
        "kernels": [
            {"name": e.key[:90], "calls": e.count / rounds, "us_per_round": spent(e) / rounds}
            for e in kernels[:KERNELS]
        ],
    }


def matrices(shape: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The matrices of one layer, and the head's, as [in, out]."""
    config = read_decoder_config(shape)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "qkv": (config.hidden, q + 2 * kv),
        "output": (q, config.hidden),
        "gate_up": (config.hidden, 2 * config.mlp),
        "down": (config.mlp, config.hidden),
        "head": (config.hidden, config.vocab_size),
    }


def copies_beyond_cache(size: tuple[int, int], bench: Bench) -> int:
    """How many bfloat16 matrices of a size no cache of a device holds; one where sizes are tiny."""
    return max(1, int(CACHED // (2 * size[0] * size[1]))) if bench.sizes is FULL else 1


def products(shape: Mapping[str, Any], bench: Bench, limit: Limit) -> list[dict[str, Any]]:
    """Each product of a layer, and the head, by tokens; both ways that a matrix may lie in."""
    device, found = bench.device, []
    for name, (wide, out) in matrices(shape).items():
        for tokens in (16, 64, 128, 192, 256):
            if not bench.has(f"product {name} of {tokens}"):
                continue
            x = torch.randn(tokens, wide, device=device).bfloat16()
            line: dict[str, Any] = {"product": name, "tokens": tokens}
            for way in ("in_out", "out_in"):
                copies = copies_beyond_cache((wide, out), bench)
                size = (wide, out) if way == "in_out" else (out, wide)
                weights = [torch.randn(size, dtype=torch.bfloat16, device=device) for _ in range(copies)]
                seconds = seconds_of(partial(_multiply, x, weights, turned=way == "out_in"), device) / copies
                line |= {f"{way}_us": 1e6 * seconds}
                line |= {f"{way}_{key}": share for key, share in limit.shares(2 * wide * out, seconds).items()}
            found.append(line)
    return found


def _multiply(x: torch.Tensor, weights: list[torch.Tensor], *, turned: bool) -> None:
    for weight in weights:
        torch.mm(x, weight.t() if turned else weight)


def attention(shape: Mapping[str, Any], bench: Bench, limit: Limit) -> list[dict[str, Any]]:
    """One layer's, by rows, context and tokens of each row: splits shared as passes do, and walked over."""
    config, device = read_decoder_config(shape), bench.device
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    kernels, processors = kernels_for(device)
    found = []
    for count, context, new in product(bench.sizes.rows[::2], bench.sizes.contexts, (1, 8)):
        places = -(-(context + new) // CUDA_BLOCK) * CUDA_BLOCK
        if count * places > bench.sizes.cached or not bench.has(f"attention of {count} x {context}"):
            continue
        pool = torch.randn(count * places, 2 * heads.kv * heads.dim, dtype=torch.bfloat16, device=device)
        table = torch.arange(len(pool) // CUDA_BLOCK, device=device).view(count, -1).int()
        laid = tiles(np.arange(count), np.full(count, new), heads)
        at = torch.arange(context, context + new, device=device).repeat(count).int()
        queries = torch.randn(count * new, heads.query * heads.dim, dtype=torch.bfloat16, device=device)
        tiled = torch.from_numpy(laid.astype(np.int32)).to(device)
        own = torch.arange(0, len(pool), places, device=device).repeat_interleave(new) + at
        plan = AttentionPlan(heads, CUDA_BLOCK, tiled, at, torch.zeros_like(own), own, at, table)
        several = programs(len(laid), heads, places, processors)
        line: dict[str, Any] = {"rows": count, "context": context, "new": new}
        moved = count * context * pool.shape[1] * 2
        ways = {"walked": plan}
        if several > 1 and padded(count * new, TILES[0]) <= shared_tokens(heads, places):
            work = Workspace.of(count * new, heads, places, device)
            ways["shared"] = replace(plan, workspace=work, programs=several)
        for way, one in ways.items():
            seconds = seconds_of(partial(kernels.attend, queries, pool, one), device)
            line |= {f"{way}_us": 1e6 * seconds}
            line |= {f"{way}_{key}": share for key, share in limit.shares(moved, seconds).items()}
        found.append(line)
    return found


def choices(bench: Bench, limit: Limit) -> list[dict[str, Any]]:
    """Greedy and drawn."""
    vocab, device, found = int(bench.sizes.target["vocab_size"]), bench.device, []
    kernels, tokens = kernels_for(device)[0], token_keys(vocab, device)
    for count, temperature in product((16, 64, 256), (0.0, 0.8)):
        logits = torch.randn(count, vocab, device=device)
        keys, heats = torch.arange(count, device=device), torch.full((count,), temperature, device=device)
        seconds = seconds_of(partial(kernels.choose, logits, heats, keys, tokens), device)
        line = {"positions": count, "temperature": temperature, "us": 1e6 * seconds}
        found.append({**line, **limit.shares(4 * count * vocab, seconds)})
    return found
