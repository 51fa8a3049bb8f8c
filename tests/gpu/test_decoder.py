"""A decoder for GPUs, on a CPU with operators of torch: its logits, the bits of a token in any pass, and its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu.decoder import GpuDecoder
from adaptspec.gpu.passes import PagedCache, products_of_equal_rows
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import CacheLimits, CachePlan, CacheShape, KVCache
from adaptspec.models.layers import DenseLinear, HalfLinear, PackedLinear
from adaptspec.models.loading import load_model, plain_decoder
from adaptspec.models.runner import Runner
from tests.conftest import MakeModel
from tests.exactness.worlds import reference_decoder
from tests.models.packing import feed, pack, random_tokens

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 12},
}
LIMITS = CacheLimits(3, cache_tokens=384, context=128, block_size=32)
Product = Callable[..., torch.Tensor]


def gpu(folder: Path, limits: CacheLimits = LIMITS, dtype: str = "bfloat16") -> GpuDecoder:
    runner = load_model(str(folder), device="cpu", dtype=dtype, make=reference_decoder).runner(limits)
    assert isinstance(runner, GpuDecoder)
    return runner


def row_by_row(product: Product) -> Product:
    """Products whose rows have the same bits whatever is in the other rows."""
    return lambda own, x, *out: torch.cat([product(own, row) for row in x.split(1)])


def by_number_of_rows(product: Product) -> Product:
    """Products whose rows differ with the number of rows, as libraries for GPUs split sums differently."""
    return lambda own, x, *out: product(own, x, *out).mul_(1 + 1e-3 * len(x))


PRODUCTS: Mapping[str, Callable[[Product], Product]] = {"invariant": row_by_row, "variable": by_number_of_rows}


@contextmanager
def products(kind: str) -> Iterator[None]:
    """Have matrix products changed in this way."""
    with ExitStack() as patches:
        for form in (DenseLinear, HalfLinear, PackedLinear):
            for name in ("__call__", "logits"):
                changed = PRODUCTS[kind](getattr(form, name))
                patches.enter_context(mock.patch.object(form, name, changed))
        yield


def read(decoder: Runner, rows: Mapping[int, Sequence[int]]) -> list[torch.Tensor]:
    """Run one pass; the logits of each row's tokens."""
    for row, tokens in rows.items():
        assert decoder.reserve(row, decoder.length(row) + len(tokens))
    packed = pack(*((row, tokens, len(tokens)) for row, tokens in rows.items()))
    # What a decoder returns is valid until the next pass.
    return list(decoder.forward(packed).logits.clone().split([len(tokens) for tokens in rows.values()]))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.25)])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_states_are_those_of_the_lean_decoder(
    make_model: MakeModel, family: str, dtype: str, tolerance: float
) -> None:
    """Prompts over several blocks, chains and branches, rows side by side, windows, biases and norms of heads."""
    folder = make_model(family, **FAMILIES[family])
    decoder, lean = gpu(folder, dtype=dtype), load_model(str(folder), device="cpu", dtype=dtype).runner(LIMITS)
    assert isinstance(lean, Decoder)
    for runner in (decoder, lean):
        runner.capture_states((0, 1, 2))
    seen = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=np.bool_)
    texts = [random_tokens(count, seed=count) for count in (70, 5, 33)]
    passes = [
        pack((0, texts[0], 70), (1, texts[1], 2), (2, texts[2], 0)),
        pack((2, [9], 1), (0, [17], 1)),
        pack((0, [7, 8, 9], 3), (1, [5, 6], 2), seen=[seen, None]),
    ]
    for packed in passes:
        for runner in (decoder, lean):
            for row, count in zip(packed.rows.tolist(), packed.counts.tolist(), strict=True):
                assert runner.reserve(row, runner.length(row) + count)
        (logits, states), expected = decoder.forward(packed), lean.forward(packed)
        assert logits.dtype == torch.float32
        # In 16 bits both round to 8 digits, each in its own order.
        torch.testing.assert_close(logits, expected.logits, atol=tolerance, rtol=tolerance / 5)
        torch.testing.assert_close(states, expected.hidden_states, atol=tolerance, rtol=tolerance / 5)
        assert [decoder.length(row) for row in range(3)] == [lean.length(row) for row in range(3)]


@pytest.mark.parametrize("kind", PRODUCTS)
def test_it_is_measured_whether_products_of_several_sizes_have_equal_rows(make_model: MakeModel, kind: str) -> None:
    """Only then passes have several widths."""
    with products(kind):
        assert gpu(make_model("llama")).is_row_invariant == (kind == "invariant")


Pair = tuple[GpuDecoder, GpuDecoder]


