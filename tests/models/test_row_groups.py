"""Rows that attend together get what they get alone, whatever lies beyond their ends and between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.models import decoder
from adaptspec.models.attention import AttentionMetadata, Heads, Span
from adaptspec.models.decoder import Decoder
from adaptspec.models.in_place_attention import InPlaceAttention, group_rows
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from tests.conftest import MakeModel
from tests.models.packing import assert_alike_but_for_rounding, cached, pack, random_tokens
from tests.models.test_branches import shapes, sight
from tests.models.test_decoder import lean, model_path

ROWS, CONTEXT, DIM = 8, 48, 4


def full_cache(kv_heads: int, ends: dict[int, int]) -> KVCache:
    """Random numbers everywhere; each row in `ends` holds that many tokens, and lies in the block of its number."""
    cache = KVCache(
        CacheShape(1, kv_heads, DIM), CachePlan(ROWS * CONTEXT, CONTEXT, CONTEXT), torch.float32, torch.device("cpu")
    )
    cache.pool[0].copy_(torch.randn(cache.pool[0].shape))
    for row in range(ROWS):
        assert cache.reserve(row, CONTEXT)
    for row, end in ends.items():
        cache.set_length(row, end)
    return cache


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.dictionaries(
        st.integers(0, ROWS - 1), st.tuples(st.integers(0, 20), st.integers(1, 8) | shapes(8)), min_size=2
    ),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    data=st.data(),
)
def test_a_group_gets_what_its_rows_get(
    lengths: dict[int, tuple[int, int | list[int]]], heads: tuple[int, int], data: st.DataObject
) -> None:
    """In any order and grouping, chains and trees of different sizes."""
    torch.manual_seed(0)
    spans = []
    for row, (start, new) in lengths.items():
        size, seen = (new, None) if isinstance(new, int) else (len(new) + 1, sight(new))
        spans.append(Span(row, start, start + size, seen))
    cache = full_cache(heads[1], {span.row: span.end for span in spans})
    queries = torch.randn(sum(span.size for span in spans), heads[0] * DIM)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(spans) - 1))))
    members = data.draw(st.permutations(range(len(spans))))
    groups = [members[a:b] for a, b in zip([0, *cuts], [*cuts, len(spans)], strict=True)]
    kind = Heads(*heads, DIM)
    together = InPlaceAttention(cache, AttentionMetadata(kind, spans, None, groups), queries)
    alone = InPlaceAttention(cache, AttentionMetadata(kind, spans, None), queries)
    torch.testing.assert_close(together(0, queries), alone(0, queries), atol=1e-5, rtol=1e-5)


def grouped(ends: Sequence[int], sizes: Sequence[int], wanted: Sequence[int], blocks: Sequence[int]) -> list[list[int]]:
    cache = full_cache(1, {})
    spans = [Span(row, end - size, end) for row, end, size in zip(blocks, ends, sizes, strict=True)]
    return group_rows(cache, spans, wanted)


def test_neighbours_of_like_length_attend_together() -> None:
    assert grouped([20, 22, 24, 25], [1] * 4, [1] * 4, [0, 1, 2, 3]) == [[0, 1, 2, 3]]
    assert grouped([20, 22, 24], [1] * 3, [1] * 3, [2, 1, 0]) == [[2, 1, 0]], "by block, whatever their order"


def test_what_is_not_asked_for_logits_attends_alone() -> None:
    """A chunk of a prompt might read what is no number, and nobody would notice."""
    assert grouped([20, 22, 24], [1] * 3, [1, 0, 1], [0, 1, 2]) == [[0], [1], [2]]


@pytest.mark.parametrize("part", [slice(0, 16), slice(16, 32)], ids=["keys", "values"])
@pytest.mark.parametrize("quick", [True, False], ids=["small pass", "plain pass"])
@pytest.mark.parametrize("variant", ["llama", "llama without grouped heads, untied", "qwen3"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(widths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=4, max_size=4))
def test_what_a_former_request_left_is_harmless(
    make_model: MakeModel, variant: str, quick: bool, part: slice, widths: list[tuple[int, int]]
) -> None:
    """Every slot that no row has written holds a NaN: logits and cache are those of a clean one."""
    place = model_path(make_model, variant)
    poisoned, clean = lean(place), lean(place)
    assert isinstance(poisoned, Decoder)
    assert isinstance(clean, Decoder)
    for layer in poisoned._cache.pool:
        layer[:, part] = float("nan")
    prompts = [(row, random_tokens(length, seed=row), 1) for row, (length, _) in enumerate(widths)]
    news = [(row, random_tokens(size, seed=9 + row), size) for row, (_, size) in enumerate(widths)]
    for one in (poisoned, clean):
        if not quick:
            one._small = None
        for prompt in prompts:
            one.forward(pack(prompt))
    for parts in (news, news):
        assert_alike_but_for_rounding(poisoned.forward(pack(*parts)), clean.forward(pack(*parts)))
    for row in range(len(widths)):
        assert_alike_but_for_rounding(cached(poisoned, row), cached(clean, row))


def test_a_row_that_is_broken_itself_breaks_alone(make_model: MakeModel) -> None:
    """Its neighbours' logits stay."""
    place = model_path(make_model, "llama")
    runner, clean = lean(place), lean(place)
    assert isinstance(runner, Decoder)
    parts = [(row, random_tokens(9, seed=row), 1) for row in range(4)]
    for part in parts:
        runner.forward(pack(part))
        clean.forward(pack(part))
    runner._cache.pool[0][int(runner._cache.slots(1, 4, 5)[0])] = float("nan")
    got, expected = (one.forward(pack(*[(row, [7], 1) for row in range(4)])) for one in (runner, clean))
    assert got[1].isnan().all()
    assert_alike_but_for_rounding(got[[0, 2, 3]], expected[[0, 2, 3]])


def test_a_pass_that_reads_no_poison_runs_once(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = lean(model_path(make_model, "llama"))
    calls: list[tuple[object, ...]] = []
    run = decoder.Decoder._run
    monkeypatch.setattr(decoder.Decoder, "_run", lambda *given: (calls.append(given), run(*given))[1])
    for row in range(4):
        runner.forward(pack((row, random_tokens(9, seed=row), 1)))
    runner.forward(pack(*[(row, [7], 1) for row in range(4)]))
    assert len(calls) == 5
    assert calls[-1][-1] == [[0, 1, 2, 3]]


def test_clearing_ends_with_the_block() -> None:
    cache = full_cache(1, {})
    before = cache.pool[0].clone()
    cache.clear(2, 10, 99)
    hidden = np.zeros(len(before), dtype=np.bool_)
    hidden[2 * CONTEXT + 10 : 3 * CONTEXT] = True
    assert not cache.pool[0][torch.from_numpy(hidden)].any()
    assert torch.equal(cache.pool[0][torch.from_numpy(~hidden)], before[torch.from_numpy(~hidden)])
