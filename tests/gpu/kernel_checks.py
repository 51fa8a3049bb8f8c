"""The kernels equal the functions of `ops`: run by `test_kernels.py`, in a process that interprets Triton or has a GPU.

Bits are compared where the text depends on them: what else is in a pass, and who adds its splits, must not matter.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adaptspec.gpu import kernels, ops
from adaptspec.gpu.combs import WIDTH, Candidates, Comb
from adaptspec.gpu.draft_bounds import BINS, Bounds
from adaptspec.gpu.plan import AttentionPlan, tiles
from adaptspec.models.attention import Heads
from adaptspec.models.noise import Stream, position_keys, seed_keys
from tests.gpu.passes import BLOCK, Pass, Row, made

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TREE = (-1, 0, 1, -1, 3, 0, 2, 6, -1, 8)
# The interpreter cuts bfloat16 off where devices round; that it does right for float16.
SHORT = torch.float16 if DEVICE == "cpu" else torch.bfloat16
BATCHES: dict[str, tuple[Row, ...]] = {
    "chains": (Row(1100, 5), Row(1), Row(513, 3)),
    "prompts": (Row(525, 18), Row(20, 20)),
    "trees": (Row(600, 1, TREE), Row(508, 1, TREE), Row(70, 2)),
    "wide": (Row(20, 1, range(-1, 63)),),
}


@pytest.fixture
def _products_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line's product is the same in every line of a tile: so are those of tensor cores, but not those of a BLAS."""
    if DEVICE == "cpu":
        builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder

        def create_dot(_: object, a: Any, b: Any, d: Any, *__: object) -> Any:
            product = (a.data[:, :, None].astype(d.data.dtype) * b.data).sum(axis=1)
            return type(d)(product + d.data, d.dtype.scalar)

        monkeypatch.setattr(builder, "create_dot", create_dot)


@pytest.mark.parametrize(
    ("heads", "window", "batch"),
    [
        (Heads(2, 2, 64), None, "chains"),
        (Heads(1, 1, 128), 40, "prompts"),
        (Heads(4, 1, 128), 100, "chains"),
        (Heads(4, 1, 64), None, "trees"),
        (Heads(7, 1, 64), None, "prompts"),
        (Heads(7, 1, 64), None, "wide"),
        (Heads(7, 1, 128), 700, "trees"),
        (Heads(4, 2, 8), None, "chains"),
    ],
)
def test_attention_equals_that_of_torch(heads: Heads, window: int | None, batch: str) -> None:
    """Whether one program walks over the splits or several share them: then bit for bit."""
    one = made(heads, BATCHES[batch], window=window, device=DEVICE)
    walked = kernels.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(walked, ops.attend(one.queries, one.pool, one.plan), **CLOSE)
    for programs in (1, 2):
        assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(programs)), walked)


def test_attention_of_16_bits_is_near_that_of_torch() -> None:
    one = made(Heads(8, 2, 64), BATCHES["chains"], dtype=SHORT, device=DEVICE)
    walked, expected = kernels.attend(one.queries, one.pool, one.plan), ops.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(walked, expected, atol=1e-2, rtol=1e-2)
    assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(2)), walked)


def only(one: Pass, row: int, tokens: Sequence[int]) -> AttentionPlan:
    """The plan of a pass that has some of its tokens alone, all of one row."""
    plan, at = one.plan, list(tokens)
    cut = torch.from_numpy(tiles(np.array([row]), np.array([len(at)]), plan.heads)).to(DEVICE, torch.int32)
    told = {name: getattr(plan, name)[at] for name in ("base", "seen", "own", "positions")}
    return replace(plan, tiles=cut, **told)