@pytest.fixture(scope="module")
def pairs(make_model: MakeModel) -> Mapping[str, Pair]:
    """By kind of products two decoders of a model in bfloat16: passes of up to 130 tokens of the first are captured."""
    limits = CacheLimits(17, cache_tokens=17 * 256, context=256, block_size=32)
    made: dict[str, Pair] = {}
    for kind in PRODUCTS:
        with products(kind):
            captured, direct = (gpu(make_model("llama"), limits) for _ in range(2))
            captured.capture(130)
            made[kind] = captured, direct
    return made


@contextmanager
def emptied(pairs: Mapping[str, Pair], kind: str) -> Iterator[Pair]:
    """The decoders of this kind of products, with no row in their caches."""
    for decoder in pairs[kind]:
        for row in range(17):
            decoder.free(row)
    with products(kind):
        yield pairs[kind]


@pytest.mark.parametrize("kind", PRODUCTS)
@settings(max_examples=4)
@given(data=st.data(), rows=st.integers(1, 16), depth=st.integers(0, 12))
def test_neither_rows_nor_prompts_nor_cuts_change_a_bit(
    pairs: Mapping[str, Pair], kind: str, data: st.DataObject, rows: int, depth: int
) -> None:
    """Up to 16 rows at depth 12 and a prompt: as each by itself, token by token, and cut anywhere."""
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    cuts = sorted(data.draw(st.lists(st.integers(1, 249), max_size=3, unique=True)))
    texts = [numbers.integers(2, 250, count).tolist() for count in numbers.integers(1, 90, rows)]
    newest, late = numbers.integers(2, 250, (rows, depth + 1)).tolist(), numbers.integers(2, 250, 250).tolist()
    with emptied(pairs, kind) as (captured, direct):
        together = read(captured, dict(enumerate(texts)))
        together += read(captured, dict(enumerate(newest)))
        together += read(captured, {16: late[:100], 0: [7]})[:1] + read(captured, {16: late[100:]})
        alone = [read(direct, {row: text})[0] for row, text in enumerate(texts)]
        alone += [torch.cat([read(direct, {row: [token]})[0] for token in own]) for row, own in enumerate(newest)]
        parts = [late[start:end] for start, end in zip([0, *cuts], [*cuts, 250], strict=True)]
        whole = torch.cat([read(direct, {16: part})[0] for part in parts])
    assert all(map(torch.equal, together, [*alone, whole[:100], whole[100:]]))


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_cached_prefix_has_the_bits_of_a_prompt_that_is_read(pairs: Mapping[str, Pair], kind: str) -> None:
    """Of a row that has decoded some of it, and shares full blocks."""
    text = random_tokens(90)
    with emptied(pairs, kind) as (captured, direct):
        read(captured, {0: text[:40]})
        for token in text[40:70]:
            read(captured, {0: [token]})
        assert captured.copy_prefix(0, 1, 70) == 70
        assert torch.equal(read(captured, {1: text[70:]})[0], read(direct, {0: text})[0][70:])


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_side_node_has_the_bits_of_the_chain(make_model: MakeModel, family: str, kind: str) -> None:
    """If it carries the chain's own token; so have the tokens after it, once it is kept.

    Those are written where it was read from, if it was not moved before.
    """
    depth, prompt, chain, after = 6, random_tokens(60), random_tokens(7, seed=1), random_tokens(8, seed=2)
    comb = np.tril(np.ones((1 + 2 * depth, 1 + 2 * depth), dtype=np.bool_))
    comb[1 + depth :, 1:] = np.eye(depth, 2 * depth, depth) + np.tri(depth, 2 * depth, -1)
    nodes = [*chain, *chain[1:]]
    with products(kind):
        decoder = gpu(make_model(family, **FAMILIES[family]))
        for kept in range(1, depth + 1):
            found = []
            for tokens, seen, last in ((chain, None, kept), (nodes, comb, depth + kept)):
                decoder.free(0)
                decoder.reserve(0, 90)
                feed(decoder, 0, prompt)
                logits = decoder.forward(pack((0, tokens, len(tokens)), seen=[seen])).logits
                decoder.keep(0, 60, [*range(kept), last])
                found.append((logits, feed(decoder, 0, after)))
            (straight, next_straight), (both, next_moved) = found
            assert torch.equal(both, torch.cat((straight, straight[1:])))
            assert torch.equal(next_moved, next_straight)


