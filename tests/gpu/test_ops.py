"""The steps of a pass on a device, in torch: equal to what the CPU's path computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu import ops
from adaptspec.models.attention import Heads
from adaptspec.models.config import RopeConfig
from adaptspec.models.layers import rms_norm, rotations
from adaptspec.models.noise import Stream, gumbel_of, position_keys, seed_keys, token_keys
from adaptspec.models.processors import NO_PATHS, SamplingRow
from adaptspec.models.sampling import SamplingBatch, certainty, leading
from adaptspec.request import SamplingParams
from tests.gpu.passes import Row, made

CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**31)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    if draw(st.booleans()):
        length = draw(st.integers(1, 150))
        return Row(length, draw(st.integers(1, min(length, 20))))
    nodes = draw(st.integers(1, 64))
    return Row(draw(st.integers(1, 90)), 1, [draw(st.integers(-1, node - 1)) for node in range(nodes)])


@given(
    st.sampled_from([Heads(2, 2, 16), Heads(4, 1, 8), Heads(14, 2, 8)]),
    st.lists(rows(), min_size=1, max_size=4),
    st.sampled_from([None, None, 70, 1000]),
    SEEDS,
)
@settings(max_examples=60)
def test_attention_is_that_of_every_row_with_its_mask(
    heads: Heads, batch: list[Row], window: int | None, seed: int
) -> None:
    """Whatever a cache holds where nothing was written; and nothing comes of padding."""
    one = made(heads, batch, window=window, places=160, seed=seed)
    out = ops.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(out, one.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_keys_are_rotated_and_stored_as_on_the_cpu(dtype: torch.dtype, normed: bool) -> None:
    heads, count = Heads(6, 2, 16), 5
    table = rotations(RopeConfig(10_000.0, "default", {}, 4096, 4096), heads.dim, 4096)
    qkv = torch.randn(count, 10 * heads.dim).to(dtype)
    positions, slots = torch.tensor([0, 7, 4095, 8, 8]), torch.tensor([9, 3, 4, 60, 0])
    weight, pool = torch.randn(8, heads.dim).to(dtype), torch.zeros(64, 4 * heads.dim, dtype=dtype)
    wide = qkv.float()[:, : 8 * heads.dim].view(count, 8, heads.dim)
    if normed:
        wide = rms_norm(weight.float(), 1e-6)(wide)
    turned = torch.view_as_real(torch.view_as_complex(wide.unflatten(2, (-1, 2))) * table[positions, None]).flatten(1)
    norm = ops.HeadNorm(weight, 1e-6) if normed else None
    given_values = qkv[:, 8 * heads.dim :].clone()
    queries = ops.rope_store(qkv, table.real, table.imag, positions.int(), slots.int(), pool, norm)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(queries.float(), turned[:, : 6 * heads.dim], **close)
    torch.testing.assert_close(pool[slots, : 2 * heads.dim].float(), turned[:, 6 * heads.dim :], **close)
    assert torch.equal(pool[slots, 2 * heads.dim :], given_values)
    assert pool.any(1).sum() == count


def test_norms_and_gates_are_those_of_the_cpu() -> None:
    x, residual, weight = torch.randn(3, 48), torch.randn(3, 48), torch.randn(48)
    total, gate_up = x + residual, torch.randn(3, 96)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(ops.add_norm(None, residual, weight, 1e-5), rms_norm(weight, 1e-5)(residual), **close)
    torch.testing.assert_close(ops.add_norm(x, residual, weight, 1e-5), rms_norm(weight, 1e-5)(total), **close)
    assert torch.equal(residual, total)
    torch.testing.assert_close(ops.silu_mul(gate_up), F.silu(gate_up[:, :48]) * gate_up[:, 48:], **close)


def test_norms_of_16_bits_round_the_sum_and_then_the_norm_alone() -> None:
    x, residual, weight = (torch.randn(3, 48).bfloat16() for _ in range(3))
    total = x + residual
    normed = ops.add_norm(x, residual, weight[0], 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(normed, rms_norm(weight[0].float(), 1e-5)(total.float()).bfloat16())


@given(
    st.lists(st.sampled_from([0.0, 1e-7, 0.3, 1.0, 1.7]), min_size=1, max_size=6),
    st.integers(2, 400),
    st.sampled_from([-7, 0, 5]),
    SEEDS,
)
def test_choices_are_those_of_a_sampling_batch(temperatures: list[float], vocab: int, more: int, seed: int) -> None:
    """Token, confidence and entropy; whatever the head's width; with tokens that were removed."""
    vocab, count = max(vocab, 9), len(temperatures)
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab + more, generator=draw) * 4
    logits[:, ::3] = -torch.inf
    params = [SamplingParams(temperature=temperature, max_tokens=1) for temperature in temperatures]
    members = [SamplingRow(one, seed + i, [1] * (i + 3), 1, ()) for i, one in enumerate(params)]
    batch, index, offsets = SamplingBatch(members, vocab, CPU), np.arange(count), np.zeros(count, dtype=np.int64)
    scores = batch.process(logits, index, offsets, NO_PATHS)
    perturbed = batch.perturbed(scores, index, offsets)
    tokens, likely = leading(perturbed, 1)
    keys = position_keys(seed_keys(seed + index), index + 3, Stream.CHOICE)
    choice = ops.choose(logits, torch.tensor(temperatures), torch.from_numpy(keys), token_keys(vocab, CPU))
    assert choice.token.tolist() == tokens[:, 0].tolist()
    np.testing.assert_allclose(choice.confidence.numpy(), likely[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        choice.entropy.numpy(), certainty(scores, choice.token.long()).entropy, rtol=1e-4, atol=1e-5
    )


@given(st.integers(1, 40), st.integers(1, 5), SEEDS)
def test_candidates_are_the_largest_with_noise(vocab: int, candidates: int, seed: int) -> None:
    """Draws without replacement, of equals the first; also of vocabularies that are smaller: the rest is unlikely."""
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
    logits[0, 1::3] = -torch.inf
    logits[2] = logits[2].round()
    temperatures, keys, tokens = torch.tensor([0.7, 1.3, 0.0]), torch.arange(3) + seed, token_keys(vocab, CPU)
    noise = torch.where(temperatures[:, None] > 0, gumbel_of(keys[:, None] ^ tokens), 0.0)
    perturbed = logits / torch.tensor([[0.7], [1.3], [1.0]]) + noise
    best = torch.sort(perturbed, dim=1, descending=True, stable=True)
    found, first = (ops.choose(logits, temperatures, keys, tokens, count) for count in (candidates, 1))
    shape, there = (3, candidates) if candidates > 1 else (3,), min(vocab, candidates)
    likely = perturbed.softmax(1).gather(1, best.indices)[:, :there]
    mine, sure = (one.view(3, -1)[:, :there] for one in (found.token, found.confidence))
    assert found.token.shape == found.confidence.shape == shape
    assert torch.equal(mine.masked_fill(likely == 0, 0), best.indices[:, :there].masked_fill(likely == 0, 0))
    torch.testing.assert_close(sure, likely, atol=1e-6, rtol=1e-5)
    assert not found.confidence.view(3, -1)[:, there:].any()
    assert torch.equal(found.entropy, first.entropy)


@given(st.integers(1, 40), st.integers(1, 4), SEEDS)
def test_parts_of_a_vocabulary_choose_as_the_whole_does(cut: int, candidates: int, seed: int) -> None:
    """As when a head is split over devices; parts may hold nothing but removed tokens."""
    draw, vocab = torch.Generator().manual_seed(seed), 41
    logits = torch.randn(3, vocab, generator=draw)
    logits[0, :cut] = -torch.inf
    logits[2] = logits[2].round()  # equals
    keys, tokens = torch.randint(-(2**62), 2**62, (3,), generator=draw), token_keys(vocab, CPU)
    temperatures = torch.tensor([0.7, 1.0, 0.0])
    parts = [
        ops.choose_parts(logits[:, part], temperatures, keys, tokens[part], part.start, candidates)
        for part in (slice(0, cut), slice(cut, vocab))
    ]
    numbers, ids = (torch.cat(both, -1) for both in zip(*parts, strict=True))
    merged = ops.merge_choices(ops.ChoiceParts(numbers, ids), candidates)
    whole = ops.choose(logits, temperatures, keys, tokens, candidates)
    there = whole.confidence > 0.0
    assert torch.equal(merged.token[there], whole.token[there])
    torch.testing.assert_close(merged[1:], whole[1:], atol=1e-6, rtol=1e-5)


def test_logits_that_are_no_numbers_show_in_the_entropy() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = torch.nan
    choice = ops.choose(logits, torch.zeros(2), torch.zeros(2, dtype=torch.int64), token_keys(9, CPU))
    assert choice.entropy.isnan().tolist() == [False, True]
    assert 0 <= int(choice.token[1]) < 9
