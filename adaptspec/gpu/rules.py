"""What changes a row's logits beside its temperature, on the device: kept for each row of the cache, told of by plans.

Rows without such rules cost no time, and masks are made on the host while the device runs its passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.gpu.ops import RuleTables
from adaptspec.models.sampling import RowSampling, SamplingBatch


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
    """The rules of up to `rows` rows, which draft up to `steps` tokens; none waits for the memory."""

    def __init__(self, rows: int, steps: int, vocab_size: int, device: torch.device) -> None:
        self._rows, self._vocab = rows, vocab_size
        shape, masks = (rows + 1, vocab_size), (rows * (steps + 1), -(-vocab_size // 32))
        self.tables = RuleTables(
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.zeros(shape, device=device),
            torch.zeros(masks, dtype=torch.int32, device=device),
        )
        self._mask_memory = torch.zeros(masks, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._owners: dict[int, tuple[RowSampling, int]] = {}  # of lines: who, and how many of its tokens are counted
        self._newest: dict[int, tuple[RowSampling, int]] = {}  # the same, once these are, too
        self._written: tuple[SamplingBatch, list[int]] | None = None
        self._ruled: list[int] = []
        self._masked: list[tuple[RowSampling, int]] = []  # and the row's place in the batch

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
        if self._written != (sampling, places):
            self._written = sampling, places
            self._ruled = [i for i, one in enumerate(members) if one.ruled]
            host["lines"].fill(-1)
            for i in self._ruled:
                host["lines"][i] = self._line(places[i], members[i])
                for name in ("penalties", "top_k", "cuts"):
                    host[name][i] = getattr(members[i], name)
        self._masked.clear()
        if not self._ruled:
            return
        host["fresh"].fill(-1)
        host["masks"].fill(-1)
        self._newest.clear()
        for i in self._ruled:
            member = members[i]
            if member.penalised:
                self._count(host["fresh"][i], places[i], member)
            if member.constraint is not None or (member.missing > 0 and member.early(self._vocab)):
                host["masks"][i] = len(self._masked)
                self._masked.append((member, i))

    def count(self, plan: Mapping[str, torch.Tensor]) -> None:
        """Count the newest tokens; once a round."""
        if not self._ruled:
            return
        counts, fresh = self.tables.counts, plan["fresh"]
        at = plan["lines"].clamp(min=0).unsqueeze(1) * self._vocab + fresh.clamp(min=0)
        counts.view(-1).index_add_(0, at.flatten(), 2 * (fresh >= 0).flatten().int())
        self._owners |= self._newest

    def send_masks(self, drafted: IntArray | None, counts: IntArray | None) -> None:
        """Those of the next tokens; or, where it is known, those behind the tokens `drafted` [B, D], `counts` [B]."""
        if not self._masked:
            return
        lines, many = self._mask_memory.numpy(), len(self._masked)
        last = 0
        for k, (one, i) in enumerate(self._masked):
            draft: list[int] = [] if drafted is None or counts is None else drafted[i, : counts[i]].tolist()
            for place in range(0 if counts is None else 1, len(draft) + 1):
                bits = np.packbits(self._allowed(one, draft[:place]), bitorder="little")
                lines[place * many + k].view(np.uint8)[: len(bits)] = bits
                last = max(last, place)
        own = slice(0 if counts is None else many, (last + 1) * many)
        self.tables.masks[own].copy_(self._mask_memory[own], non_blocking=True)

    def _line(self, row: int, member: RowSampling) -> int:
        """The line of the tables for what stands in a row of the cache: the last one where nothing is kept."""
        if not (member.penalised or member.params.logit_bias):
            return self._rows
        if row not in self._owners or self._owners[row][0] is not member:
            self._begin(row, member)
        return row

    def _begin(self, row: int, member: RowSampling) -> None:
        """Give a line to another: what it has written so far is counted, its biases are noted."""
        prompt, output = member.tokens[: member.prompt_length], member.tokens[member.prompt_length :]
        line = 2 * np.bincount(np.array(output, dtype=np.int64), minlength=self._vocab)[: self._vocab]
        line[np.unique(np.array(prompt, dtype=np.int64))] += 1
        bias = np.zeros(self._vocab, dtype=np.float32)
        bias[list(member.params.logit_bias)] = list(member.params.logit_bias.values())
        self.tables.counts[row].copy_(torch.from_numpy(line.astype(np.int32)))
        self.tables.bias[row].copy_(torch.from_numpy(bias))
        self._owners[row] = member, len(member.tokens)

    def _count(self, fresh: IntArray, row: int, member: RowSampling) -> None:
        """Have the tokens counted that it has got since the last time."""
        new = member.tokens[self._owners[row][1] :]
        if len(new) > len(fresh):
            self._begin(row, member)
            return
        fresh[: len(new)] = new
        self._newest[row] = member, len(member.tokens)

    def _allowed(self, member: RowSampling, draft: list[int]) -> BoolArray:
        """Which tokens [V] may follow the row's text and this draft."""
        if member.constraint is not None:
            return member.constraint.mask(draft)
        allowed = np.ones(self._vocab, dtype=np.bool_)
        if len(draft) < member.missing:
            allowed[member.early(self._vocab)] = False
        return allowed
