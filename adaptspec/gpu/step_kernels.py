"""What comes before and after a pass of a draft as Triton kernels: one launch where `ops` has dozens of small ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from adaptspec.gpu.combs import Candidates, Comb
from adaptspec.gpu.draft_bounds import Bounds
from adaptspec.gpu.ops import Choice, Drafts, Reading
from adaptspec.gpu.paged_cache import PagedCache

TOKENS = 128  # of one program of `pass_inputs`: one for each of its threads
_EXACT = {"enable_fp_fusion": False}


@triton.jit
def _pass_inputs(
    owners, offsets, live, rows, lengths, newest, drafted, stride, nodes, table, table_stride, rubbish,
    tokens, positions, slots, base, seen, count, size, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    lives = tl.load(live + at, mask=at < count, other=0)
    owner = tl.load(owners + at, mask=lives, other=0)
    offset = tl.load(offsets + at * stride, mask=lives, other=0)
    token = tl.load(newest + owner * 2 + 1 + offset, mask=lives & (offset <= 0), other=0)
    token += tl.load(drafted + owner * nodes + offset - 1, mask=lives & (offset > 0), other=0)
    place = tl.load(lengths + owner, mask=lives, other=1) - 1 + offset
    row = tl.load(rows + owner, mask=lives, other=0)
    block = tl.load(table + row * table_stride + place // BLOCK, mask=lives, other=0).to(tl.int64)
    inside = at < size
    tl.store(tokens + at, token, mask=inside)
    tl.store(positions + at, place.to(tl.int32), mask=inside)
    tl.store(slots + at, tl.where(lives, block * BLOCK + place % BLOCK, rubbish), mask=inside)
    tl.store(base + at, tl.where(lives, place, -1).to(tl.int32), mask=inside)
    tl.store(seen + at, tl.zeros((TOKENS,), tl.int64), mask=inside)


@triton.jit
def _part(sure, bins):
    """Which of so many equal parts of 0 to 1 it lies in."""
    return tl.minimum(tl.maximum((sure * bins).to(tl.int32), 0), bins - 1)


@triton.jit
def _extend_drafts(
    tokens, sures, entropies, step, asked, alive, depths, counts, drafted, told_sure, told_entropy, nodes,
    least, highest, floor, worth, price, steps, calibration, bins, ends, many, rows,
    chain, width, lowest, ranks, side_tokens, side_sures, side_chances,
    CANDIDATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All rows in one program, as what they are worth together says who goes on."""
    row, at = tl.arange(0, ROWS), tl.load(step)
    inside = row < rows
    mine = tl.load(asked + row, mask=inside, other=0)
    token = tl.load(tokens + row * CANDIDATES, mask=inside, other=0)
    sure = tl.load(sures + row * CANDIDATES, mask=inside, other=0.0)
    entropy = tl.load(entropies + row, mask=inside, other=0.0)
    tl.store(drafted + row * nodes + at, token.to(tl.int64), mask=mine)
    tl.store(told_sure + row * nodes + at, sure, mask=mine)
    tl.store(told_entropy + row * nodes + at, entropy, mask=mine)
    tl.store(counts + row, tl.load(counts + row, mask=mine, other=0) + 1, mask=mine)
    column = row * steps + at
    chance = tl.load(calibration + row * bins + _part(sure, bins), mask=mine, other=0.0)
    chance = tl.load(alive + row, mask=mine, other=0.0) * chance
    tl.store(alive + row, chance, mask=mine)
    above = tl.maximum(chance - tl.load(floor + column, mask=mine, other=0.0), 0.0)
    together = tl.sum(above * tl.load(worth + column, mask=mine, other=0.0), 0)
    going = mine & (above > 0.0) & (together > tl.load(price + column, mask=mine, other=0.0))
    going = going & (sure >= tl.load(least + column, mask=mine, other=0.0))
    going = going & (entropy <= tl.load(highest + column, mask=mine, other=0.0))
    going = going & (tl.load(depths + row, mask=mine, other=0) > at + 1)
    for end in range(many):
        going = going & (token != tl.load(ends + end))
    tl.store(asked + row, going, mask=inside)
    if CANDIDATES > 1:
        before, good = tl.load(chain + row, mask=inside), mine
        for rank in tl.static_range(CANDIDATES):
            candidate = row * CANDIDATES + rank
            sure = tl.load(sures + candidate, mask=inside)
            known = tl.load(ranks + candidate * bins + _part(sure, bins), mask=inside)
            chance = tl.where(sure > 0.0, before * known, 0.0)
            if rank == 0:
                tl.store(chain + row, chance, mask=inside)
            else:
                good = good & (chance > tl.load(lowest + row, mask=inside))
                good = good & (rank < tl.load(width + row, mask=inside))
                place = column * (CANDIDATES - 1) + rank - 1
                tl.store(side_tokens + place, tl.load(tokens + candidate, mask=inside).to(tl.int64), mask=inside)
                tl.store(side_sures + place, sure, mask=inside)
                tl.store(side_chances + place, tl.where(good, chance, 0.0), mask=inside)
    tl.debug_barrier()  # threads read the step before one of them counts it on
    tl.store(step, at + 1)


def pass_inputs(reading: Reading, cache: PagedCache, size: int) -> tuple[torch.Tensor, ...]:
    """See `ops.pass_inputs`."""
    table, strides = cache.table, (reading.offsets.stride(0), reading.drafted.stride(0))
    tokens, slots, seen = (reading.owners.new_empty(size) for _ in range(3))
    positions, base = (table.new_empty(size) for _ in range(2))
    _pass_inputs[(triton.cdiv(size, TOKENS),)](
        *reading, *strides, table, table.stride(0), cache.rubbish,
        tokens, positions, slots, base, seen, len(reading.live), size,
        BLOCK=cache.block_size, TOKENS=TOKENS, num_warps=4, **_EXACT,
    )  # fmt: skip
    return tokens, positions, slots, base, seen


def extend_drafts(
    found: Choice, drafts: Drafts, bounds: Bounds, ends: torch.Tensor, side: tuple[Comb, Candidates] | None = None
) -> None:
    """See `ops.extend_drafts`."""
    rows, candidates = len(drafts.asked), 1 if side is None else found.token.shape[1]
    branching = [drafts.alive] * 7  # of chains nothing reads it
    if side is not None:
        (width, _, lowest, ranks), kept = side
        branching = [kept.alive, width, lowest, ranks, kept.tokens, kept.sure, kept.chances]
    _extend_drafts[(1,)](
        *found, *drafts, drafts.drafted.stride(0), *bounds[:5], bounds.worth.stride(0),
        bounds.calibration, bounds.calibration.shape[1], ends, len(ends), rows, *branching,
        CANDIDATES=candidates, ROWS=triton.next_power_of_2(rows), num_warps=4, **_EXACT,
    )  # fmt: skip
