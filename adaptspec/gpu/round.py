"""A draft/verify round on a device: begun by one copy, ended by one, and nothing in between asks the host.

The host lays a round out for the most that it may come to; rows whose stop table cuts their draft leave padding. A
draft that branches is its chain and then the side nodes, which share what a pass of so many rows has room for: it is as
wide as without them, so that they change nobody's sums.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from adaptspec.decision_tables import ENTROPY_EDGES, StopTable, TemperatureTable, TreeTable
from adaptspec.gpu import combs, draft_bounds
from adaptspec.gpu.device_decoder import BUCKETS, DeviceDecoder, Inputs, bucket
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.plan import tile_tokens
from adaptspec.gpu.plan import tiles as tiles_of
from adaptspec.gpu.staging import Block
from adaptspec.models.noise import token_keys
from adaptspec.types import FloatArray, IntArray

LEAST = 32  # tokens of a verify pass: no slower than the 16 that tensor cores take, and room for branches
_WARM, _WIDE = 1, 2  # what a draft step does beside drawing: by draft temperatures, and keeping further candidates
CHANGES = 4  # of block tables per row that come with a plan; a long prompt brings more, and is told by itself


@dataclass(frozen=True)
class RoundPlan:
    """What B rows are to do: those that decode first, then those whose prompt ends in this round."""

    rows: IntArray  # [B] of the caches
    lengths: IntArray  # [B] tokens so far
    newest: IntArray  # [B, 2] the last two tokens
    unread: IntArray  # [B] how many of these two the draft model has not read: 1 or 2
    depths: IntArray  # [B] tokens that the draft model drafts, at most
    given: IntArray  # [B, D] tokens that others have drafted
    counts: IntArray  # [B] how many
    temperatures: FloatArray  # [B] 0: takes the likeliest token
    keys: IntArray  # [B, D + 1] of the noise at each position from the next one on
    decoding: int  # rows
    stop: StopTable | None
    warmth: TemperatureTable | None
    nodes: IntArray  # [B] what the draft model's drafts may come to, side nodes and all
    tree: TreeTable | None  # None: they are chains


@dataclass(frozen=True)
class RoundResult:
    """What came of it, for B rows of up to N nodes; `choices` [B, N + 1] are the target's after each."""

    drafted: IntArray
    counts: IntArray  # [B] tokens of the chains
    picks: IntArray  # [B, N] which candidates follow on them: see `combs.shape_of`
    confidence: FloatArray
    entropy: FloatArray
    choices: IntArray
    first: IntArray  # [B] the first token of a row whose prompt has ended
    bad: IntArray  # [B] whether a row's scores were no numbers
    steps: int
    seconds: tuple[float, float] | None  # of drafting and verifying, by the device's clock where it has one


