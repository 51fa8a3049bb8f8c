"""The device's decoder is the CPU's, and what a token's logits are does not depend on what else is in its pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.gpu.device_decoder import DeviceDecoder, branches, device_decoder
from adaptspec.models.attention import Span
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.layers import Linear
from adaptspec.models.loading import load_model, plain_decoder
from adaptspec.models.runner import Packed, Runner
from tests.conftest import MakeModel

FAMILIES = {"llama": {}, "qwen2": {}, "qwen3": {}, "mistral": {"sliding_window": 12}}
LIMITS = CacheLimits(3, cache_tokens=384, context=128, block_size=32)


def _both(folder: Path, limits: CacheLimits = LIMITS) -> tuple[Runner, DeviceDecoder]:
    """In 16 bits, where a CPU's weights are those of a device."""
    plain = load_model(str(folder), device="cpu", dtype="bfloat16").runner(limits)
    device = load_model(str(folder), device="cpu", dtype="bfloat16", make=device_decoder).runner(limits)
    assert isinstance(device, DeviceDecoder)
    return plain, device


def _packed(rows: list[int], counts: list[int], seed: int, prompts: int = 0) -> Packed:
    sizes = np.array(counts, dtype=np.int64)
    fed = np.random.default_rng(seed).integers(2, 250, sizes.sum())
    return Packed(np.array(rows), sizes, fed, sizes, prompts=prompts)


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_give_the_same_logits(make_model: MakeModel, family: str) -> None:
    """Prompts over several blocks, chains and branches, rows side by side, windows, biases and norms of heads."""
    plain, device = _both(make_model(family, **FAMILIES[family]))
    seen = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=np.bool_)
    passes = [_packed([0, 1, 2], [70, 5, 33], 0), _packed([2, 0], [1, 1], 1)]
    last = _packed([0, 1], [3, 2], 2)
    passes.append(Packed(last.rows, last.counts, last.tokens, last.wanted, [seen, None]))
    for packed in passes:
        for runner in (plain, device):
            for row, count in zip(packed.rows.tolist(), packed.counts.tolist(), strict=True):
                assert runner.reserve(row, runner.length(row) + count)
        mine, its = plain.forward(packed).logits, device.forward(packed).logits
        assert its.dtype == torch.float32
        # Both round to 8 bits, each in its own order; the head of a CPU is held in float16.
        torch.testing.assert_close(its, mine, atol=0.25, rtol=0.05)
        assert [plain.length(row) for row in range(3)] == [device.length(row) for row in range(3)]


@pytest.fixture
def fickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of another number of tokens give other numbers: a device rounds otherwise then, a CPU seldom does."""
    for name in ("__call__", "logits"):
        product: Any = getattr(Linear, name)
        monkeypatch.setattr(Linear, name, lambda *x, product=product: product(*x).mul_(1 + 1e-3 * len(x[1])))


def _read(device: DeviceDecoder, rows: dict[int, list[int]], prompts: int = 0) -> list[torch.Tensor]:
    """The logits of each row's tokens, of one pass over all of them."""
    counts = [len(tokens) for tokens in rows.values()]
    for row, count in zip(rows, counts, strict=True):
        assert device.reserve(row, device.length(row) + count)
    who, sizes, fed = np.array(list(rows)), np.array(counts), np.concatenate([*map(np.array, rows.values())])
    return list(device.forward(Packed(who, sizes, fed, sizes, prompts=prompts)).logits.split(counts))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(2, 16), depth=st.integers(0, 12))
