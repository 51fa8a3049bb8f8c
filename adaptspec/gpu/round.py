"""A draft/verify round on a device: begun by one copy, ended by one, and nothing in between asks the host.

The host lays a round out for the most that it may come to; rows whose stop table cuts their draft leave padding.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from adaptspec.decision_tables import ENTROPY_EDGES, StopTable, TemperatureTable
from adaptspec.gpu import draft_bounds, rules
from adaptspec.gpu.device_decoder import BUCKETS, DeviceDecoder, Inputs
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.ops import RuledPositions, RuledRows, RuleTables
from adaptspec.gpu.plan import tile_tokens
from adaptspec.gpu.plan import tiles as tiles_of
from adaptspec.gpu.staging import Block
from adaptspec.models.noise import token_keys
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import FloatArray, IntArray

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
    sampling: SamplingBatch  # of the B rows
    told: IntArray  # [B] how many alternatives are told of each token, -1: not even its own probability
    decoding: int  # rows
    stop: StopTable | None
    warmth: TemperatureTable | None


@dataclass(frozen=True)
class RoundResult:
    """What came of it, for B rows and D steps; `choices` [B, D + 1] are the target's after each drafted token."""

    drafted: IntArray
    counts: IntArray
    confidence: FloatArray
    entropy: FloatArray
    choices: IntArray
    first: IntArray  # [B] the first token of a row whose prompt has ended
    bad: IntArray  # [B] whether a row's scores were no numbers
    told: FloatArray | None  # [B, D + 1, 1 + 2 most] log-probabilities: of the choice, of the likeliest; then these
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
        self._widest = target.bucket(rows * (steps + 1))
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
                **rules.layout(rows, steps),
            },
            device,
        )
        self._result = Block(
            {
                "drafted": (whole, (rows, steps)),
                "counts": (whole, (rows,)),
                "choices": (whole, (self._widest,)),
                "confidence": (real, (rows, steps)),
                "entropy": (real, (rows, steps)),
                "first": (whole, (rows,)),
                "bad": (torch.bool, (rows,)),
            },
            device,
        )
        self._asked = torch.zeros(rows, dtype=torch.bool, device=device)
        self._alive = torch.ones(rows, device=device)
        self._step = torch.zeros(1, dtype=whole, device=device)
        self._edges = torch.tensor(ENTROPY_EDGES, device=device)
        self._ends = torch.tensor(sorted(ends) or [-1], dtype=whole, device=device)
        self._token_keys = token_keys(target.info.vocab_size, device)
        self._book = rules.RuleBook(rows, steps, target.info.vocab_size, device)
        self._tables: RuleTables | None = None  # where a row of the round has rules
        # Of the latest pass: what comes after it is captured by itself, as rows with rules have theirs in between.
        widest = max([self._widest * target.info.vocab_size, *(rows * model.info.vocab_size for model in self._models)])
        self._scores = torch.empty(widest, device=device)
        self._told: list[torch.Tensor] = []
        self._parts = Captured()
        self._waits = False
        if device.type == "cuda":
            self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]

    def launch(self, plan: RoundPlan) -> None:
        """Send a plan and begin."""
        warm, count, deepest = plan.warmth is not None, len(plan.rows), int(plan.depths.max(initial=0))
        self._wait()  # for a round that nobody wants any more: what it reads must stay until then
        width, moving = self._lay(plan), self._tell_tables()
        self._plan.send()
        self._book.send_masks(None, None)
        self._mark(0)
        rows = self._bucket(count)
        self._parts.run(self._begin, moving, 0)
        self._tables = self._book.tables(self._plan.device) if self._book.ruled else None
        self._told.clear()
        for step in range(deepest):
            self._parts.run(self._next if step else self._first, rows, 0)
            if self._tables is not None and self.draft is not None:
                own = torch.arange(rows, device=self._step.device)
                self._rule(self._logits(rows, self.draft), own, torch.full_like(own, step), masked=not step)
            self._parts.run(self._draw, rows, warm)
        if self._masks_drafts(plan):
            self._result.fetch()
        self._mark(1)
        if plan.decoding:
            self._parts.run(self._verify, width, self._tiles(width, rows))
            self._judge(plan, width)

    def _judge(self, plan: RoundPlan, width: int) -> None:
        """Choose after each token of the verify pass."""
        if self._masks_drafts(plan):
            self._wait()  # the device is at the pass meanwhile
            self._book.send_masks(self._result.host["drafted"], self._result.host["counts"])
        logits, sent = self._logits(width, self.target), self._plan.device
        shares = _shares(logits, plan.told[: plan.decoding])
        if self._tables is not None:
            offsets = sent["offsets"][:width].clamp(max=self._steps)
            self._rule(logits, sent["owners"][:width], offsets, masked=True)
        self._parts.run(self._choose, width, 0)
        if shares is not None:
            self._told.append(_told(shares, self._result.device["choices"][:width], int(plan.told.max())))

    def _masks_drafts(self, plan: RoundPlan) -> bool:
        """Whether masks depend on what is drafted."""
        return bool(self._book.masked) and bool(plan.depths.any() or plan.counts.any())

    def _rule(self, logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, *, masked: bool) -> None:
        """Change logits [N, V] of these rows [N] behind so many [N] of their drafted tokens by the rows' rules."""
        assert self._tables is not None
        slots = self._plan.device["masks"][rows]
        masks = torch.where((slots >= 0) & masked, slots + offsets * self._book.masked, -1)
        sent = {name: self._plan.device[name] for name in RuledRows._fields[:-1]}
        ruled = RuledRows(**sent, drafted=self._result.device["drafted"])
        self.target.ops.apply_rules(logits, RuledPositions(rows, offsets, masks), ruled, self._tables)

    def _logits(self, positions: int, model: DeviceDecoder) -> torch.Tensor:
        """Where those of a pass are kept, [positions, V]."""
        width = model.info.vocab_size
        return self._scores[: positions * width].view(positions, width)

    def capture(self) -> None:
        """Capture the parts of rounds in all shapes, the largest first. They run on nobody's rows meanwhile."""
        host = self._plan.host
        host["rows"][:], host["lengths"][:] = self.target.cache.nobody, 1
        host["owners"][:], host["offsets"][:] = 0, self._steps + 1
        self._tell_tables()
        self._plan.send()
        for moving in (True, False):
            self._parts.capture(self._begin, moving, 0)
        rows, most = len(self._asked), len(self._asked)
        while rows:
            for width in range(self.target.bucket(rows * (self._steps + 1)), self._room(rows) - 1, -BUCKETS[-1]):
                self._parts.capture(self._verify, width, self._tiles(width, rows))
                self._parts.capture(self._choose, width, 0)
            if self.draft is not None:
                for step, part in enumerate((self._first, self._next)[: self._steps]):
                    self._parts.capture(part, rows, 0, partial(self._step.fill_, step))
                for warm in (False, True):
                    self._parts.capture(self._draw, rows, warm, partial(self._step.fill_, 0))
            rows = rows // 2 if rows < most else bucket_rows(rows) // 2
        torch.cuda.synchronize(self.target.device)

    def end(self) -> None:
        """All of the round has been asked for: have its result come."""
        self._result.fetch()
        self._mark(2)

    def choose_first(self, logits: torch.Tensor, row: int, told: IntArray) -> None:
        """The first tokens of rows whose prompts have ended, from `row` on, by their `logits` [n, V]; `told` [n]."""
        own = torch.arange(row, row + len(logits), device=logits.device)
        sent, result = self._plan.device, self._result.device
        shares = _shares(logits, told)
        if self._tables is not None:
            self._rule(logits, own, torch.zeros_like(own), masked=True)
        keys = sent["keys"][:, 0].index_select(0, own)
        found = self.target.ops.choose(logits, sent["temperatures"].index_select(0, own), keys, self._token_keys)
        result["first"].index_copy_(0, own, found.token.long())
        result["bad"].index_copy_(0, own, ~torch.isfinite(found.entropy))
        if shares is not None:
            self._told.append(_told(shares, found.token.long(), int(told.max())))

    def result(self, plan: RoundPlan) -> RoundResult:
        """What has come: the one time that the host waits for the device."""
        self._wait()
        host, count = self._result.host, len(plan.rows)
        owners, offsets = self._plan.host["owners"], self._plan.host["offsets"]
        choices: IntArray = np.zeros((count, self._steps + 1), dtype=np.int64)
        real = offsets <= self._steps
        choices[owners[real], offsets[real]] = host["choices"][real]
        told = self._read_told(plan, owners[real], offsets[real])
        names = ("drafted", "counts", "confidence", "entropy", "first", "bad")
        drafted, counts, confidence, entropy, first, bad = (host[name][:count].copy() for name in names)
        steps = int(np.where(plan.depths > 0, counts, 0).max(initial=0))
        sure, spread = confidence.astype(np.float64), entropy.astype(np.float64)
        seconds = None
        if self.target.device.type == "cuda":
            begun, drawn, done = self._marks
            seconds = begun.elapsed_time(drawn) * 1e-3, drawn.elapsed_time(done) * 1e-3
        return RoundResult(drafted, counts, sure, spread, choices, first, bad, told, steps, seconds)

    def _read_told(self, plan: RoundPlan, owners: IntArray, offsets: IntArray) -> FloatArray | None:
        parts = [one.double().numpy() for one in self._told]
        if not parts:
            return None
        whole = np.zeros((len(plan.rows), self._steps + 1, max(part.shape[1] for part in parts)))
        if (plan.told[: plan.decoding] >= 0).any():
            part = parts.pop(0)
            whole[owners, offsets, : part.shape[1]] = part[: len(owners)]
        for part in parts:
            whole[plan.decoding :, 0, : part.shape[1]] = part
        return whole

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
        return min(self.target.bucket(rows * (self._steps + 1)), BUCKETS[-1])

    def _tiles(self, width: int, rows: int) -> int:
        """The most tiles that so many tokens of so many rows make."""
        return width // tile_tokens(self.target.heads) + rows

    def _lay(self, plan: RoundPlan) -> int:
        """Write the plan on the host; return how many tokens the verify pass has room for."""
        host, count, decoding = self._plan.host, len(plan.rows), plan.decoding
        for name in ("rows", "lengths", "newest", "unread", "depths", "counts"):
            host[name][:count] = getattr(plan, name)
        host["temperatures"][:count] = plan.sampling.temperatures
        host["keys"][:count] = plan.sampling.keys(self._steps + 1)
        self._book.write(host, plan.rows, plan.sampling)
        host["rows"][count:] = self.target.cache.nobody
        host["depths"][count:] = host["counts"][count:] = 0
        host["given"][:count, : plan.given.shape[1]] = plan.given
        draft_bounds.write(host, plan.stop, plan.warmth, count)
        wide = (np.maximum(plan.depths, plan.counts) + 1)[:decoding]
        tokens = int(wide.sum())
        width = max(self.target.bucket(max(tokens, 1)), self._room(self._bucket(count)))
        host["owners"][:tokens] = np.repeat(np.arange(decoding), wide)
        host["offsets"][:tokens] = np.arange(tokens) - np.repeat(np.cumsum(wide) - wide, wide)
        host["owners"][tokens:], host["offsets"][tokens:] = 0, self._steps + 1
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
        result["drafted"].copy_(plan["given"])
        result["counts"].copy_(plan["counts"])
        result["bad"].zero_()
        torch.gt(plan["depths"], 0, out=self._asked)
        self._alive.fill_(1.0)
        self._step.zero_()

    def _first(self, rows: int, _: int) -> None:
        """The draft model reads what it has not seen of each row, its newest token at least."""
        plan, asked = self._plan.device, self._asked[:rows]
        back = torch.arange(1, -1, -1, device=asked.device)  # how far before the newest token
        places = plan["lengths"][:rows, None] - 1 - back
        live = asked[:, None] & (back < plan["unread"][:rows, None])
        states = self._read(plan["newest"][:rows], places, live)
        self._keep_logits(states[1::2][:rows])

    def _next(self, rows: int, _: int) -> None:
        """It reads the token drawn last."""
        plan, asked = self._plan.device, self._asked[:rows]
        drafted = self._result.device["drafted"][:rows].index_select(1, self._step - 1)
        places = plan["lengths"][:rows, None] - 1 + self._step
        self._keep_logits(self._read(drafted, places, asked[:, None])[:rows])

    def _read(self, tokens: torch.Tensor, places: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """States after up to two new tokens [R, n] of each row, in order."""
        assert self.draft is not None
        rows, count = tokens.shape
        own = self._plan.device["rows"][:rows]
        first = torch.arange(0, rows * count, count, device=own.device)
        laid = torch.stack((first, torch.full_like(first, count), own), 1).int()
        owners = own.repeat_interleave(count, output_size=rows * count)
        return self.draft.run(_inputs(self.draft, tokens, (owners, places, live), laid))

    def _keep_logits(self, states: torch.Tensor) -> None:
        assert self.draft is not None
        more = self.draft.bucket(len(states)) - len(states)
        logits = self.draft.logits(functional.pad(states, (0, 0, 0, more)))
        self._logits(len(states), self.draft).copy_(logits[: len(states)])

    def _draw(self, rows: int, warm: bool) -> None:
        """A token for each row that drafts on, and whether it goes on from there."""
        draft, plan, result = self.draft, self._plan.device, self._result.device
        assert draft is not None
        logits, asked, step = self._logits(rows, draft), self._asked[:rows], self._step
        temperatures, keys = plan["temperatures"][:rows], plan["keys"][:rows].index_select(1, step).squeeze(1)
        bounds = draft_bounds.Bounds(*(plan[name][:rows] for name in draft_bounds.Bounds._fields))
        found = draft.ops.choose(logits, temperatures, keys, self._token_keys)
        spread = found.entropy
        if warm:
            factors = bounds.temperatures(self._edges, spread)
            found = draft.ops.choose(logits, temperatures * factors, keys, self._token_keys)
        for name, values in (("drafted", found.token.long()), ("confidence", found.confidence), ("entropy", spread)):
            column = result[name][:rows]
            kept = torch.where(asked, values, column.index_select(1, step).squeeze(1))
            column.index_copy_(1, step, kept.unsqueeze(1))
        result["counts"][:rows].add_(asked)
        going = bounds.goes_on(step, asked, found.confidence, spread, self._alive[:rows])
        going &= (plan["depths"][:rows] > step + 1) & ~(found.token.unsqueeze(1) == self._ends).any(1)
        asked.copy_(going)
        step.add_(1)

    def _verify(self, width: int, tiles: int) -> None:
        """The target reads each row's newest token and drafts, `width` tokens in `tiles`."""
        plan, result, target = self._plan.device, self._result.device, self.target
        owners, offsets = plan["owners"][:width], plan["offsets"][:width]
        within = offsets.clamp(max=self._steps)
        node = (within - 1).clamp(min=0)
        tokens = torch.where(offsets == 0, plan["newest"][owners, 1], result["drafted"][owners, node])
        live = offsets <= result["counts"][owners]
        places = plan["lengths"][owners] - 1 + within
        inputs = _inputs(target, tokens, (plan["rows"][owners], places, live), plan["tiles"][:tiles])
        self._logits(width, target).copy_(target.logits(target.run(inputs)))

    def _choose(self, width: int, _: int) -> None:
        """The target chooses after each of them."""
        plan, result = self._plan.device, self._result.device
        owners, offsets = plan["owners"][:width], plan["offsets"][:width]
        keys, logits = plan["keys"][owners, offsets.clamp(max=self._steps)], self._logits(width, self.target)
        found = self.target.ops.choose(logits, plan["temperatures"][owners], keys, self._token_keys)
        result["choices"][:width] = found.token
        broken = ((offsets <= result["counts"][owners]) & ~torch.isfinite(found.entropy)).long()
        result["bad"] |= torch.zeros_like(plan["rows"]).index_add_(0, owners, broken) > 0


def _inputs(
    model: DeviceDecoder, tokens: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor, torch.Tensor], laid: torch.Tensor
) -> Inputs:
    """A pass over these tokens, padded to its bucket. `at`: the row and the place of each, and whether it lives; what
    does not is written to nobody's block.
    """
    more = model.bucket(tokens.numel()) - tokens.numel()
    tokens, rows, places, live = (part.flatten() for part in (tokens, *at))
    rows, places = torch.where(live, rows, model.cache.nobody), torch.where(live, places, 0)
    base, slots = torch.where(live, places + 1, 0).int(), model.slots(rows, places)
    if more:
        tokens, places, base = (functional.pad(part, (0, more)) for part in (tokens, places, base))
        slots = functional.pad(slots, (0, more), value=model.rubbish)
    return Inputs(tokens, places.int(), slots, base, torch.zeros_like(tokens), laid)


def bucket_rows(rows: int) -> int:
    """How many rows a draft step of so many is made for."""
    return 1 << (rows - 1).bit_length()


def _shares(logits: torch.Tensor, told: IntArray) -> torch.Tensor | None:
    """Logarithms of probabilities, before rules change the logits, if any row's are to be told."""
    return logits.log_softmax(1) if (told >= 0).any() else None


def _told(shares: torch.Tensor, choices: torch.Tensor, most: int) -> torch.Tensor:
    """On the way to the host [N, 1 + 2 most]: that of the choice, those of the likeliest, and these tokens."""
    best = shares.topk(min(most, shares.shape[1]), dim=1)
    parts = shares.gather(1, choices.unsqueeze(1)), best.values, best.indices.float()  # exact up to 2^24
    return torch.cat(parts, 1).to("cpu", non_blocking=True)
