"""Kernels against float64, and texts in bfloat16 to the last bit: the part `kernels` of the GPU kit."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_models import prompts, random_decoder
from adaptspec.gpu import ops
from adaptspec.gpu.device_decoder import DeviceDecoder, kernels_for
from adaptspec.gpu.plan import AttentionPlan, Workspace, tiles
from adaptspec.models.attention import Heads
from adaptspec.models.config import read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK
from adaptspec.models.noise import Stream, position_keys, seed_keys
from adaptspec.models.runner import Packed

WINDOW = 8  # tokens, which are read at once and one by one
# Of results of order 1 that are rounded to 8 bits once, and of sums in float32.
SHORT, EXACT = 1.6e-2, 1e-4


def run(bench: Bench) -> None:
    """All pieces."""
    for name, shape in (("target", bench.sizes.target), ("draft", bench.sizes.draft)):
        for what, check in (("attention", attention), ("others", others)):
            bench.piece(f"{what}, {name}", partial(check, shape, bench.device))
    bench.piece("choices", partial(choices, bench.sizes.target, bench.device))
    for name, shape in (("target", bench.sizes.target), ("draft", bench.sizes.draft)):
        bench.piece(f"windows, {name}", partial(windows, shape, bench.device), 30)
        gc.collect()
    bench.piece("texts", lambda: import_module("adaptspec.bench.device_texts").texts_by_depth(bench), 60)


def attention(shape: Mapping[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Chains and the end of a prompt at several lengths, shared by programs and walked over by one."""
    config = read_decoder_config(shape)
    heads, kernels = Heads(config.heads, config.kv_heads, config.head_dim), kernels_for(device)[0]
    found = []
    for lengths, new in (((1, 513, 1500), 1), ((700, 20, 1024), 8), ((900,), 40)):
        places = -(-max(lengths) // CUDA_BLOCK) * CUDA_BLOCK
        pool = torch.randn(len(lengths) * places, 2 * heads.kv * heads.dim, device=device).bfloat16()
        table = torch.randperm(len(pool) // CUDA_BLOCK, device=device).view(len(lengths), -1).int()
        counts = np.minimum(new, np.array(lengths))
        at = np.concatenate([np.arange(n - c, n) for n, c in zip(lengths, counts.tolist(), strict=True)])
        queries = torch.randn(len(at), heads.query * heads.dim, device=device).bfloat16()
        rows = np.repeat(np.arange(len(lengths)), counts)
        laid, base, owners = (
            torch.from_numpy(one.astype(np.int32)).to(device)
            for one in (tiles(np.arange(len(lengths)), counts, heads), at, rows)
        )
        own = table[owners, base // CUDA_BLOCK].long() * CUDA_BLOCK + base % CUDA_BLOCK
        plan = AttentionPlan(heads, CUDA_BLOCK, laid, base, torch.zeros_like(own), own, base, table)
        work = Workspace.of(len(at), heads, places, device)
        walked, shared = (
            kernels.attend(queries, pool, one) for one in (plan, replace(plan, workspace=work, programs=2))
        )
        want = _attended(queries, pool, plan, rows)
        error = float(((walked.double() - want) / (1.0 + want.abs())).abs().max())
        same = torch.equal(walked, shared)
        found.append(
            {"lengths": lengths, "new": new, "error": error, "same_bits": same, "good": error < SHORT and same}
        )
    return found


def _attended(queries: torch.Tensor, pool: torch.Tensor, plan: AttentionPlan, rows: IntArray) -> torch.Tensor:
    """In float64, token by token."""
    results, heads = [], plan.heads
    for query, row, place in zip(queries.double(), rows.tolist(), plan.positions.tolist(), strict=True):
        held = pool.view(-1, CUDA_BLOCK, pool.shape[1])[plan.table[row].long()].flatten(0, 1)[: place + 1].double()
        keys, values = held.view(place + 1, 2, heads.kv, 1, heads.dim).unbind(1)
        scores = (keys * query.view(heads.kv, heads.group, heads.dim)).sum(3) * heads.dim**-0.5
        results.append((scores.softmax(0).unsqueeze(3) * values).sum(0).flatten())
    return torch.stack(results)


def others(shape: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Rotation and store, norms, gates: largest errors over the largest result."""
    config = read_decoder_config(shape)
    kernels, tokens = kernels_for(device)[0], 40
    dim, kv = config.head_dim, config.kv_heads * config.head_dim
    angles = torch.rand(64, dim // 2, device=device) * 6
    qkv = torch.randn(tokens, config.heads * dim + 2 * kv, device=device).bfloat16()
    pool = torch.zeros(64, 2 * kv, dtype=torch.bfloat16, device=device)
    places = torch.arange(tokens, device=device)
    wide = qkv.double()[:, :-kv].view(tokens, -1, dim // 2, 2)
    turns = torch.polar(torch.ones_like(angles).double(), angles.double())[:tokens, None]
    want = torch.view_as_real(torch.view_as_complex(wide.contiguous()) * turns).flatten(1)
    queries = kernels.rope_store(qkv.clone(), angles.cos(), angles.sin(), places.int(), places, pool)
    got = torch.cat([queries, pool[:tokens]], 1)
    errors = {"rope_store": _error(got, torch.cat([want, qkv[:, -kv:].double()], 1))}
    x, residual, weight = (torch.randn(n, config.hidden, device=device).bfloat16() for n in (tokens, tokens, 1))
    total = (x.double() + residual.double()).bfloat16().double()
    norm = total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight[0].double()
    errors["add_norm"] = _error(kernels.add_norm(x, residual, weight[0], 1e-5), norm)
    gate_up = torch.randn(tokens, 2 * config.mlp, device=device).bfloat16()
    gate, up = gate_up.double().chunk(2, 1)
    errors["silu_mul"] = _error(kernels.silu_mul(gate_up), gate * gate.sigmoid() * up)
    return {**errors, "good": max(errors.values()) < SHORT}


def choices(shape: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Tokens are those of torch on the CPU, where it has float64; confidence and entropy nearly so."""
    vocab, count = int(shape["vocab_size"]), 64
    logits = torch.randn(count, vocab, device=device) * 4
    heats = torch.linspace(0.0, 2.0, count, device=device)
    keys = position_keys(seed_keys(np.arange(count)), np.arange(count), Stream.CHOICE)
    on_device = torch.from_numpy(keys).to(device)
    got = kernels_for(device)[0].choose(logits, heats, on_device, ops.token_keys(vocab, device))
    want = ops.choose(logits.cpu(), heats.cpu(), torch.from_numpy(keys), ops.token_keys(vocab, torch.device("cpu")))
    other = int((got.token.cpu() != want.token).sum())
    scores = logits.cpu().double() / torch.where(heats > 0, heats, 1.0).cpu().double().unsqueeze(1)
    entropy = -(scores.softmax(1) * scores.log_softmax(1)).sum(1)
    errors = {
        "entropy": float((got.entropy.cpu().double() - entropy).abs().max()),
        "confidence": float((got.confidence.cpu() - want.confidence).abs().max()),
    }
    return {"positions": count, "other_tokens": other, **errors, "good": not other and max(errors.values()) < EXACT}


def windows(shape: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Logits of tokens read one by one, at once, and beside another row's, bit by bit; and what a wide pass changes."""
    length = min(700, int(shape["max_position_embeddings"]) // 16)
    model = random_decoder(shape, device, rows=3, cached=8 * length, context=2 * length, seed=5)
    prompt, other, drawn = prompts(3, length, model.info.vocab_size)
    window = list(drawn[:WINDOW])
    _begin(model, prompt)
    one_by_one = torch.cat([_read(model, [(0, [token])]) for token in window])
    found = []
    for before in (0, 7, 100):
        _begin(model, prompt)
        found.append(_read(model, [*([(1, list(other[:before]))] if before else []), (0, window)])[-WINDOW:])
    at_once, beside, wider = found
    same = torch.equal(one_by_one, at_once) and torch.equal(one_by_one, beside)
    changed = float((wider != one_by_one).float().mean())
    tokens = int((wider.argmax(1) != one_by_one.argmax(1)).sum())
    return {
        "same_bits": same,
        "changed_in_another_bucket": changed,
        "tokens_changed_there": tokens,
        "good": same and not changed,
    }


def _begin(model: DeviceDecoder, prompt: tuple[int, ...]) -> None:
    """With the prompt read in row 0, and room in both."""
    for row in range(2):
        model.free(row)
        model.reserve(row, len(prompt) + 2 * WINDOW)
    _read(model, [(0, list(prompt))])


def _read(model: DeviceDecoder, parts: list[tuple[int, list[int]]]) -> torch.Tensor:
    rows, counts, tokens = zip(*((row, len(part), part) for row, part in parts), strict=True)
    sizes = np.array(counts, dtype=np.int64)
    return model.forward(Packed(np.array(rows), sizes, np.concatenate(tokens), np.minimum(sizes, 100))).logits


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())
