"""Whether a row's bits in a matrix product depend on the rows around it: the part `bits` of the GPU kit.

Passes run their products in tiles of fixed sizes, because a library may order a row's sums differently in products of
different sizes. Two questions decide whether that is needed here: does a row keep its bits at any place of one size
(`place`: the claim that exactness rests on), and does it keep them at every size (`sizes`: then tiles are not needed)?
On Hopper the split of K over processors is said to be the only source of dependence on the size (vLLM pull request
40845), so each product is measured with and without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from adaptspec.bench.device_bandwidth import copies_beyond_cache, matrices, seconds_of
from adaptspec.bench.gpu_kit import Bench
from adaptspec.gpu.device_decoder import whole_sums

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024, 2048, 4096)  # tokens of a product: rounds, and prompts
WIDEST_HEAD = 512  # a head's: more have no logits at a time
AGAIN = 3  # times that each place gets other neighbours
# How products are computed: as torch does by default; with whole sums in 32 bits; by cuBLASLt without split K.
WAYS: Mapping[str, tuple[str, bool]] = {
    "default": ("cublas", True),
    "whole": ("cublas", False),
    "lt": ("cublaslt", False),
}


def run(bench: Bench) -> None:
    """Each product of the target and of the draft model, computed in each way."""
    for model, shape in (("target", bench.sizes.target), ("draft", bench.sizes.draft)):
        for way in WAYS if bench.device.type == "cuda" else ("default",):
            bench.piece(f"{model}, {way}", partial(products, shape, bench, way), 8)


def products(shape: Mapping[str, Any], bench: Bench, way: str) -> list[dict[str, Any]]:
    """By product: `good` where no place changes a row, `sizes` whose bits are those of 64 tokens, and microseconds."""
    with computed(way, bench.device):
        return [product(name, size, bench) for name, size in matrices(shape).items()]


@torch.inference_mode()
def product(name: str, size: tuple[int, int], bench: Bench) -> dict[str, Any]:
    """One of them, whose matrix is [in, out]."""
    wide, _ = size
    device, head = bench.device, name == "head"
    copies = copies_beyond_cache(size, bench)
    weights = [(torch.randn(size, device=device) * wide**-0.5).bfloat16() for _ in range(copies)]
    row = torch.randn(1, wide, device=device).bfloat16()
    bits: dict[int, torch.Tensor] = {}
    line: dict[str, Any] = {"product": name, "good": True}
    moved = []
    for tokens in (size for size in SIZES if not head or size <= WIDEST_HEAD):
        found = []
        for place in sorted({0, min(1, tokens - 1), max(tokens // 2 - 1, 0), tokens // 2, tokens - 1}):
            for _ in range(AGAIN):
                x = torch.randn(tokens, wide, device=device).bfloat16()
                x[place] = row
                found.append(_multiply(x, weights[0], head=head)[place].clone())
        if not all(torch.equal(found[0], one) for one in found):
            moved.append(tokens)
        bits[tokens] = found[0]
        x = torch.randn(tokens, wide, device=device).bfloat16()
        run = partial(_multiply_all, x, weights, head=head)
        line[f"us_{tokens}"] = round(1e6 * seconds_of(run, device) / copies, 1)
    line |= {"good": not moved, "moved_at": moved}
    line["sizes"] = [tokens for tokens, own in bits.items() if torch.equal(own, bits[64])]
    return line


@contextmanager
def computed(way: str, device: torch.device) -> Iterator[None]:
    """Have products be computed in this way; as passes do afterwards."""
    if device.type != "cuda":
        yield
        return
    library, split = WAYS[way]
    settings, before = torch.backends.cuda, torch.backends.cuda.preferred_blas_library()
    settings.preferred_blas_library(library)
    settings.matmul.allow_bf16_reduced_precision_reduction = split if way != "lt" else (False, False)
    try:
        yield
    finally:
        settings.preferred_blas_library(before)
        whole_sums(device)


def _multiply(x: torch.Tensor, weight: torch.Tensor, *, head: bool) -> torch.Tensor:
    if head and x.device.type == "cuda":
        return torch.mm(x, weight, out_dtype=torch.float32)
    return torch.mm(x, weight)


def _multiply_all(x: torch.Tensor, weights: list[torch.Tensor], *, head: bool) -> None:
    for weight in weights:
        _multiply(x, weight, head=head)
