"""The kernels equal the operators in torch: run by `test_kernels.py` in a process that interprets Triton or has a GPU.

Bits are compared where texts depend on them: neither what else is in a pass nor how its splits are shared may matter.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adaptspec.gpu import kernels
from adaptspec.gpu.attention_plan import HeadNorm
from adaptspec.gpu.device_sampling import PositionRules, RuleTables
from adaptspec.models.attention import Heads
from adaptspec.models.noise import Stream, position_keys, seed_keys
from tests.gpu import reference
from tests.gpu.passes import Row, made

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TREE = (-1, 0, 1, -1, 3, 0, 2, 6, -1, 8)
# The interpreter truncates bfloat16 where devices round; it rounds float16 correctly.
SHORT = torch.float16 if DEVICE == "cpu" else torch.bfloat16
BATCHES: dict[str, tuple[Row, ...]] = {
    "chains": (Row(1100, 5), Row(1), Row(513, 3)),
    "prompts": (Row(525, 18), Row(20, 20)),
    "trees": (Row(600, 1, TREE), Row(508, 1, TREE), Row(70, 2)),
    "wide": (Row(20, 1, range(-1, 63)),),
}


@pytest.fixture
def _products_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a line's product the same in every line of a tile, as matrix units do, but not a BLAS."""
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
    """With one program for each tile, or with work items that programs share: then bit for bit."""
    one = made(heads, BATCHES[batch], window=window, device=DEVICE)
    walked = kernels.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(walked, reference.attend(one.queries, one.pool, one.plan), **CLOSE)
    for programs in (2, 40):
        assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(programs)), walked)


@pytest.mark.parametrize("block_size", [1, 16, 24, 64, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
def test_attention_finds_the_blocks_of_a_row(block_size: int, dtype: torch.dtype) -> None:
    rows = [Row(70, 3), Row(130, 1, TREE)]
    one = made(Heads(2, 1, 16), rows, context=150, block_size=block_size, dtype=dtype, device=DEVICE)
    walked, expected = (attend(one.queries, one.pool, one.plan) for attend in (kernels.attend, reference.attend))
    torch.testing.assert_close(walked, expected, atol=1e-2, rtol=1e-2)
    assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(2)), walked)


def test_attention_of_16_bits_is_near_that_of_torch() -> None:
    one = made(Heads(8, 2, 64), BATCHES["chains"], dtype=SHORT, device=DEVICE)
    walked, expected = (attend(one.queries, one.pool, one.plan) for attend in (kernels.attend, reference.attend))
    torch.testing.assert_close(walked, expected, atol=1e-2, rtol=1e-2)
    assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(2)), walked)


@pytest.mark.parametrize("window", [None, 100])
def test_attention_of_a_pass_whose_plan_is_replaced_in_place(window: int | None) -> None:
    """As when a captured graph is replayed: the same tensors then hold other tokens, contexts and work items."""
    heads = Heads(4, 1, 64)
    passes = [
        made(heads, rows, window=window, seed=seed, device=DEVICE)
        for seed, rows in enumerate([(Row(30, 9), Row(2)), (Row(1100, 5), Row(530, 6)), (Row(600, 1, TREE),)])
    ]
    names = ("base", "seen", "slots", "positions", "tiles", "lists", "num_items")
    largest = {name: max((getattr(one.plan, name) for one in passes), key=len) for name in names}
    room = {name: torch.zeros_like(part) for name, part in largest.items()}
    replayed = replace(passes[1].shared(3), **room)
    done = set[int]()
    for one in passes:
        for name, part in room.items():
            part[: len(getattr(one.plan, name))] = getattr(one.plan, name)
        replayed.tiles[len(one.plan.tiles) :] = 0
        done.add(int(replayed.num_items))
        expected = kernels.attend(one.queries, one.pool, one.plan)
        assert torch.equal(kernels.attend(one.queries, one.pool, replayed), expected)
        walked = replace(replayed, workspace=None)
        assert torch.equal(kernels.attend(one.queries, one.pool, walked), expected)
    assert len(done) == len(passes)


def test_no_more_work_items_are_done_than_the_plan_has() -> None:
    one = made(Heads(4, 1, 64), BATCHES["chains"], device=DEVICE)
    plan = one.shared(2)
    plan.num_items.zero_()
    out = kernels.attend(one.queries, one.pool, plan)
    assert torch.equal(out.isnan().any(1), plan.base >= 0)  # the workspace still holds NaN