@pytest.mark.parametrize("captured", [0, 40])
def test_only_slots_of_new_tokens_are_written_and_only_visible_ones_read(make_model: MakeModel, captured: int) -> None:
    """Memory that nothing was written to may be NaN, and padding is written to no row's block."""
    decoder = gpu(make_model("mistral", sliding_window=12))
    decoder.capture(captured)
    cache = decoder._cache
    for pool in cache.pool:
        pool.fill_(torch.nan)
    written = set[int]()
    seen = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=np.bool_)
    for packed in (pack((0, random_tokens(40), 40), (2, random_tokens(3), 3)), pack((2, [5, 6, 7], 3), seen=[seen])):
        for row, count in zip(packed.rows.tolist(), packed.counts.tolist(), strict=True):
            start = decoder.length(row)
            assert decoder.reserve(row, start + count)
            written |= set(cache.slots(row, start, start + count).tolist())
        assert decoder.forward(packed).logits.isfinite().all()
    for pool in cache.pool:
        changed = set(np.flatnonzero(pool.isfinite().any(1).numpy()).tolist())
        assert changed - {cache.padding_slot} == written
    assert cache.padding_slot not in written


@pytest.mark.parametrize("captured", [0, 40])
def test_a_pass_may_read_tokens_that_the_host_does_not_know(make_model: MakeModel, captured: int) -> None:
    decoder = gpu(make_model("llama"))
    decoder.capture(captured)
    expected = read(decoder, {0: [6, 11], 1: [8]})
    for row in (0, 1):
        decoder.free(row)
    decoder.drawn = torch.tensor([8, 11, 6, 9])
    found = read(decoder, {0: [-3, -2], 1: [-1]})
    assert all(map(torch.equal, found, expected))


def test_ids_without_tokens_score_minus_infinity(make_model: MakeModel) -> None:
    """Padding of a vocabulary cannot be drawn, whatever runs the model; all other logits are as before."""
    folder, known = make_model("llama"), 250
    for make in (plain_decoder, reference_decoder):
        loaded = load_model(str(folder), device="cpu", dtype="bfloat16", make=make)
        whole, cut = (
            feed(replace(loaded, info=replace(loaded.info, known_tokens=tokens)).runner(LIMITS), 0, random_tokens(9))
            for tokens in (None, known)
        )
        assert cut.shape == whole.shape
        assert (cut[:, known:] == -torch.inf).all()
        torch.testing.assert_close(cut[:, :known], whole[:, :known], atol=0.0, rtol=0.0)


BLOCK = 8
CACHES = (CacheShape(1, 1, 4), CachePlan(12 * BLOCK, 6 * BLOCK, BLOCK, 4), torch.float32, torch.device("cpu"))


@settings(max_examples=60)
@given(data=st.data(), rows=st.lists(st.integers(1, 24), min_size=1, max_size=3))
def test_kept_tokens_are_moved_as_if_each_were_moved_at_once(data: st.DataObject, rows: list[int]) -> None:
    """Those of several rows and rounds in one step, and prefixes that are copied meanwhile."""
    paged, plain = PagedCache(*CACHES), KVCache(*CACHES)
    for row, length in enumerate(rows):
        end = length + data.draw(st.integers(1, 12))
        for cache in (paged, plain):
            assert cache.reserve(row, end)
            cache.set_length(row, end)
            cache.pool[0][cache.slots(row, 0, end)] = torch.arange(end)[:, None] + 100.0 * row
    for row, length in enumerate(rows):
        for _ in range(data.draw(st.integers(1, 2))):
            left = plain.length(row) - length
            places = sorted(data.draw(st.sets(st.integers(0, left - 1)))) if left else []
            for cache in (paged, plain):
                cache.keep(row, length, places)
    copied = data.draw(st.integers(0, plain.length(0)))
    assert paged.copy_prefix(0, 3, copied) == plain.copy_prefix(0, 3, copied)
    paged.flush()
    for row in (*range(len(rows)), 3):
        length = plain.length(row)
        assert paged.length(row) == length
        found, expected = (cache.pool[0][cache.slots(row, 0, length)] for cache in (paged, plain))
        assert torch.equal(found, expected)


def test_a_cache_is_empty_when_no_row_holds_a_block() -> None:
    """The block for padding does not count."""
    cache = PagedCache(*CACHES)
    assert cache.free_share == 1.0
    for row in range(2):
        assert cache.reserve(row, 6 * BLOCK)
    assert cache.free_share == 0.0
    assert not cache.reserve(2, 1)


def test_products_of_a_target_add_in_float32_and_others_as_before() -> None:
    """The settings are the process's, and end with the pass."""
    products_of_cuda = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_tf32")

    def current() -> list[object]:
        return [getattr(products_of_cuda, name) for name in names]

    before, tf32 = current(), products_of_cuda.allow_tf32
    try:
        products_of_cuda.allow_tf32 = True
        # A torch for CPUs refuses this library.
        with mock.patch.object(torch.backends.cuda, "preferred_blas_library", return_value="default") as library:
            with suppress(MemoryError), products_of_equal_rows(torch.device("cuda")):
                assert not any(map(np.any, current()))
                library.assert_called_with("cublaslt")
                raise MemoryError
            library.assert_called_with("default")
        assert current() == [*before[:2], True]
    finally:
        products_of_cuda.allow_tf32 = tf32
