"""Attention equals its definition, for any mix of rows, groups of heads and windows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.attention import Attention, Heads, Span
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache

CONTEXT = 150
DIM = 4


def by_definition(
    keys: torch.Tensor, values: torch.Tensor, queries: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    """One row, one head: every query sees what is not later than itself and not older than the window."""
    result = []
    for i, query in enumerate(queries):
        first = 0 if window is None else max(0, start + i - window + 1)
        seen = slice(first, start + i + 1)
        weights = torch.softmax(keys[seen] @ query / DIM**0.5, 0)
        result.append(weights @ values[seen])
    return torch.stack(result)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 70)), min_size=1, max_size=4),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    window=st.sampled_from([None, 1, 5, 70]),
    block=st.sampled_from([CONTEXT, 3]),
)
def test_attention_is_what_its_definition_says(
    lengths: list[tuple[int, int]], heads: tuple[int, int], window: int | None, block: int
) -> None:
    torch.manual_seed(0)
    query_heads, kv_heads = heads
    plan = CachePlan(tokens=4 * CONTEXT, context=CONTEXT, block_size=block)
    cache = KVCache(CacheShape(1, kv_heads, DIM), plan, torch.float32, torch.device("cpu"))
    cache.pool[0].fill_(float("nan"))  # what was never written must never matter
    spans = [Span(row, start, start + count) for row, (start, count) in enumerate(lengths)]
    sizes = [span.size for span in spans]
    stored = []
    for row, _, end, _ in spans:
        cache.reserve(row, end)
    queries = torch.randn(sum(sizes), query_heads * DIM)
    attention = Attention(cache, Heads(query_heads, kv_heads, DIM), spans, window, queries)
    for row, _, end, _ in spans:
        stored.append(torch.randn(end, 2, kv_heads, DIM))
        cache.pool[0][torch.from_numpy(cache.slots(row, 0, end))] = stored[-1].flatten(1)
    got = attention(0, queries).view(-1, query_heads, DIM).split(sizes)
    for row, own in enumerate(queries.view(-1, query_heads, DIM).split(sizes)):
        for head in range(query_heads):
            shared = head // (query_heads // kv_heads)
            keys, values = stored[row][:, 0, shared], stored[row][:, 1, shared]
            expected = by_definition(keys, values, own[:, head], spans[row].start, window)
            torch.testing.assert_close(got[row][:, head], expected, atol=1e-5, rtol=1e-5)
