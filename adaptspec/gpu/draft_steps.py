"""A draft model's part of a round: it reads and draws, a token of every row at a time, and nothing asks the host."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch
from torch.nn import functional

from adaptspec.decision_tables import ENTROPY_EDGES
from adaptspec.gpu import combs, draft_bounds
from adaptspec.gpu.device_decoder import DeviceDecoder, Inputs
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.staging import Block
from adaptspec.models.noise import token_keys

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
        self._steps, self._asked = steps, torch.zeros(rows, dtype=torch.bool, device=there)
        self._alive = torch.ones(rows, device=there)
        self._candidates = combs.Candidates(rows, steps, there)
        self._step = torch.zeros(1, dtype=torch.int64, device=there)
        self._edges = torch.tensor(ENTROPY_EDGES, device=there)
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

    def capture_begin(self) -> None:
        for moving in (True, False):
            self.parts.capture(self._begin, moving, 0)

    def capture(self, rows: int) -> None:
        """Capture all that so many rows may need."""
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
        torch.gt(plan["depths"], 0, out=self._asked)
        self._alive.fill_(1.0)
        self._candidates.clear()
        self._step.zero_()

    def _first(self, rows: int, _: int) -> None:
        """Read what the model has not seen of each row: its newest token at least."""
        plan, asked = self.plan.device, self._asked[:rows]
        back = torch.arange(1, -1, -1, device=asked.device)  # how far before the newest token
        places = plan["lengths"][:rows, None] - 1 - back
        live = asked[:, None] & (back < plan["unread"][:rows, None])
        states = self._read(plan["newest"][:rows], places, live)
        self._keep_logits(states[1::2][:rows])

    def _next(self, rows: int, _: int) -> None:
        """Read the token drawn last."""
        plan, asked = self.plan.device, self._asked[:rows]
        drafted = self.result.device["drafted"][:rows].index_select(1, self._step - 1)
        places = plan["lengths"][:rows, None] - 1 + self._step
        self._keep_logits(self._read(drafted, places, asked[:, None])[:rows])

    def _read(self, tokens: torch.Tensor, places: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """States after up to two new tokens [R, n] of each row, in order."""
        rows, count = tokens.shape
        own = self.plan.device["rows"][:rows]
        first = torch.arange(0, rows * count, count, device=own.device)
        laid = torch.stack((first, torch.full_like(first, count), own), 1).int()
        owners = own.repeat_interleave(count, output_size=rows * count)
        return self.model.run(inputs(self.model, tokens, (owners, places, live), laid))

    def _keep_logits(self, states: torch.Tensor) -> None:
        more = self.model.bucket(len(states)) - len(states)
        logits = self.model.logits(functional.pad(states, (0, 0, 0, more)))
        self.logits[: len(states)].copy_(logits[: len(states)])

    def _draw(self, rows: int, kind: int) -> None:
        """A token for each row that drafts on, and whether it goes on from there."""
        plan, result, choose = self.plan.device, self.result.device, self.model.ops.choose
        logits, asked, step = self.logits[:rows], self._asked[:rows], self._step
        temperatures, keys = plan["temperatures"][:rows], plan["keys"][:rows].index_select(1, step).squeeze(1)
        bounds = draft_bounds.Bounds(*(plan[name][:rows] for name in draft_bounds.Bounds._fields))
        candidates = combs.WIDTH if kind & _WIDE else 1
        found = choose(logits, temperatures, keys, self._token_keys, candidates)
        spread = found.entropy
        if kind & _WARM:
            factors = bounds.temperatures(self._edges, spread)
            found = choose(logits, temperatures * factors, keys, self._token_keys, candidates)
        if kind & _WIDE:
            found = self._candidates.beside(found, combs.Comb.of(plan, rows), asked, step)
        for name, values in (("drafted", found.token.long()), ("confidence", found.confidence), ("entropy", spread)):
            column = result[name][:rows]
            kept = torch.where(asked, values, column.index_select(1, step).squeeze(1))
            column.index_copy_(1, step, kept.unsqueeze(1))
        result["counts"][:rows].add_(asked)
        going = bounds.goes_on(step, asked, found.confidence, spread, self._alive[:rows])
        going &= (plan["depths"][:rows] > step + 1) & ~(found.token.unsqueeze(1) == self._ends).any(1)
        asked.copy_(going)
        step.add_(1)

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
    model: DeviceDecoder, tokens: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor, torch.Tensor], laid: torch.Tensor
) -> Inputs:
    """A pass over these tokens, padded to its bucket. `at`: the row and the place of each, and whether it lives; what
    does not is written to nobody's block.
    """
    more = model.bucket(tokens.numel()) - tokens.numel()
    tokens, rows, places, live = (part.flatten() for part in (tokens, *at))
    # What does not live may be anything, a token that this model does not have, too.
    tokens = torch.where(live, tokens, 0)
    rows, places = torch.where(live, rows, model.cache.nobody), torch.where(live, places, 0)
    base, slots = torch.where(live, places, -1).int(), model.slots(rows, places)
    if more:
        tokens, places = (functional.pad(part, (0, more)) for part in (tokens, places))
        base, slots = functional.pad(base, (0, more), value=-1), functional.pad(slots, (0, more), value=model.rubbish)
    return Inputs(tokens, places.int(), slots, base, torch.zeros_like(tokens), laid)
