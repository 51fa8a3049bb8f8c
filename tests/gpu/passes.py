"""Passes of attention at random: rows of chains, prompts and trees, in a cache that holds NaN where it is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.arrays import IntArray
from adaptspec.gpu.attention_plan import AttentionPlan, Workspace, tree_bits, work_lists
from adaptspec.models.attention import Heads, Span

PADDING, SPARE = 3, 2  # tokens that are padding; tiles and entries of `lists` that are not used
NO_BLOCK = 2**30  # an entry of `lists` that must not be read


@dataclass(frozen=True)
class Row:
    """A row of `length` tokens, `new` of them in this pass; `parents` of nodes that follow the newest token, if any."""

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


@dataclass(frozen=True)
class Pass:
    queries: torch.Tensor
    pool: torch.Tensor
    plan: AttentionPlan
    spans: tuple[Span, ...]
    blocks: IntArray  # [rows, n]: of the rows' caches

    def shared(self, programs: int) -> AttentionPlan:
        """The plan with a workspace that holds NaN, and work items that so many programs share."""
        return shared(self.plan, self.blocks.shape[1] * self.plan.block_size, programs)

    def only(self, row: int, tokens: Sequence[int]) -> AttentionPlan:
        """The plan of a pass that has just some tokens of one row, counted from the first of the pass."""
        plan, count, last = self.plan, len(tokens), int(tokens[-1])
        first = sum(span.size for span in self.spans[:row])
        starts = np.array([self.spans[row].start + last - first - count + 1])
        laid = work_lists(starts, np.array([count]), self.blocks[[row]], plan.heads, plan.block_size)
        arrays = {"tiles": laid.tiles, "lists": laid.lists, "num_items": np.array([laid.num_items])}
        sent = {name: torch.from_numpy(part.astype(np.int32)).to(self.pool.device) for name, part in arrays.items()}
        kept = {name: getattr(plan, name)[list(tokens)] for name in ("base", "seen", "slots", "positions")}
        return replace(plan, **kept, **sent)

    def expected(self) -> torch.Tensor:
        """Row by row, with masks, in float32."""
        heads, result, first = self.plan.heads, torch.zeros(self.queries.shape), 0
        for span in self.spans:
            cached = self.pool.cpu().float()[slots_of(self.blocks[span.row], np.arange(span.end), self.plan.block_size)]
            keys, values = cached.view(span.end, 2, heads.kv, heads.dim).permute(1, 2, 0, 3)
            queries = self.queries[first : first + span.size].cpu().float().view(span.size, -1, heads.dim)
            mask = torch.from_numpy(span.visible(0, self.plan.window))
            out = F.scaled_dot_product_attention(queries.transpose(0, 1), keys, values, mask, enable_gqa=True)
            result[first : first + span.size] = out.transpose(0, 1).flatten(1)
            first += span.size
        return result


def made(
    heads: Heads,
    rows: Sequence[Row],
    *,
    window: int | None = None,
    context: int = 1280,
    block_size: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: str = "cpu",
) -> Pass:
    """A pass of such rows, with queries, keys and values at random."""
    spans = tuple(row.span(i) for i, row in enumerate(rows))
    draw, count = torch.Generator().manual_seed(seed), -(-context // block_size)
    blocks = torch.randperm(len(rows) * count, generator=draw).view(len(rows), count).numpy()
    pool = torch.full((blocks.size * block_size, 2 * heads.kv * heads.dim), torch.nan)
    for span in spans:
        pool[slots_of(blocks[span.row], np.arange(span.end), block_size)] = torch.randn(
            span.end, pool.shape[1], generator=draw
        )
    plan = plan_of(heads, spans, blocks, window=window, block_size=block_size, device=device)
    queries = torch.randn(len(plan.base), heads.query * heads.dim, generator=draw)
    return Pass(queries.to(device, dtype), pool.to(device, dtype), plan, spans, blocks)


def plan_of(
    heads: Heads,
    spans: Sequence[Span],
    blocks: IntArray,
    *,
    window: int | None = None,
    block_size: int = 32,
    device: str = "cpu",
) -> AttentionPlan:
    """The plan of a pass with these new tokens of rows that have these `blocks` [rows, n]."""
    sizes, starts = (np.array([getattr(span, name) for span in spans]) for name in ("size", "start"))
    laid = work_lists(starts, sizes, blocks[[span.row for span in spans]], heads, block_size)
    base, seen = (np.concatenate(parts) for parts in zip(*map(_seen, spans), strict=True))
    slots = np.concatenate([slots_of(blocks[span.row], np.arange(span.start, span.end), block_size) for span in spans])
    positions = np.concatenate([span.positions for span in spans])
    more = (0, PADDING)
    arrays = {
        "base": np.pad(base, more, constant_values=-1).astype(np.int32),
        "seen": np.pad(seen, more),
        "slots": np.pad(slots, more),
        "positions": np.pad(positions, more).astype(np.int32),
        "tiles": np.pad(laid.tiles, ((0, SPARE), (0, 0))).astype(np.int32),
        "lists": np.pad(laid.lists, (0, SPARE), constant_values=NO_BLOCK).astype(np.int32),
        "num_items": np.array([laid.num_items], dtype=np.int32),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return AttentionPlan(heads, block_size, **tensors, window=window)


def shared(plan: AttentionPlan, context: int, programs: int) -> AttentionPlan:
    """The plan with a workspace that holds NaN, for rows of up to `context`, and work items that programs share."""
    workspace = Workspace.of(len(plan.base), plan.heads, context, plan.base.device)
    for part in (workspace.sums, workspace.peaks, workspace.totals):
        part.fill_(torch.nan)
    return replace(plan, workspace=workspace, programs=programs)


def slots_of(blocks: IntArray, at: IntArray, block_size: int = 32) -> IntArray:
    """Slots of the tokens `at` of a row with these blocks."""
    return np.asarray(blocks[at // block_size] * block_size + at % block_size)


def _seen(span: Span) -> tuple[IntArray, IntArray]:
    if span.seen is None:
        return np.arange(span.start, span.end), np.zeros(span.size, dtype=np.int64)
    return tree_bits(span)
