"""Passes of attention at random: rows of chains, prompts and trees, in a cache that holds NaN where it is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.gpu.plan import AttentionPlan, Workspace, tiles
from adaptspec.models.attention import Heads, Span

BLOCK, PADDING, SPARE = 32, 3, 2  # places of a block; tokens and tiles that a pass does not need


@dataclass(frozen=True)
class Row:
    """A row of `length` tokens, `new` of them in this pass; `parents` of nodes that come with the newest, if any."""

    length: int
    new: int = 1
    parents: Sequence[int] = ()

    def span(self, row: int) -> Span:
        if not self.parents:
            return Span(row, self.length - self.new, self.length)
        count = 1 + len(self.parents)
        seen = np.eye(count, dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            seen[node + 1] |= seen[parent + 1]
        seen[:, 0] = True
        return Span(row, self.length - 1, self.length + len(self.parents), seen)

    def sees(self) -> tuple[list[int], list[int]]:
        """`base` and `seen` of its new tokens."""
        span = self.span(0)
        if span.seen is None:
            return list(range(span.start, span.end)), [0] * span.size
        bits = [sum(1 << j for j in np.flatnonzero(line[1:i]).tolist()) for i, line in enumerate(span.seen)]
        return [span.start, *[self.length] * len(self.parents)], bits


@dataclass(frozen=True)
class Pass:
    queries: torch.Tensor
    pool: torch.Tensor
    plan: AttentionPlan
    spans: tuple[Span, ...]

    @property
    def real(self) -> int:
        return sum(span.size for span in self.spans)

    def shared(self, programs: int) -> AttentionPlan:
        """The plan with splits that are shared by so many programs."""
        places = self.plan.table.shape[1] * BLOCK
        work = Workspace.of(len(self.queries), self.plan.heads, places, self.queries.device)
        return replace(self.plan, workspace=work, programs=programs)

    def expected(self) -> torch.Tensor:
        """Row by row, with masks, in float32."""
        heads, result, first = self.plan.heads, torch.zeros(self.queries.shape), 0
        for span in self.spans:
            place = torch.arange(span.end)
            table = self.plan.table[span.row].cpu().long()
            cached = self.pool.cpu().float()[table[place // BLOCK] * BLOCK + place % BLOCK]
            keys, values = cached.view(span.end, 2, heads.kv, heads.dim).permute(1, 2, 0, 3)
            asking = self.queries[first : first + span.size].cpu().float().view(span.size, -1, heads.dim)
            mask = torch.from_numpy(span.visible(0, self.plan.window))
            out = F.scaled_dot_product_attention(asking.transpose(0, 1), keys, values, mask, enable_gqa=True)
            result[first : first + span.size] = out.transpose(0, 1).flatten(1)
            first += span.size
        return result


def made(
    heads: Heads,
    rows: Sequence[Row],
    *,
    window: int | None = None,
    places: int = 1280,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: str = "cpu",
) -> Pass:
    """A pass of such rows; queries are drawn row by row, the cache of a row by its number."""
    spans = tuple(row.span(i) for i, row in enumerate(rows))
    draw, blocks = torch.Generator().manual_seed(seed), places // BLOCK
    table = torch.randperm(len(rows) * blocks, generator=draw).view(len(rows), blocks).int()
    pool = torch.full((len(rows) * blocks * BLOCK, 2 * heads.kv * heads.dim), torch.nan)
    for span in spans:
        place = torch.arange(span.end)
        slots = table[span.row].long()[place // BLOCK] * BLOCK + place % BLOCK
        pool[slots] = torch.randn(span.end, pool.shape[1], generator=draw)
    count = sum(span.size for span in spans) + PADDING
    queries = torch.randn(count, heads.query * heads.dim, generator=draw)
    seen, positions, own = (np.zeros(count, dtype=np.int64) for _ in range(3))
    base = np.full(count, -1)
    ends = np.cumsum([span.size for span in spans])
    for row, span, end in zip(rows, spans, ends, strict=True):
        new, place = slice(end - span.size, end), torch.arange(span.start, span.end)
        base[new], seen[new] = row.sees()
        positions[new] = span.positions
        own[new] = table[span.row].long()[place // BLOCK] * BLOCK + place % BLOCK
    cut = tiles(np.arange(len(rows)), np.array([span.size for span in spans]), heads)
    cut = np.concatenate([cut, np.zeros((SPARE, 3), dtype=np.int64)])
    small = [torch.from_numpy(array).to(device, torch.int32) for array in (cut, base, positions)]
    wide = [torch.from_numpy(array).to(device) for array in (seen, own)]
    plan = AttentionPlan(heads, BLOCK, small[0], small[1], *wide, small[2], table.to(device), window)
    return Pass(queries.to(device, dtype), pool.to(device, dtype), plan, spans)
