"""A draft model's part of a round: it reads and draws, a token of every row at a time, and nothing asks the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from adaptspec.gpu import combs, draft_bounds
from adaptspec.gpu.device_decoder import DeviceDecoder, Inputs
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.ops import Drafts, Reading, token_keys
from adaptspec.gpu.staging import Block

_WARM, _WIDE = 1, 2  # what a step does beside drawing: by draft temperatures, and keeping further candidates


class DraftSteps:
    """The steps of rounds. The model may be on another device: then it has a plan and a result of its own."""

    def __init__(
        self,
        model: DeviceDecoder,
        whole: tuple[Block, Block, Captured],
        steps: int,
        ends: Collection[int],
        vocab_size: int,
    ) -> None:
        """`whole` are the round's plan, result and captured parts; drafts are of up to `steps` tokens.

        Of a model's tokens those from `vocab_size` on, which the target does not have, are not drawn.
        """
        plan, result, parts = whole
        self.model, self._round = model, (plan, result)
        self.plan, self.result = plan.on(model.device), result.on(model.device)
        self.parts = parts if self.plan is plan else Captured(model.device)
        rows, there = len(self.result.device["drafted"]), model.device
        # Of passes over one token of each row, and over two: which row they are of, and the tiles but for the rows of
        # the cache; of two, how far behind the newest token.
        each = torch.arange(2 * rows, device=there)
        self._owners, self._offsets = (each, each // 2), each % 2 - 1
        tiles = [torch.stack((n * each, torch.full_like(each, n), each), 1) for n in (1, 2)]
        self._tiles = torch.stack(tiles)[:, :rows].int()
        self._steps, self._asked = steps, torch.zeros(rows, dtype=torch.bool, device=there)
        self._alive = torch.ones(rows, device=there)
        self._candidates = combs.Candidates(rows, steps, there)
        self._step = torch.zeros(1, dtype=torch.int64, device=there)
        self._ends = torch.tensor(sorted(ends) or [-1], dtype=torch.int64, device=there)
        self._token_keys = token_keys(min(model.info.vocab_size, vocab_size), there)
        # Of the latest pass: drawing is captured by itself, as rows with rules have theirs in between.
        self.logits = torch.empty((rows, model.info.vocab_size), device=there)

    def begin(self, *, moving: bool) -> None:
        """Take over the plan."""
        self.plan.take(self._round[0])
        self.parts.run(self._begin, moving, 0)

    def read(self, rows: int, step: int) -> torch.Tensor:
        """Logits [rows, vocab] after the newest token of each row, or at further steps after the token drawn last."""
        self.parts.run(self._next if step else self._first, rows, 0)
        return self.logits[:rows]

    def draw(self, rows: int, *, warm: bool, wide: bool) -> None:
        """By these logits, a token for each row that drafts on."""
        self.parts.run(self._draw, rows, _WARM * warm + _WIDE * wide)

    def end(self, rows: int, *, wide: bool) -> None:
        """Have the round's result be what was drafted."""
        if wide:
            self.parts.run(self._branch, rows, 0)
        self._round[1].take(self.result)

    def capture(self, rows: int) -> None:
        """Capture all that so many rows may need."""
        for moving in (True, False):
            self.parts.capture(self._begin, moving, 0)
        for step, part in enumerate((self._first, self._next)[: self._steps]):
            self.parts.capture(part, rows, 0, partial(self._step.fill_, step))
        for kind in range(_WARM + _WIDE + 1):
            self.parts.capture(self._draw, rows, kind, partial(self._step.fill_, 0))
        self.parts.capture(self._branch, rows, 0)

    def _begin(self, moving: int, _: int) -> None:
        plan, result = self.plan.device, self.result.device
        self.model.cache.begin(plan, 1, moving=bool(moving))
        if self.plan is not self._round[0]:
            reset(plan, result)
        self._tiles[:, :, 2] = plan["rows"]
        torch.gt(plan["depths"], 0, out=self._asked)
        self._alive.fill_(1.0)
        self._candidates.clear()
        self._step.zero_()

    def _first(self, rows: int, _: int) -> None:
        """Read what the model has not seen of each row: its newest token at least."""
        offsets = self._offsets[: 2 * rows].view(rows, 2)
        live = self._asked[:rows, None] & (-offsets < self.plan.device["unread"][:rows, None])
        states = self._read(2, offsets.flatten(), live.flatten())[1::2]
        padded = functional.pad(states, (0, 0, 0, self.model.bucket(rows) - len(states)))
        self.logits[:rows].copy_(self.model.logits(padded)[:rows])

    def _next(self, rows: int, _: int) -> None:
        """Read the token drawn last."""
        states = self._read(1, self._step.expand(rows), self._asked[:rows])
        self.logits[:rows].copy_(self.model.logits(states)[:rows])

    def _read(self, count: int, offsets: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """States after up to `count` tokens of each row, at these offsets from its newest, in order; then padding."""
        owners, tiles = self._owners[count - 1][: len(live)], self._tiles[count - 1, : len(live) // count]
        at = owners, offsets, live
        return self.model.run(inputs(self.model, (self.plan.device, self.result.device), at, tiles))

    def _draw(self, rows: int, kind: int) -> None:
        """A token for each row that drafts on, and whether it goes on from there."""
        plan, result, ops = self.plan.device, self.result.device, self.model.ops
        logits, temperatures = self.logits[:rows], plan["temperatures"][:rows]
        keys = plan["keys"][:rows].index_select(1, self._step).squeeze(1)
        bounds = draft_bounds.Bounds(*(plan[name][:rows] for name in draft_bounds.Bounds._fields))
        candidates = combs.WIDTH if kind & _WIDE else 1
        found = ops.choose(logits, temperatures, keys, self._token_keys, candidates)
        if kind & _WARM:
            warmed = temperatures * bounds.temperatures(found.entropy)
            again = ops.choose(logits, warmed, keys, self._token_keys, candidates)
            found = again._replace(entropy=found.entropy)  # tables go by the first
        told = (result[name][:rows] for name in Drafts._fields[4:])
        drafts = Drafts(self._step, self._asked[:rows], self._alive[:rows], plan["depths"][:rows], *told)
        side = (combs.Comb.of(plan, rows), self._candidates) if kind & _WIDE else None
        ops.extend_drafts(found, drafts, bounds, self._ends, side)

    def _branch(self, rows: int, _: int) -> None:
        """Let the best candidates beside the chains follow on these, as far as there is room."""
        names = "counts", "picks", "drafted", "confidence", "entropy", "nodes", "ways"
        result = {name: self.result.device[name][:rows] for name in names}
        self._candidates.follow(combs.Comb.of(self.plan.device, rows), result)


def reset(plan: dict[str, torch.Tensor], result: dict[str, torch.Tensor]) -> None:
    """Have a round's result be what others than the draft model have drafted."""
    given = plan["given"]
    result["drafted"][:, : given.shape[1]].copy_(given)
    result["counts"].copy_(plan["counts"])
    result["bad"].zero_()


def inputs(
    model: DeviceDecoder,
    sides: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]],
    at: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    tiles: torch.Tensor,
) -> Inputs:
    """A pass over tokens of a round's plan and result, padded to its bucket. `at` [T]: see `Reading`."""
    plan, result = sides
    reading = Reading(*at, plan["rows"], plan["lengths"], plan["newest"], result["drafted"])
    laid = model.ops.pass_inputs(reading, model.cache, model.bucket(len(reading.live)))
    return Inputs(*(*laid, tiles))


def aside(inputs: Inputs, by: torch.Tensor) -> Inputs:
    """The same pass where tokens lie `by` [T] places behind where their text has them, and see what is before that.

    They see themselves, and nothing in between: to the last bit as if they lay there.
    """
    back = by.int()
    return replace(inputs, positions=inputs.positions - back, base=inputs.base - back)