@pytest.mark.usefixtures("_products_by_row")
@pytest.mark.parametrize(("batch", "count", "dtype"), [("chains", 5, torch.float32), ("trees", 11, SHORT)])
def test_attention_does_not_depend_on_what_else_is_in_the_pass(batch: str, count: int, dtype: torch.dtype) -> None:
    """A token of the first row alone, in a tile of its own, and with all others: the same bits."""
    one = made(Heads(4, 1, 64), BATCHES[batch], dtype=dtype, device=DEVICE)
    together = kernels.attend(one.queries, one.pool, one.plan)
    for token in (0, count // 2, count - 1):
        alone = only(one, 0, [token])
        assert torch.equal(kernels.attend(one.queries[[token]], one.pool, alone)[0], together[token])
    some = list(range(1, count, 2))
    assert torch.equal(kernels.attend(one.queries[some], one.pool, only(one, 0, some)), together[some])


@pytest.mark.usefixtures("_products_by_row")
@pytest.mark.parametrize(
    ("length", "window", "dtype"),
    [(1, None, SHORT), (58, None, torch.float32), (508, None, torch.float32), (508, 70, SHORT), (1020, None, SHORT)],
)
def test_attention_of_a_side_node_is_that_of_the_chain(length: int, window: int | None, dtype: torch.dtype) -> None:
    """Bit for bit, with the same key, value and query: also where blocks and splits begin between the two.

    Float32 shows what rounding to 16 bits mostly hides.
    """
    depth, heads = 7, Heads(4, 1, 64)
    one = made(heads, [Row(length + 2 * depth, 1 + 2 * depth), Row(700, 3)], window=window, dtype=dtype, device=DEVICE)
    plan, chain, side = one.plan, slice(1, 1 + depth), slice(1 + depth, 1 + 2 * depth)
    for told in (one.queries, plan.base, plan.positions):
        told[side] = told[chain]
    one.pool[plan.own[side]] = one.pool[plan.own[chain]]
    walked = kernels.attend(one.queries, one.pool, plan)
    assert walked[side].any()
    assert torch.equal(walked[side], walked[chain])
    for programs in (1, 2):
        assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(programs)), walked)
    alone = only(one, 0, [depth])
    assert torch.equal(kernels.attend(one.queries[[depth]], one.pool, alone)[0], walked[2 * depth])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [(Heads(14, 2, 64), torch.float32), (Heads(8, 1, 128), SHORT), (Heads(3, 1, 8), torch.float32)],
)
def test_queries_and_keys_are_rotated_and_stored(heads: Heads, dtype: torch.dtype, normed: bool) -> None:
    angles = torch.outer(torch.arange(500.0), torch.rand(heads.dim // 2)).to(DEVICE)
    qkv = torch.randn(3, (heads.query + 2 * heads.kv) * heads.dim).to(DEVICE, dtype)
    positions, slots = (torch.tensor(one, dtype=torch.int32, device=DEVICE) for one in ([3, 499, 0], [7, 0, 95]))
    norm = ops.HeadNorm(torch.rand(heads.query + heads.kv, heads.dim).to(DEVICE, dtype), 1e-6) if normed else None
    expected, pools = qkv.clone(), torch.zeros(2, 3 * BLOCK, 2 * heads.kv * heads.dim, device=DEVICE, dtype=dtype)
    want = ops.rope_store(expected, angles.cos(), angles.sin(), positions, slots, pools[0], norm)
    got = kernels.rope_store(qkv, angles.cos(), angles.sin(), positions, slots, pools[1], norm)
    close = CLOSE if dtype == torch.float32 else {"atol": 2e-2, "rtol": 1e-2}
    torch.testing.assert_close(got, want, **close)
    torch.testing.assert_close(pools[1], pools[0], **close)
    values = heads.kv * heads.dim
    assert torch.equal(pools[1][:, values:], pools[0][:, values:])


@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
@pytest.mark.parametrize(("hidden", "mlp"), [(896, 1100), (48, 16), (4096, 1024)])
def test_norms_and_gates_equal_those_of_torch(hidden: int, mlp: int, dtype: torch.dtype) -> None:
    x, residual, gate_up = (torch.randn(3, width).to(DEVICE, dtype) for width in (hidden, hidden, 2 * mlp))
    weight, other = torch.rand(hidden).to(DEVICE, dtype), residual.clone()
    close = CLOSE if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(kernels.silu_mul(gate_up), ops.silu_mul(gate_up), **close)
    for added in (None, x):
        got, want = kernels.add_norm(added, residual, weight, 1e-5), ops.add_norm(added, other, weight, 1e-5)
        torch.testing.assert_close(got, want, **close)
        assert torch.equal(residual, other)
    alone = kernels.add_norm(None, residual[1:2], weight, 1e-5)
    assert torch.equal(alone, kernels.add_norm(None, residual, weight, 1e-5)[1:2])


@pytest.mark.parametrize(
    ("vocab", "more", "candidates"),
    [(50, 0, 2), (2048, -3, 3), (4096, 64, 1), (4099, 0, 4), (32_000, 0, 1), (151_936, 0, 4)],
)
def test_choices_are_those_of_torch_token_for_token(vocab: int, more: int, candidates: int) -> None:
    """Greedy and drawn, with removed tokens and equals, from heads that are wider or narrower than the vocabulary."""
    torch.manual_seed(vocab + more)  # of scores that differ in the last bit of noise alone, another one may win
    temperatures = torch.tensor([0.0, 1.0, 0.3, 1.7, 1e-9, 0.0, 0.8], device=DEVICE)
    count = len(temperatures)
    logits = torch.randn(count, vocab + more, device=DEVICE) * 4
    logits[2:4, ::3] = -torch.inf
    logits[4, : vocab // 2] = -torch.inf
    logits[5] = logits[5].round().clamp(max=6.0)
    keys = torch.from_numpy(position_keys(seed_keys(np.arange(count)), np.arange(count) + 9, Stream.CHOICE)).to(DEVICE)
    given = logits, temperatures, keys, ops.token_keys(vocab, torch.device(DEVICE))
    # On the CPU: only there does torch promise the first of equals.
    got, want = kernels.choose(*given, candidates), ops.choose(*(one.cpu() for one in given), candidates)
    assert got.token.tolist() == want.token.tolist()
    assert got.token.dtype == want.token.dtype == torch.int32
    torch.testing.assert_close([one.cpu() for one in got[1:]], list(want[1:]), atol=1e-5, rtol=1e-4)
    alone = kernels.choose(logits[3:4], temperatures[3:4], keys[3:4], given[3], candidates)
    assert all(torch.equal(one[0], other[3]) for one, other in zip(alone, got, strict=True))


def test_parts_of_a_vocabulary_choose_as_the_whole_does() -> None:
    vocab, cut = 6000, 3100
    logits, temperatures = torch.randn(3, vocab, device=DEVICE), torch.tensor([0.7, 1.0, 0.0], device=DEVICE)
    logits[0, :cut] = -torch.inf
    keys, tokens = torch.arange(3, device=DEVICE) * 2**40 + 77, ops.token_keys(vocab, torch.device(DEVICE))
    parts = [
        kernels.choose_parts(logits[:, part], temperatures, keys, tokens[part], part.start, 3)
        for part in (slice(0, cut), slice(cut, vocab))
    ]
    numbers, ids = (torch.cat(both, -1) for both in zip(*parts, strict=True))
    merged = kernels.merge_choices(ops.ChoiceParts(numbers, ids), 3)
    whole = ops.choose(logits, temperatures, keys, tokens, 3)
    assert merged.token.tolist() == whole.token.tolist()
    torch.testing.assert_close(merged[1:], whole[1:], atol=1e-5, rtol=1e-4)


def test_logits_that_are_no_numbers_show_in_the_entropy() -> None:
    logits = torch.randn(3, 2100, device=DEVICE)
    logits[1, 4] = torch.nan
    logits[2] = torch.nan
    keys, tokens = torch.zeros(3, dtype=torch.int64, device=DEVICE), ops.token_keys(2100, torch.device(DEVICE))
    choice = kernels.choose(logits, torch.tensor([0.5, 0.0, 1.0], device=DEVICE), keys, tokens)
    assert choice.entropy.isnan().tolist() == [False, True, True]
    assert all(0 <= token < 2100 for token in choice.token.tolist())


@pytest.mark.parametrize(("vocab", "more"), [(500, 0), (5000, -1200), (32_000, 64)])
def test_rules_are_those_of_torch(vocab: int, more: int) -> None:
    """Penalties of written and drafted tokens, biases, masks, thresholds; what has no rules, or is padding, stays."""
    draw = torch.Generator().manual_seed(vocab)
    logits = torch.randn(8, vocab + more, generator=draw) * 4
    logits[0, ::3] = -torch.inf
    logits[6] = logits[6].round()  # equals at the threshold
    logits[5, 3] = torch.nan
    counts = (torch.randint(0, 60, (5, vocab), generator=draw) - 40).clamp(min=0).int()
    bias = torch.randn(5, vocab, generator=draw) * (torch.rand(5, vocab, generator=draw) < 0.1)
    words = torch.randint(-(2**31), 2**31, (8, -(-vocab // 32)), generator=draw).int()
    infinite = float("inf")
    rows = ops.RuledRows(
        torch.tensor([0, 2, -1, 3]),
        torch.tensor([0.0, 0.7, 1.0, 1.3]),
        torch.tensor([[1.2, 0.3, 0.1], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.8, -0.4, 0.5]]),
        torch.tensor([0, 7, 0, 0]),
        torch.tensor([[1.0, -infinite], [0.9, -infinite], [1.0, -infinite], [0.8, -3.0]]),
        torch.randint(0, vocab, (4, 3), generator=draw),
    )
    at = ops.RuledPositions(
        torch.tensor([0, 1, 2, 3, 1, 2, 3, -1]),
        torch.tensor([0, 1, 2, 3, 3, 0, 2, 0]),
        torch.tensor([-1, 5, -1, -1, 7, 1, vocab - 1, -1]),
        torch.tensor([-1, -1, -1, 4, 5, -1, 2, -1]),
    )
    want, got = logits.clone(), logits.to(DEVICE)
    tables = ops.RuleTables(counts, bias, words)
    ops.apply_rules(want, at, rows, tables)
    parts = (type(part)(*(one.to(DEVICE) for one in part)) for part in (at, rows, tables))
    kernels.apply_rules(got, *parts)
    assert torch.equal(got.cpu().isinf(), want.isinf())
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, **CLOSE)
    assert torch.equal(want[[2, 7]], logits[[2, 7]])
    assert 1 < (want[1, :vocab] > -infinite).sum() <= 7


@pytest.mark.parametrize(("vocab", "spread"), [(300, 2.0), (9000, 0.01), (9000, 3.0)])
def test_thresholds_are_those_of_a_sort(vocab: int, spread: float) -> None:
    """Of sharp scores and of flat ones, where a lane has many that may be kept; each position as if it were alone."""
    draw, infinite = torch.Generator().manual_seed(5), float("inf")
    asked = [  # top-k, top-p, the logarithm of min-p, temperature
        (1, 1.0, -infinite, 1.0),
        (50, 0.9, -infinite, 0.8),
        (200, 0.5, -1.0, 1.0),
        (3000, 0.9, -infinite, 1.0),  # of more that are listed
        (5000, 1.0, -infinite, 1.0),  # more than there are lanes
        (7, 0.9, -infinite, 1.0),  # more than masks have left
        (0, 0.9, -infinite, 1.0),
        (0, 0.999, -infinite, 1.3),
        (0, 1e-42, -infinite, 1.0),
        (0, 0.95, -2.0, 1e-9),
        (0, 1.0, -0.7, 1.0),
    ]
    top_k, top_p, least, heat = (torch.tensor(one) for one in zip(*asked, strict=True))
    count, at = len(asked), torch.arange(len(asked))
    logits = torch.randn(count, vocab, generator=draw) * spread
    logits[5, 3:] = -infinite
    logits[:4:2] = (logits[:4:2] * 8).round()
    none = torch.full((count,), -1)
    plain = torch.tensor([1.0, 0.0, 0.0]).expand(count, 3).contiguous()
    rows = ops.RuledRows(at * 0, heat, plain, top_k, torch.stack((top_p, least), 1), none.unsqueeze(1))
    tables = ops.RuleTables(torch.zeros(1, vocab).int(), torch.zeros(1, vocab), torch.zeros(1, -(-vocab // 32)).int())
    want, got, alone = logits.clone(), logits.to(DEVICE), logits.to(DEVICE)
    where = ops.RuledPositions(at, at * 0, none, none)
    ops.apply_rules(want, where, rows, tables)
    where, rows, tables = (type(part)(*(one.to(DEVICE) for one in part)) for part in (where, rows, tables))
    kernels.apply_rules(got, where, rows, tables)
    assert torch.equal(got.cpu(), want)
    for i in (1, 6):
        kernels.apply_rules(alone[i : i + 1], ops.RuledPositions(*(one[i : i + 1] for one in where)), rows, tables)
        assert torch.equal(alone[i], got[i])


@pytest.mark.parametrize("seed", range(20))
def test_inputs_of_a_pass_are_those_of_torch(seed: int) -> None:
    """To the last bit: of chains, newest tokens and padding, whatever rows hold that nobody reads."""
    draw = torch.Generator().manual_seed(seed)

    def whole(least: int, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(least, most, shape, generator=draw)

    rows, nodes, block, count = 1 + seed % 5, 1 + seed % 7, (8, 32)[seed % 2], (1, 3, 130, 200)[seed % 4]
    blocks, far = 6, 2**40
    table, lengths = whole(0, 10**6, rows + 1, blocks).int(), whole(2, (blocks - 1) * block, rows)
    live, owners = whole(0, 3, count) > 0, whole(0, rows, count)
    offsets = whole(-1, nodes + 1, count) if seed % 3 else whole(-1, nodes + 1, 1).expand(count)
    given = ops.Reading(
        torch.where(live, owners, far),
        torch.where(live, offsets, far) if seed % 3 else offsets,
        live,
        whole(0, rows + 1, rows),
        lengths,
        whole(0, far, rows, 2),
        whole(0, far, rows, nodes),
    )
    size = count + seed % 9
    cache: Any = SimpleNamespace(table=table, block_size=block, rubbish=77)
    want = ops.pass_inputs(given, cache, size)
    cache.table = table.to(DEVICE)
    got = kernels.pass_inputs(ops.Reading(*(part.to(DEVICE) for part in given)), cache, size)
    for mine, its in zip(got, want, strict=True):
        assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist())
    for token in torch.nonzero(live).flatten().tolist():
        row, at = int(owners[token]), int(lengths[owners[token]] - 1 + offsets[token])
        written = [*given.newest[row].tolist(), *given.drafted[row].tolist()]
        slot = int(table[given.rows[row], at // block]) * block + at % block
        assert [int(part[token]) for part in got] == [written[1 + int(offsets[token])], at, slot, at, 0]


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_extended_as_by_torch(seed: int) -> None:
    """Over the steps of a draft: with all bounds or none, ends, candidates beside chains, and scores that are no
    numbers. Chances are sixteenths, so that float32 has their products and sums exactly.
    """
    chance = np.random.default_rng(seed)
    rows, steps, more, candidates = 1 + seed % 6, 1 + seed % 4, seed % 3, (1, WIDTH)[seed % 2]

    def parts(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.from_numpy(chance.integers(low, high, shape)).float() / 16

    columns = [parts(low, high, rows, steps) for low, high in ((0, 6), (20, 60), (0, 3), (8, 32), (0, 6))]
    if seed % 5 == 0:
        columns = [torch.full_like(columns[0], one) for one in (0.0, np.inf, 0.0, 0.0, -1.0)]
    bounds = Bounds(*columns, parts(4, 17, rows, BINS), parts(8, 24, rows, 2))
    comb = Comb(
        torch.from_numpy(chance.integers(1, WIDTH + 2, rows)),
        torch.from_numpy(chance.integers(1, 20, rows)),
        parts(0, 2, rows),
        parts(0, 17, rows, WIDTH, BINS),
    )
    depths, ends = (
        torch.from_numpy(chance.integers(0, steps + 1, rows)),
        torch.from_numpy(chance.integers(0, 9, 1 + seed % 2)),
    )
    results, going = [], [list[list[bool]](), list[list[bool]]()]
    found = []
    for _ in range(steps):
        sure = parts(0, 17, rows, candidates)
        sure[torch.from_numpy(chance.random(sure.shape) < 0.08)] = torch.nan
        tokens = torch.from_numpy(chance.integers(0, 30, sure.shape)).int()
        shape = (rows, candidates) if candidates > 1 else (rows,)
        found.append(ops.Choice(tokens.view(shape), sure.view(shape), parts(0, 50, rows)))
    for which, (module, where) in enumerate(((kernels, DEVICE), (ops, "cpu"))):
        held = torch.full((3, rows + more, steps + 2), 5, device=where)
        told, kept = held.float(), Candidates(rows + more, steps, torch.device(where))
        drafts = ops.Drafts(
            torch.zeros(1, dtype=torch.int64, device=where),
            (depths > 0).to(where),
            torch.ones(rows, device=where),
            depths.to(where),
            held[1, :rows, 0].clone(),
            held[0, :rows],
            told[1, :rows],
            told[2, :rows],
        )
        side = None if candidates == 1 else (Comb(*(one.to(where) for one in comb)), kept)
        own = Bounds(*(one.to(where) for one in bounds))
        for choice in found:
            module.extend_drafts(ops.Choice(*(one.to(where) for one in choice)), drafts, own, ends.to(where), side)
            going[which].append(drafts.asked.tolist())
        results.append([*drafts, held, told, kept.tokens, kept.sure, kept.chances, kept.alive])
    assert going[0] == going[1]
    for mine, its in zip(*results, strict=True):
        assert mine.dtype == its.dtype
        torch.testing.assert_close(mine.cpu(), its, rtol=0.0, atol=0.0, equal_nan=True)