@pytest.mark.usefixtures("fickle")
def test_neither_rows_nor_prompts_beside_them_change_a_bit(
    make_model: MakeModel, data: st.DataObject, rows: int, depth: int
) -> None:
    """In bfloat16, up to 16 rows at depth 12, which is four tiles, and prompts of six: as each by itself."""
    limits = CacheLimits(17, cache_tokens=17 * 256, context=256, block_size=32)
    _, device = _both(make_model("llama"), limits)
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    texts = [numbers.integers(2, 250, count).tolist() for count in numbers.integers(1, 90, rows)]
    newest, late = numbers.integers(2, 250, (rows, depth + 1)).tolist(), numbers.integers(2, 250, 250).tolist()
    together = _read(device, dict(enumerate(texts)), prompts=rows)
    together += _read(device, {**dict(enumerate(newest)), 16: late}, prompts=1)
    for row in range(17):
        device.free(row)
    alone = [_read(device, {row: text}, prompts=1)[0] for row, text in enumerate(texts)]
    alone += [torch.cat([_read(device, {row: [token]})[0] for token in own]) for row, own in enumerate(newest)]
    cut = data.draw(st.integers(1, 249))
    alone.append(torch.cat([_read(device, {16: part}, prompts=1)[0] for part in (late[:cut], late[cut:])]))
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_side_node_has_the_logits_of_the_chain(make_model: MakeModel, family: str) -> None:
    """To the last bit, in bfloat16, where it carries the chain's own token; so has the next token, if it is kept."""
    _, device = _both(make_model(family, **FAMILIES[family]))
    depth, prompt, window, after = 6, _packed([0], [60], 0), _packed([0], [7], 1), _packed([0], [1], 2)
    comb = np.tril(np.ones((1 + 2 * depth, 1 + 2 * depth), dtype=np.bool_))
    comb[1 + depth :, 1:] = np.eye(depth, 2 * depth, depth) + np.tri(depth, 2 * depth, -1)
    sizes = np.array([1 + 2 * depth])
    nodes = Packed(window.rows, sizes, np.append(window.tokens, window.tokens[1:]), sizes, [comb])
    for kept in range(1, depth + 1):
        found = []
        for packed, last in ((window, kept), (nodes, depth + kept)):
            device.free(0)
            device.reserve(0, 80)
            device.forward(prompt)
            logits = device.forward(packed).logits
            device.keep(0, 60, [*range(kept), last])
            found.append((logits, device.forward(after).logits))
        (chain, plain), (both, moved) = found
        assert torch.equal(both, torch.cat((chain, chain[1:])))
        assert torch.equal(moved, plain)


@settings(max_examples=60, deadline=None)
@given(parents=st.lists(st.integers(-1, 62), min_size=1, max_size=64), fed=st.integers(0, 3))
def test_bits_say_what_branches_see(parents: list[int], fed: int) -> None:
    """A newest token and up to 64 nodes, some of the tokens cached already."""
    nodes = [min(parent, place - 1) for place, parent in enumerate(parents)]
    seen = np.zeros((len(nodes) + 1, len(nodes) + 1), dtype=np.bool_)
    seen[:, 0] = True
    for place, parent in enumerate(nodes):
        seen[place + 1] |= seen[parent + 1]
        seen[place + 1, place + 1] = True
    own = seen[min(fed, len(nodes)) :]
    end = 20 + seen.shape[1]
    base, bits = branches(Span(0, end - len(own), end, own))
    visible = np.zeros((len(own), end), dtype=np.bool_)
    for i, (line, first, word) in enumerate(zip(visible, base.tolist(), bits.tolist(), strict=True)):
        line[:first] = True
        line[first:] = [bit < 64 and bool(word >> bit & 1) for bit in range(end - first)]
        assert not line[end - len(own) + i]
        line[end - len(own) + i] = True
    assert (visible[:, 20:] == own).all()
    assert visible[:, :20].all()


def test_ids_that_no_token_has_have_no_logits(make_model: MakeModel) -> None:
    """Padding of a vocabulary cannot be drawn, on whatever the model runs; all other logits are as before."""
    folder, known = make_model("llama"), 250
    for make in (plain_decoder, device_decoder):
        loaded = load_model(str(folder), device="cpu", dtype="bfloat16", make=make)
        whole, cut = (
            replace(loaded, info=replace(loaded.info, known_tokens=tokens)).runner(LIMITS) for tokens in (None, known)
        )
        packed = _packed([0], [9], 0)
        logits = []
        for runner in (whole, cut):
            assert runner.reserve(0, 9)
            logits.append(runner.forward(packed).logits)
        assert logits[1].shape == logits[0].shape
        assert (logits[1][:, known:] == -torch.inf).all()
        torch.testing.assert_close(logits[1][:, :known], logits[0][:, :known], atol=0.0, rtol=0.0)
