"""The operators in torch: equal to the CPU's path, with bits that do not depend on what else is in a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu.device_sampling import PositionRules, RuleTables
from adaptspec.models.attention import Heads, Span
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from tests.gpu import reference
from tests.gpu.passes import Row, made, plan_of, slots_of
from tests.gpu.sampling_params import PARAMS, VOCAB

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
    """Regardless of what a cache holds where nothing was written; and padding results in 0."""
    one = made(heads, batch, window=window, context=160, seed=seed)
    out = reference.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(out, one.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("heads", [Heads(4, 1, 8), Heads(2, 2, 64), Heads(14, 2, 16)])
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("cached", [0, 1, 30, 63, 511, 512, 513, 1023, 1200])
def test_attention_of_a_token_does_not_depend_on_what_else_is_in_the_pass(
    cached: int, window: int | None, heads: Heads, dtype: torch.dtype
) -> None:
    """Alone, in a chain, in a prompt, as a side node, and next to another row: the same bits."""
    draw, blocks = torch.Generator().manual_seed(cached), np.random.default_rng(cached).permutation(80).reshape(2, 40)
    pool = torch.randn(80 * 32, 2 * heads.kv * heads.dim, generator=draw).to(dtype)
    query = torch.randn(heads.query * heads.dim, generator=draw).to(dtype)

    def attended(spans: Sequence[Span], token: int, pool: torch.Tensor) -> torch.Tensor:
        plan = plan_of(heads, spans, blocks, window=window)
        queries = torch.randn(len(plan.base), len(query), generator=draw).to(dtype)
        queries[token] = query
        return reference.attend(queries, pool, plan)[token]

    alone = attended([Span(0, cached, cached + 1)], 0, pool)
    assert alone.any()
    for before in (1, 4, 7, 39):
        start = max(0, cached - before)
        for end in (cached + 1, cached + 8 - min(before, 7)):
            assert torch.equal(attended([Span(0, start, end)], cached - start, pool), alone)
            others = [Span(1, 600, 603), Span(0, start, end), Span(1, 603, 604)]
            assert torch.equal(attended(others, 3 + cached - start, pool), alone)
    if cached:
        # The newest token, three nodes of a chain, and the token as another child of the newest.
        seen = np.tri(5, dtype=np.bool_)
        seen[4, 1:4] = False
        moved = pool.clone()
        at, side = slots_of(blocks[0], np.array([cached, cached + 3]))
        moved[side] = pool[at]
        assert torch.equal(attended([Span(0, cached - 1, cached + 4, seen)], 4, moved), alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_other_operators_do_not_depend_on_what_else_is_in_the_pass(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    residual, gate_up, qkv = (torch.randn(64, width, generator=draw).to(dtype) for width in (90, 2 * 91, 8 * 24))
    weight, norm = torch.rand(90).to(dtype), reference.HeadNorm(torch.rand(6, 24).to(dtype), 1e-6)
    angles = torch.outer(torch.arange(64.0), torch.rand(12))
    cos, sin, every = angles.cos(), angles.sin(), torch.arange(64)

    def computed(part: torch.Tensor) -> list[torch.Tensor]:
        pool = torch.zeros(64, 4 * 24, dtype=dtype)
        queries = reference.rope_store(qkv[part].clone(), cos, sin, part.int(), part, pool, norm)
        normed = reference.add_norm(None, residual[part].clone(), weight, 1e-5)
        return [normed, reference.silu_mul(gate_up[part]), queries, pool[part]]

    together = computed(every)
    for part in (every[:1], every[5:6], every[3:40], every[63:]):
        for found, all_found in zip(computed(part), together, strict=True):
            assert torch.equal(found, all_found[part])


@given(st.integers(1, 40), st.integers(1, 5), SEEDS)
def test_candidates_are_the_largest_with_noise(vocab: int, candidates: int, seed: int) -> None:
    """Draws without replacement, the first of equals; a smaller vocabulary is filled up with confidences of 0."""
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
    logits[0, 1::3] = -torch.inf
    logits[2] = logits[2].round()
    temperatures, keys, tokens = torch.tensor([0.7, 1.3, 0.0]), torch.arange(3) + seed, reference.token_keys(vocab)
    noise = torch.where(temperatures[:, None] > 0, reference.gumbel(keys[:, None] ^ tokens), 0.0)
    perturbed = logits / torch.tensor([[0.7], [1.3], [1.0]]) + noise
    best = torch.sort(perturbed, dim=1, descending=True, stable=True)
    found, first = (reference.choose(logits, temperatures, keys, tokens, count) for count in (candidates, 1))
    there = min(vocab, candidates)
    likely = perturbed.softmax(1).gather(1, best.indices)[:, :there]
    token, confidence = found.token[:, :there], found.confidence[:, :there]
    assert found.token.shape == found.confidence.shape == (3, candidates)
    assert torch.equal(token.masked_fill(likely == 0, 0), best.indices[:, :there].masked_fill(likely == 0, 0))
    torch.testing.assert_close(confidence, likely, atol=1e-6, rtol=1e-5)
    assert not found.confidence[:, there:].any()
    assert torch.equal(found.entropy, first.entropy)


def test_logits_that_are_not_numbers_show_in_the_entropy() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = torch.nan
    choice = reference.choose(logits, torch.zeros(2), torch.zeros(2, dtype=torch.int64), reference.token_keys(9))
    assert choice.entropy.isnan().tolist() == [False, True]
    assert 0 <= int(choice.token[1, 0]) < 9


@given(st.lists(PARAMS, min_size=1, max_size=4), SEEDS)
def test_rules_are_those_of_the_sampling_on_the_host(params: list[SamplingParams], seed: int) -> None:
    """At the positions of drafts of up to three tokens, for rows whose prompt and output are random."""
    draw, steps = np.random.default_rng(seed), 3
    members = [
        RowSampling(one, 3, draw.integers(0, VOCAB, 5 + draw.integers(0, 9)).tolist(), 5, (1,)) for one in params
    ]
    sampling = SamplingBatch(members, VOCAB)
    index, offsets = (part.ravel() for part in np.mgrid[: len(members), : steps + 1])
    drafted = draw.integers(0, VOCAB, (len(members), steps))
    paths = [drafted[row, :offset].tolist() for row, offset in zip(index, offsets, strict=True)]
    logits = torch.from_numpy(draw.normal(0, 3, (len(index), VOCAB)).astype(np.float32))
    logits[::2, ::5] = -torch.inf
    expected = torch.from_numpy(sampling.process(logits.clone(), index, paths))
    temperatures = torch.tensor([members[row].params.temperature for row in index])
    rules = PositionRules(
        lines=torch.from_numpy(index),
        temperatures=temperatures,
        penalties=torch.tensor([members[row].penalties for row in index]),
        top_k=torch.tensor([members[row].top_k for row in index]),
        cuts=torch.tensor([members[row].cuts for row in index]),
        paths=torch.tensor([path + [-1] * (steps - len(path)) for path in paths], dtype=torch.int32),
        masks=torch.arange(len(index)),
    )
    reference.apply_rules(logits, rules, tables_of(members, list(zip(index.tolist(), paths, strict=True))))
    scores = logits / torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(1)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


def tables_of(members: Sequence[RowSampling], positions: Sequence[tuple[int, list[int]]]) -> RuleTables:
    """A line for each row, and a mask for each position."""
    counts, bias = np.zeros((len(members), VOCAB), dtype=np.int32), np.zeros((len(members), VOCAB), dtype=np.float32)
    for row, member in enumerate(members):
        if member.penalised:
            np.add.at(counts[row], member.tokens[member.prompt_length :], 2)
            counts[row, np.unique(member.tokens[: member.prompt_length])] += 1
        for token, value in member.params.logit_bias.items():
            bias[row, token] = value
    masks = np.zeros((len(positions), 8), dtype=np.uint8)
    for line, (row, path) in zip(masks, positions, strict=True):
        allowed = np.ones(VOCAB, dtype=np.bool_)
        if len(path) < members[row].missing:
            allowed[members[row].early(VOCAB)] = False
        line[: VOCAB // 8] = np.packbits(allowed, bitorder="little")
    return RuleTables(torch.from_numpy(counts), torch.from_numpy(bias), torch.from_numpy(masks.view(np.int32)))
