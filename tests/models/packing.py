"""Building packed batches, and logits to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from adaptspec.arrays import BoolArray
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Packed, Runner

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def pack(*parts: tuple[int, Sequence[int], int], seen: Sequence[BoolArray | None] | None = None) -> Packed:
    """One `Packed` of (row, tokens, wanted) parts."""
    rows, tokens, wanted = zip(*parts, strict=True)
    counts = [len(part) for part in tokens]
    return Packed(
        np.array(rows, dtype=np.int64),
        np.array(counts, dtype=np.int64),
        np.concatenate([np.array(part, dtype=np.int64) for part in tokens]),
        np.array(wanted, dtype=np.int64),
        seen,
    )


def feed(runner: Runner, row: int, tokens: Sequence[int], wanted: int | None = None) -> torch.Tensor:
    """Reserve room and run `tokens` in `row`; all of their logits, or the last `wanted`."""
    assert runner.reserve(row, runner.length(row) + len(tokens))
    return runner.forward(pack((row, tokens, len(tokens) if wanted is None else wanted))).logits


def cached(runner: Decoder, row: int) -> torch.Tensor:
    """The keys and values of a row [layers, tokens, width]."""
    slots = torch.from_numpy(runner._cache.slots(row, 0, runner.length(row)))
    return torch.stack([layer[slots] for layer in runner._cache.pool])


def random_tokens(count: int, seed: int = 0, vocab: int = 260) -> list[int]:
    """Token ids, the same ones every time."""
    return [int(token) for token in np.random.default_rng(seed).integers(4, vocab, count)]


def reference_logits(path: Path, tokens: Sequence[int]) -> torch.Tensor:
    """What transformers computes in float32, [len(tokens), vocab]."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return logits


def load_runner(place: str | Path, *, device: str = "cpu", dtype: str = "auto", max_rows: int, **limits: int) -> Runner:
    """A model that shares its device with no other; `limits` are those of `CacheLimits`."""
    return load_model(str(place), device=device, dtype=dtype).runner(CacheLimits(max_rows, **limits))
