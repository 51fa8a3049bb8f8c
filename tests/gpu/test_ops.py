"""The steps of a pass on a device, in torch: equal to what the CPU's path computes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu import ops
from adaptspec.models.attention import Heads
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


@given(st.integers(1, 40), st.integers(1, 5), SEEDS)
def test_candidates_are_the_largest_with_noise(vocab: int, candidates: int, seed: int) -> None:
    """Draws without replacement, of equals the first; also of vocabularies that are smaller: the rest is unlikely."""
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
    logits[0, 1::3] = -torch.inf
    logits[2] = logits[2].round()
    temperatures, keys, tokens = torch.tensor([0.7, 1.3, 0.0]), torch.arange(3) + seed, ops.token_keys(vocab, CPU)
    noise = torch.where(temperatures[:, None] > 0, ops.gumbel_of(keys[:, None] ^ tokens), 0.0)
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


def test_logits_that_are_no_numbers_show_in_the_entropy() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = torch.nan
    choice = ops.choose(logits, torch.zeros(2), torch.zeros(2, dtype=torch.int64), ops.token_keys(9, CPU))
    assert choice.entropy.isnan().tolist() == [False, True]
    assert 0 <= int(choice.token[1]) < 9