class DeviceRounds:
    """Runs rounds of up to `rows` rows and drafts of up to `steps` tokens on the device of `target`."""

    def __init__(
        self, target: DeviceDecoder, draft: DeviceDecoder | None, rows: int, steps: int, ends: Collection[int]
    ) -> None:
        self.target, self.draft = target, draft
        self._models = [model for model in (target, draft) if model is not None]
        device, self._steps = target.device, steps
        self.most_nodes, self._widest = (nodes := max(steps, LEAST - 1)), self._width(rows)
        whole, real, changes = torch.int64, torch.float32, CHANGES * rows
        self._plan = Block(
            {
                "rows": (whole, (rows,)),
                "lengths": (whole, (rows,)),
                "newest": (whole, (rows, 2)),
                "unread": (whole, (rows,)),
                "depths": (whole, (rows,)),
                "given": (whole, (rows, steps)),
                "counts": (whole, (rows,)),
                "keys": (whole, (rows, steps + 1)),
                "owners": (whole, (self._widest,)),
                "offsets": (whole, (self._widest,)),
                "tiles": (torch.int32, (self._widest + rows, 3)),
                "temperatures": (real, (rows,)),
                "entries": (whole, (2, changes)),
                "blocks": (torch.int32, (2, changes)),
                "moves": (whole, (2, 2, rows)),
                **draft_bounds.layout(rows, steps),
                **combs.layout(rows),
            },
            device,
        )
        self._result = Block(
            {
                "drafted": (whole, (rows, nodes)),
                "counts": (whole, (rows,)),
                "picks": (whole, (rows, nodes)),
                "choices": (whole, (self._widest,)),
                "confidence": (real, (rows, nodes)),
                "entropy": (real, (rows, nodes)),
                "first": (whole, (rows,)),
                "bad": (torch.bool, (rows,)),
            },
            device,
        )
        self._asked = torch.zeros(rows, dtype=torch.bool, device=device)
        self._alive = torch.ones(rows, device=device)
        self._candidates = combs.Candidates(rows, steps, nodes, device)
        self._step = torch.zeros(1, dtype=whole, device=device)
        self._edges = torch.tensor(ENTROPY_EDGES, device=device)
        self._ends = torch.tensor(sorted(ends) or [-1], dtype=whole, device=device)
        self._token_keys = token_keys(target.info.vocab_size, device)
        self._parts = Captured()
        self._waits = False
        if device.type == "cuda":
            self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]

    def launch(self, plan: RoundPlan) -> None:
        """Send a plan and begin."""
        count, deepest = len(plan.rows), int(plan.depths.max(initial=0))
        kind = _WARM * (plan.warmth is not None) + _WIDE * (plan.tree is not None)
        self._wait()  # for a round that nobody wants any more: what it reads must stay until then
        width, moving = self._lay(plan), self._tell_tables()
        self._plan.send()
        self._mark(0)
        rows = self._bucket(count)
        self._parts.run(self._begin, moving, 0)
        if deepest:
            self._parts.run(self._first, rows, kind)
            for _ in range(deepest - 1):
                self._parts.run(self._next, rows, kind)
        if plan.tree is not None:
            self._parts.run(self._branch, rows, 0)
        self._mark(1)
        if plan.decoding:
            verify = self._verify if plan.tree is None else self._verify_branches
            self._parts.run(verify, width, self._tiles(width, rows))

    def capture(self) -> None:
        """Capture the parts of rounds in all shapes, the largest first. They run on nobody's rows meanwhile."""
        host = self._plan.host
        host["rows"][:], host["lengths"][:] = self.target.cache.nobody, 1
        host["owners"][:], host["offsets"][:] = 0, self.most_nodes + 1
        self._tell_tables()
        self._plan.send()
        for moving in (True, False):
            self._parts.capture(self._begin, moving, 0)
        rows, most = len(self._asked), len(self._asked)
        while rows:
            for width in range(self._width(rows), self._room(rows) - 1, -BUCKETS[-1]):
                for verify in (self._verify, self._verify_branches):
                    self._parts.capture(verify, width, self._tiles(width, rows))
            for kind in range(_WARM + _WIDE + 1) if self.draft is not None else ():
                for step, part in enumerate((self._first, self._next)[: self._steps]):
                    self._parts.capture(part, rows, kind, partial(self._step.fill_, step))
            self._parts.capture(self._branch, rows, 0)
            rows = rows // 2 if rows < most else bucket_rows(rows) // 2
        torch.cuda.synchronize(self.target.device)

    def end(self) -> None:
        """All of the round has been asked for: have its result come."""
        self._result.fetch()
        self._mark(2)

    def choose_first(self, logits: torch.Tensor, row: int) -> None:
        """The first tokens of rows whose prompts have ended, from `row` on, by their `logits` [n, vocab]."""
        own = slice(row, row + len(logits))
        plan, result = self._plan.device, self._result.device
        found = self.target.ops.choose(
            logits, plan["temperatures"][own], plan["keys"][own, 0].contiguous(), self._token_keys
        )
        result["first"][own] = found.token
        result["bad"][own] = ~torch.isfinite(found.entropy)

    def result(self, plan: RoundPlan) -> RoundResult:
        """What has come: the one time that the host waits for the device."""
        self._wait()
        host, count = self._result.host, len(plan.rows)
        owners, offsets = self._plan.host["owners"], self._plan.host["offsets"]
        choices: IntArray = np.zeros((count, self.most_nodes + 1), dtype=np.int64)
        real = offsets <= self.most_nodes
        choices[owners[real], offsets[real]] = host["choices"][real]
        if plan.tree is None:
            host["picks"][:count] = -1
        names = ("drafted", "counts", "picks", "confidence", "entropy", "first", "bad")
        drafted, counts, picks, confidence, entropy, first, bad = (host[name][:count].copy() for name in names)
        steps = int(np.where(plan.depths > 0, counts, 0).max(initial=0))
        sure, spread = confidence.astype(np.float64), entropy.astype(np.float64)
        seconds = None
        if self.target.device.type == "cuda":
            begun, drawn, done = self._marks
            seconds = begun.elapsed_time(drawn) * 1e-3, drawn.elapsed_time(done) * 1e-3
        return RoundResult(drafted, counts, picks, sure, spread, choices, first, bad, steps, seconds)

    def spare(self, chains: IntArray) -> int:
        """How many tokens the verify pass has room for beside chains of so many [B], however few they are."""
        return max(0, self._room(self._bucket(len(chains))) - int(chains.sum()) - len(chains))

    def _wait(self) -> None:
        if self._waits:
            self._last.synchronize()
            self._waits = False

    def _mark(self, which: int) -> None:
        """Note when the device has come so far."""
        if self.target.device.type == "cuda":
            self._last, self._waits = self._marks[which], True
            self._last.record()

    def _bucket(self, rows: int) -> int:
        return min(bucket_rows(rows), len(self._asked))

    def _room(self, rows: int) -> int:
        """Tokens of a verify pass by the number of rows, as long as that is next to free: text is then the same
        whatever their depths.
        """
        return min(self._width(rows), BUCKETS[-1])

    def _width(self, rows: int) -> int:
        """Tokens of a verify pass of the longest chains."""
        return bucket(max(rows * (self._steps + 1), LEAST))

    def _tiles(self, width: int, rows: int) -> int:
        """The most tiles that so many tokens of so many rows make."""
        return width // tile_tokens(self.target.heads) + rows

    def _lay(self, plan: RoundPlan) -> int:
        """Write the plan on the host; return how many tokens the verify pass has room for."""
        host, count, decoding = self._plan.host, len(plan.rows), plan.decoding
        for name in ("rows", "lengths", "newest", "unread", "depths", "counts", "temperatures"):
            host[name][:count] = getattr(plan, name)
        host["rows"][count:] = self.target.cache.nobody
        host["depths"][count:] = host["counts"][count:] = 0
        host["given"][:count, : plan.given.shape[1]] = plan.given
        host["keys"][:count, : plan.keys.shape[1]] = plan.keys
        draft_bounds.write(host, plan.stop, plan.warmth, count)
        if plan.tree is not None:
            combs.write(host, plan.tree, plan.nodes)
        wide = (np.maximum(plan.nodes, plan.counts) + 1)[:decoding]
        tokens = int(wide.sum())
        width = max(bucket(max(tokens, 1)), self._room(self._bucket(count)))
        host["owners"][:tokens] = np.repeat(np.arange(decoding), wide)
        host["offsets"][:tokens] = np.arange(tokens) - np.repeat(np.cumsum(wide) - wide, wide)
        host["owners"][tokens:], host["offsets"][tokens:] = 0, self.most_nodes + 1
        laid = tiles_of(plan.rows[:decoding], wide, self.target.heads)
        host["tiles"][: len(laid)], host["tiles"][len(laid) :] = laid, 0
        return width

    def _tell_tables(self) -> bool:
        """Write what has changed in the block tables, and what is to be moved; whether anything is."""
        host, moving = self._plan.host, False
        for i, model in enumerate(self._models):
            entries, blocks = model.cache.changes(host["entries"].shape[1])
            # What is left over tells once more what nobody's first block is.
            host["entries"][i], host["blocks"][i] = model.cache.unchanging
            host["entries"][i, : len(entries)], host["blocks"][i, : len(blocks)] = entries, blocks
            host["moves"][i] = model.rubbish
            if pairs := model.cache.moves(host["moves"].shape[2]):
                host["moves"][i, :, : len(pairs)], moving = np.transpose(pairs), True
        return moving

    def _begin(self, moving: int, _: int) -> None:
        plan, result = self._plan.device, self._result.device
        for i, model in enumerate(self._models):
            model.cache.table.view(-1).index_copy_(0, plan["entries"][i], plan["blocks"][i])
            if moving:
                model.cache.moved(plan["moves"][i])
        result["drafted"][:, : self._steps].copy_(plan["given"])
        result["counts"].copy_(plan["counts"])
        result["bad"].zero_()
        torch.gt(plan["depths"], 0, out=self._asked)
        self._alive.fill_(1.0)
        self._step.zero_()

    def _first(self, rows: int, kind: int) -> None:
        """The draft model reads what it has not seen of each row, its newest token at least, and draws."""
        plan, asked = self._plan.device, self._asked[:rows]
        if kind & _WIDE:
            self._candidates.clear()
        back = torch.arange(1, -1, -1, device=asked.device)  # how far before the newest token
        places = plan["lengths"][:rows, None] - 1 - back
        live = asked[:, None] & (back < plan["unread"][:rows, None])
        states = self._read(plan["newest"][:rows], places, live)
        self._draw(states[1::2][:rows], rows, kind)

    def _next(self, rows: int, kind: int) -> None:
        """It reads the token drawn last, and draws the next."""
        plan, asked = self._plan.device, self._asked[:rows]
        drafted = self._result.device["drafted"][:rows].index_select(1, self._step - 1)
        places = plan["lengths"][:rows, None] - 1 + self._step
        self._draw(self._read(drafted, places, asked[:, None])[:rows], rows, kind)

    def _read(self, tokens: torch.Tensor, places: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """States after up to two new tokens [R, n] of each row, in order."""
        assert self.draft is not None
        rows, count = tokens.shape
        own = self._plan.device["rows"][:rows]
        first = torch.arange(0, rows * count, count, device=own.device)
        laid = torch.stack((first, torch.full_like(first, count), own), 1).int()
        owners = own.repeat_interleave(count, output_size=rows * count)
        return self.draft.run(_inputs(self.draft, tokens, (owners, places, live), laid))

    def _draw(self, states: torch.Tensor, rows: int, kind: int) -> None:
        draft, plan, result = self.draft, self._plan.device, self._result.device
        assert draft is not None
        logits, asked, step = _padded_logits(draft, states)[:rows], self._asked[:rows], self._step
        temperatures, keys = plan["temperatures"][:rows], plan["keys"][:rows].index_select(1, step).squeeze(1)
        bounds = draft_bounds.Bounds(*(plan[name][:rows] for name in draft_bounds.Bounds._fields))
        candidates = combs.WIDTH if kind & _WIDE else 1
        found = draft.ops.choose(logits, temperatures, keys, self._token_keys, candidates)
        spread = found.entropy
        if kind & _WARM:
            factors = bounds.temperatures(self._edges, spread)
            found = draft.ops.choose(logits, temperatures * factors, keys, self._token_keys, candidates)
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
        names = "counts", "picks", "drafted", "confidence", "entropy"
        result = {name: self._result.device[name][:rows] for name in names}
        self._candidates.follow(combs.Comb.of(self._plan.device, rows), result)

    def _verify_branches(self, width: int, tiles: int) -> None:
        """The same of drafts that branch: a side node sees what is before it on its chain, and itself."""
        self._verify(width, tiles, branches=True)

    def _verify(self, width: int, tiles: int, *, branches: bool = False) -> None:
        """The target reads each row's newest token and drafts, `width` tokens in `tiles`, and chooses after each."""
        plan, result, target = self._plan.device, self._result.device, self.target
        owners, offsets = plan["owners"][:width], plan["offsets"][:width]
        within = offsets.clamp(max=self.most_nodes if branches else self._steps)
        node = (within - 1).clamp(min=0)
        tokens = torch.where(offsets == 0, plan["newest"][owners, 1], result["drafted"][owners, node])
        counts, depths = result["counts"], within
        if branches:
            counts = self._candidates.counts
            depths = self._candidates.depths[owners, within].clamp(max=self._steps)
        live, places = offsets <= counts[owners], plan["lengths"][owners] - 1 + within
        inputs = _inputs(target, tokens, (plan["rows"][owners], places, live), plan["tiles"][:tiles])
        if branches:
            inputs = combs.aside(inputs, torch.where(live, within - depths, 0))
        logits = target.logits(target.run(inputs))
        keys = plan["keys"][owners, depths]
        found = target.ops.choose(logits, plan["temperatures"][owners], keys, self._token_keys)
        result["choices"][:width] = found.token
        broken = (live & ~torch.isfinite(found.entropy)).long()
        result["bad"] |= torch.zeros_like(plan["rows"]).index_add_(0, owners, broken) > 0


def _inputs(
    model: DeviceDecoder, tokens: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor, torch.Tensor], laid: torch.Tensor
) -> Inputs:
    """A pass over these tokens, padded to its bucket. `at`: the row and the place of each, and whether it lives; what
    does not is written to nobody's block.
    """
    more = bucket(tokens.numel()) - tokens.numel()
    tokens, rows, places, live = (part.flatten() for part in (tokens, *at))
    rows, places = torch.where(live, rows, model.cache.nobody), torch.where(live, places, 0)
    base, slots = torch.where(live, places, -1).int(), model.slots(rows, places)
    if more:
        tokens, places = (functional.pad(part, (0, more)) for part in (tokens, places))
        base, slots = functional.pad(base, (0, more), value=-1), functional.pad(slots, (0, more), value=model.rubbish)
    return Inputs(tokens, places.int(), slots, base, torch.zeros_like(tokens), laid)


def bucket_rows(rows: int) -> int:
    """How many rows a draft step of so many is made for."""
    return 1 << (rows - 1).bit_length()


def _padded_logits(model: DeviceDecoder, states: torch.Tensor) -> torch.Tensor:
    more = bucket(len(states)) - len(states)
    return model.logits(functional.pad(states, (0, 0, 0, more)))