def test_splits_that_a_window_hides_are_not_read() -> None:
    """Attention equals that of torch where the cache behind the window holds NaN."""
    one = made(Heads(4, 1, 64), [Row(1200, 5)], window=100, device=DEVICE)
    hidden = torch.from_numpy(one.blocks[0, : 1024 // 32]).to(DEVICE)
    one.pool.view(-1, 32, one.pool.shape[1])[hidden] = torch.nan
    expected = reference.attend(one.queries, one.pool, one.plan)
    for plan in (one.plan, one.shared(2)):
        torch.testing.assert_close(kernels.attend(one.queries, one.pool, plan), expected, **CLOSE)


@pytest.mark.usefixtures("_products_by_row")
@pytest.mark.parametrize(("batch", "count", "dtype"), [("chains", 5, torch.float32), ("trees", 11, SHORT)])
def test_attention_does_not_depend_on_what_else_is_in_the_pass(batch: str, count: int, dtype: torch.dtype) -> None:
    """A token of the first row alone, in a tile of its own, and with all others: the same bits."""
    one = made(Heads(4, 1, 64), BATCHES[batch], dtype=dtype, device=DEVICE)
    together = kernels.attend(one.queries, one.pool, one.plan)
    for token in (0, count // 2, count - 1):
        alone = one.only(0, [token])
        assert torch.equal(kernels.attend(one.queries[[token]], one.pool, alone)[0], together[token])
    some = list(range(1, count, 2))
    assert torch.equal(kernels.attend(one.queries[some], one.pool, one.only(0, some)), together[some])


@pytest.mark.usefixtures("_products_by_row")
@pytest.mark.parametrize(
    ("length", "window", "dtype"),
    [(1, None, SHORT), (58, None, torch.float32), (508, None, torch.float32), (508, 70, SHORT), (1020, None, SHORT)],
)
def test_attention_of_a_side_node_is_that_of_the_chain(length: int, window: int | None, dtype: torch.dtype) -> None:
    """Bit for bit, with the same key, value and query: also where blocks and splits begin between the two.

    Float32 shows differences that rounding to 16 bits mostly hides.
    """
    depth, heads = 7, Heads(4, 1, 64)
    one = made(heads, [Row(length + 2 * depth, 1 + 2 * depth), Row(700, 3)], window=window, dtype=dtype, device=DEVICE)
    plan, chain, side = one.plan, slice(1, 1 + depth), slice(1 + depth, 1 + 2 * depth)
    for part in (one.queries, plan.base, plan.positions):
        part[side] = part[chain]
    one.pool[plan.slots[side]] = one.pool[plan.slots[chain]]
    walked = kernels.attend(one.queries, one.pool, plan)
    assert walked[side].any()
    assert torch.equal(walked[side], walked[chain])
    for programs in (1, 2):
        assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(programs)), walked)
    alone = one.only(0, [depth])
    assert torch.equal(kernels.attend(one.queries[[depth]], one.pool, alone)[0], walked[2 * depth])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [(Heads(14, 2, 64), torch.float32), (Heads(8, 1, 128), SHORT), (Heads(3, 1, 8), torch.float32)],
)
def test_queries_and_keys_are_rotated_and_stored(heads: Heads, dtype: torch.dtype, normed: bool) -> None:
    angles = torch.outer(torch.arange(500.0), torch.rand(heads.dim // 2)).to(DEVICE)
    qkv = torch.randn(3, (heads.query + 2 * heads.kv) * heads.dim).to(DEVICE, dtype)
    positions = torch.tensor([3, 499, 0], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([7, 0, 95], device=DEVICE)
    norm = HeadNorm(torch.rand(heads.query + heads.kv, heads.dim).to(DEVICE, dtype), 1e-6) if normed else None
    expected, pools = qkv.clone(), torch.zeros(2, 96, 2 * heads.kv * heads.dim, device=DEVICE, dtype=dtype)
    want = reference.rope_store(expected, angles.cos(), angles.sin(), positions, slots, pools[0], norm)
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
    torch.testing.assert_close(kernels.silu_mul(gate_up), reference.silu_mul(gate_up), **close)
    for added in (None, x):
        got, want = kernels.add_norm(added, residual, weight, 1e-5), reference.add_norm(added, other, weight, 1e-5)
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
    torch.manual_seed(vocab + more)  # fixed: scores that differ in the last bit of the noise may be ordered differently
    temperatures = torch.tensor([0.0, 1.0, 0.3, 1.7, 1e-9, 0.0, 0.8], device=DEVICE)
    count = len(temperatures)
    logits = torch.randn(count, vocab + more, device=DEVICE) * 4
    logits[2:4, ::3] = -torch.inf
    logits[4, : vocab // 2] = -torch.inf  # whole parts of a large vocabulary
    logits[5] = logits[5].round().clamp(max=6.0)
    keys = torch.from_numpy(position_keys(seed_keys(np.arange(count)), np.arange(count) + 9, Stream.CHOICE)).to(DEVICE)
    given = logits, temperatures, keys, reference.token_keys(vocab, DEVICE)
    got, want = kernels.choose(*given, candidates), reference.choose(*(one.cpu() for one in given), candidates)
    assert got.token.tolist() == want.token.tolist()
    assert got.token.dtype == want.token.dtype == torch.int32
    torch.testing.assert_close([one.cpu() for one in got[1:]], list(want[1:]), atol=1e-5, rtol=1e-4)
    alone = kernels.choose(logits[3:4], temperatures[3:4], keys[3:4], given[3], candidates)
    assert all(torch.equal(one[0], other[3]) for one, other in zip(alone, got, strict=True))


def test_logits_that_are_not_numbers_show_in_the_entropy() -> None:
    logits = torch.randn(3, 2100, device=DEVICE)
    logits[1, 4] = torch.nan
    logits[2] = torch.nan
    keys, tokens = torch.zeros(3, dtype=torch.int64, device=DEVICE), reference.token_keys(2100, DEVICE)
    choice = kernels.choose(logits, torch.tensor([0.5, 0.0, 1.0], device=DEVICE), keys, tokens)
    assert choice.entropy.isnan().tolist() == [False, True, True]
    assert all(0 <= token < 2100 for token in choice.token.flatten().tolist())


@pytest.mark.parametrize(("vocab", "more"), [(500, 0), (5000, -1200), (32_000, 64)])
def test_rules_are_those_of_torch(vocab: int, more: int) -> None:
    """Penalties of written and drafted tokens, biases, masks, thresholds; positions without rules stay as they are."""
    draw = torch.Generator().manual_seed(vocab)
    logits = torch.randn(8, vocab + more, generator=draw) * 4
    logits[0, ::3] = -torch.inf
    logits[6] = logits[6].round()  # equals at the threshold
    logits[5, 3] = torch.nan
    counts = (torch.randint(0, 60, (5, vocab), generator=draw) - 40).clamp(min=0).int()
    bias = torch.randn(5, vocab, generator=draw) * (torch.rand(5, vocab, generator=draw) < 0.1)
    words = torch.randint(-(2**31), 2**31, (8, -(-vocab // 32)), generator=draw).int()
    infinite = float("inf")
    drafted = torch.randint(0, vocab, (8, 4), generator=draw).int()
    drafted[0] = torch.tensor([7, 10, 7, 11])  # at a position where no threshold hides them
    row = torch.tensor([0, 1, 2, 3, 1, 2, 3, 2])
    rules = PositionRules(
        lines=torch.tensor([0, 2, -1, 3])[row],
        temperatures=torch.tensor([0.0, 0.7, 1.0, 1.3])[row],
        penalties=torch.tensor([[1.2, 0.3, 0.1], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.8, -0.4, 0.5]])[row],
        top_k=torch.tensor([0, 7, 0, 0])[row],
        cuts=torch.tensor([[1.0, -infinite], [0.9, -infinite], [1.0, -infinite], [0.8, -3.0]])[row],
        paths=torch.where(torch.arange(4) < torch.tensor([4, 1, 2, 3, 2, 1, 0, 0]).unsqueeze(1), drafted, -1),
        masks=torch.tensor([-1, -1, -1, 4, 5, -1, 2, -1]),
    )
    tables = RuleTables(counts, bias, words)
    want, got = logits.clone(), logits.to(DEVICE)
    reference.apply_rules(want, rules, tables)
    kernels.apply_rules(got, on_device(rules), on_device(tables))
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
        (3000, 0.9, -infinite, 1.0),  # many listed scores
        (5000, 1.0, -infinite, 1.0),  # more than there are lanes
        (7, 0.9, -infinite, 1.0),  # more than masks have left
        (0, 0.9, -infinite, 1.0),
        (0, 0.999, -infinite, 1.3),
        (0, 1e-42, -infinite, 1.0),
        (0, 0.95, -2.0, 1e-9),
        (0, 1.0, -0.7, 1.0),
    ]
    top_k, top_p, log_min_p, temperatures = (torch.tensor(one) for one in zip(*asked, strict=True))
    count = len(asked)
    logits = torch.randn(count, vocab, generator=draw) * spread
    logits[5, 3:] = -infinite
    logits[:4:2] = (logits[:4:2] * 8).round()
    none = torch.full((count,), -1)
    penalties = torch.tensor([1.0, 0.0, 0.0]).expand(count, 3).contiguous()
    cuts = torch.stack((top_p, log_min_p), 1)
    rules = PositionRules(none * 0, temperatures, penalties, top_k, cuts, none.int().unsqueeze(1), none)
    tables = RuleTables(torch.zeros(1, vocab).int(), torch.zeros(1, vocab), torch.zeros(1, -(-vocab // 32)).int())
    want, got, alone = logits.clone(), logits.to(DEVICE), logits.to(DEVICE)
    reference.apply_rules(want, rules, tables)
    rules, tables = on_device(rules), on_device(tables)
    kernels.apply_rules(got, rules, tables)
    assert torch.equal(got.cpu(), want)
    for i in (1, 6):
        kernels.apply_rules(alone[i : i + 1], PositionRules(*(part[i : i + 1] for part in rules)), tables)
        assert torch.equal(alone[i], got[i])


def on_device(tensors: Any) -> Any:
    return type(tensors)(*(part.to(DEVICE) for part in tensors))
