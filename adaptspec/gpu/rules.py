"""What changes a row's logits beside its temperature, on the device: kept for each row of the cache, told of by plans.

Rows without such rules cost nothing, and masks are made on the host while the device runs its passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.gpu.ops import RuleTables
from adaptspec.models.processors import SamplingRow, masked_early, truncates
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import BoolArray, IntArray


def layout(rows: int, steps: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What `RuleBook.write` fills, for `staging.Block`."""
    whole, real = torch.int64, torch.float32
    return {
        "lines": (whole, (rows,)),
        "masks": (whole, (rows,)),
        "penalties": (real, (rows, 3)),
        "top_k": (whole, (rows,)),
        "cuts": (real, (rows, 2)),
        "fresh": (whole, (rows, steps + 1)),
    }


class RuleBook:
    """The rules of up to `rows` rows, which draft up to `steps` tokens. Memory is taken when the first row has some."""

    def __init__(self, rows: int, steps: int, vocab_size: int, device: torch.device) -> None:
        self._rows, self._steps, self._vocab, self._device = rows, steps, vocab_size, device
        self._tables: RuleTables | None = None
        self._mask_memory: torch.Tensor | None = None
        self._owners: dict[int, tuple[SamplingRow, int]] = {}  # of lines: who, and how many of its tokens are counted
        self._newest: dict[int, tuple[SamplingRow, int]] = {}  # the same, once `tables` were asked for
        self._written: tuple[SamplingBatch, list[int]] | None = None
        self._ruled: list[int] = []
        self._masked: list[tuple[SamplingRow, int]] = []  # and its place in the batch

    @property
    def ruled(self) -> bool:
        """Whether a row of the round has rules."""
        return bool(self._ruled)

    @property
    def masked(self) -> int:
        """How many have masks."""
        return len(self._masked)

    def write(self, host: Mapping[str, npt.NDArray[Any]], rows: IntArray, sampling: SamplingBatch) -> None:
        """Write what a round of these rows [B] of the cache goes by; what has changed for good is sent at once."""
        members, places = sampling.rows, rows.tolist()
        if self._written is None or self._written[0] is not sampling or self._written[1] != places:
            self._written = sampling, places
            self._ruled = [i for i, one in enumerate(members) if _has_rules(one, self._vocab)]
            host["lines"].fill(-1)
            for i in self._ruled:
                self._write_row(host, i, places[i], members[i])
        self._masked.clear()
        if not self._ruled:
            return
        host["fresh"].fill(-1)
        self._newest.clear()
        for i in self._ruled:
            if members[i].params.penalised:
                self._count(host["fresh"][i], places[i], members[i])
        self._masked = [(members[i], i) for i in self._ruled if members[i].constraint or self._missing(members[i]) > 0]
        host["masks"].fill(-1)
        for k, (_, i) in enumerate(self._masked):
            host["masks"][i] = k

    def tables(self, plan: Mapping[str, torch.Tensor]) -> RuleTables:
        """The tables, the newest tokens counted; once a round."""
        assert self._tables is not None
        counts, fresh = self._tables.counts, plan["fresh"]
        at = plan["lines"].clamp(min=0).unsqueeze(1) * self._vocab + fresh.clamp(min=0)
        counts.view(-1).index_add_(0, at.flatten(), 2 * (fresh >= 0).flatten().int())
        self._owners |= self._newest
        return self._tables

    def send_masks(self, drafted: IntArray | None, counts: IntArray | None) -> None:
        """Those of the next tokens; or, where it is known, those behind the tokens `drafted` [B, D], `counts` [B]."""
        if not self._masked:
            return
        assert self._mask_memory is not None
        assert self._tables is not None
        lines, many = self._mask_memory.numpy(), len(self._masked)
        last = 0
        for k, (member, i) in enumerate(self._masked):
            draft: list[int] = [] if drafted is None or counts is None else drafted[i, : counts[i]].tolist()
            for place in range(0 if counts is None else 1, len(draft) + 1):
                bits = np.packbits(self._allowed(member, draft[:place]), bitorder="little")
                lines[place * many + k].view(np.uint8)[: len(bits)] = bits
                last = max(last, place)
        own = slice(0 if counts is None else many, (last + 1) * many)
        self._tables.masks[own].copy_(self._mask_memory[own], non_blocking=True)

    def _write_row(self, host: Mapping[str, npt.NDArray[Any]], i: int, row: int, member: SamplingRow) -> None:
        params, keeps = member.params, member.params.penalised or bool(member.params.logit_bias)
        if self._tables is None:
            self._take_memory()
        if keeps and (row not in self._owners or self._owners[row][0] is not member):
            self._begin(row, member)
        host["lines"][i] = row if keeps else self._rows
        host["penalties"][i] = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        cuts = truncates(params, self._vocab) and not params.greedy
        host["top_k"][i] = params.top_k if cuts and params.top_k < self._vocab else 0
        least = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        host["cuts"][i] = (params.top_p, least) if cuts else (1.0, -math.inf)

    def _take_memory(self) -> None:
        shape, words = (self._rows + 1, self._vocab), -(-self._vocab // 32)
        lines = self._rows * (self._steps + 1)
        self._tables = RuleTables(
            torch.zeros(shape, dtype=torch.int32, device=self._device),
            torch.zeros(shape, device=self._device),
            torch.zeros((lines, words), dtype=torch.int32, device=self._device),
        )
        self._mask_memory = torch.zeros((lines, words), dtype=torch.int32, pin_memory=self._device.type == "cuda")

    def _begin(self, row: int, member: SamplingRow) -> None:
        """Give a line to another: what it has written so far is counted, its biases are noted."""
        assert self._tables is not None
        prompt, output = member.tokens[: member.prompt_length], member.tokens[member.prompt_length :]
        line = 2 * np.bincount(np.array(output, dtype=np.int64), minlength=self._vocab)[: self._vocab]
        line[np.unique(np.array(prompt, dtype=np.int64))] += 1
        bias = np.zeros(self._vocab, dtype=np.float32)
        bias[list(member.params.logit_bias)] = list(member.params.logit_bias.values())
        self._tables.counts[row].copy_(torch.from_numpy(line.astype(np.int32)))
        self._tables.bias[row].copy_(torch.from_numpy(bias))
        self._owners[row] = member, len(member.tokens)

    def _count(self, fresh: IntArray, row: int, member: SamplingRow) -> None:
        """Have the tokens counted that it has got since the last time."""
        new = member.tokens[self._owners[row][1] :]
        if len(new) > len(fresh):
            self._begin(row, member)
            return
        fresh[: len(new)] = new
        self._newest[row] = member, len(member.tokens)

    def _missing(self, member: SamplingRow) -> int:
        """How many tokens it has yet to get before it may end."""
        if not masked_early(member, self._vocab):
            return 0
        return member.prompt_length + member.params.min_tokens - len(member.tokens)

    def _allowed(self, member: SamplingRow, draft: list[int]) -> BoolArray:
        """Which tokens [V] may follow its text and this draft."""
        if member.constraint is not None:
            return member.constraint.mask(draft)
        allowed = np.ones(self._vocab, dtype=np.bool_)
        if len(draft) < self._missing(member):
            allowed[masked_early(member, self._vocab)] = False
        return allowed


def _has_rules(member: SamplingRow, vocab_size: int) -> bool:
    params = member.params
    cuts = not params.greedy and truncates(params, vocab_size)
    masks = member.constraint is not None or bool(masked_early(member, vocab_size))
    return cuts or masks or params.penalised or bool(params.logit_bias)
