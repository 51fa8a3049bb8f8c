"""A draft/verify round on a device: begun by one copy, ended by one, and nothing in between asks the host.

The host lays a round out for the most that it may come to; rows whose stop table cuts their draft leave padding.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.gpu import combs, draft_bounds, rules
from adaptspec.gpu.device_decoder import TILES, DeviceDecoder, padded, tile_of
from adaptspec.gpu.draft_steps import DraftSteps, aside, inputs, reset
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.ops import RuledPositions, RuledRows, token_keys
from adaptspec.gpu.plan import tile_tokens
from adaptspec.gpu.plan import tiles as tiles_of
from adaptspec.gpu.round_plan import RoundPlan, RoundResult, RoundShape
from adaptspec.gpu.staging import Block, at_work

CHANGES = 4  # of block tables per row that come with a plan; a long prompt brings more, and is told by itself


class DeviceRounds:
    """Runs rounds of up to `rows` rows and drafts of up to `steps` tokens on the device of `target`."""

    def __init__(
        self, target: DeviceDecoder, draft: DeviceDecoder | None, rows: int, steps: int, ends: Collection[int]
    ) -> None:
        """Of a group of ranks the first one has the draft model, and tells the others what it drafts."""
        target.group.tell("prepare", rows, steps)
        self.target, self._rows, self._steps = target, rows, steps
        device = target.device
        # A row alone branches as far as the pass of plain decoding has room.
        self.most_nodes, self._widest = (nodes := max(steps, TILES[0] - 1)), self._most(rows)
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
                "asked": (whole, (self._widest,)),
                "tiles": (torch.int32, (self._widest + rows, 3)),
                "temperatures": (real, (rows,)),
                "entries": (whole, (2, 2, changes)),
                "moves": (whole, (2, 2, rows)),
                **draft_bounds.layout(rows, steps),
                **combs.layout(rows),
                **rules.layout(rows, steps),
            },
            device,
        )
        self._result = Block(
            {
                "drafted": (whole, (rows, nodes)),
                "counts": (whole, (rows,)),
                "picks": (whole, (rows, nodes)),
                "nodes": (whole, (rows,)),
                "ways": (whole, (rows, nodes + 1)),
                "choices": (whole, (self._widest,)),
                "confidence": (real, (rows, nodes)),
                "entropy": (real, (rows, nodes)),
                "first": (whole, (rows,)),
                "bad": (torch.bool, (rows,)),
            },
            device,
        )
        self._token_keys = token_keys(target.info.vocab_size, device)
        self._book = rules.RuleBook(rows, steps, target.info.vocab_size, device)
        # Of the latest pass: what comes after it is captured by itself, as rows with rules have theirs in between.
        self._scores = torch.empty((self._widest, target.tokens), device=device)
        self.hidden_states = target.room_for_states(self._widest)  # of the latest round, until the next is launched
        self._told: list[torch.Tensor] = []
        self._parts = Captured(device)
        target.group.graphs.add(self._parts)
        whole_round, vocab = (self._plan, self._result, self._parts), target.info.vocab_size
        self._drafts = None if draft is None else DraftSteps(draft, whole_round, steps, ends, vocab)
        self._waits = False
        if device.type == "cuda":
            self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """What is asked for from here on belongs to drafting, if the next launch says so."""
        if self.target.device.type == "cuda":
            self._marks[0].record()

    def launch(self, plan: RoundPlan, *, begun: bool = False) -> None:
        """Send a plan and begin, unless it has `begun`."""
        self._wait()  # for a round that nobody wants any more: what it reads must stay until then
        width = self._lay(plan)
        self._book.send_masks(None, None)  # what may fail comes before caches take for told what is in the plan
        moving = self._tell_tables()
        self._plan.send()
        self._mark(1 if begun else 0)  # the next one is set once more when all is drafted
        rows, deepest = self._bucket(plan.decoding), int(plan.depths.max(initial=0))
        warm, wide, ruled = plan.draft_temperature is not None, plan.tree is not None, self._book.ruled
        shape = RoundShape(rows, deepest, warm, wide, width, moving, ruled or bool(len(self._asked)))
        with self.target.group.together("round", "start", shape):
            self.start(shape)
        # What rank 0 does alone, here and in `_judge`, may fail: the others wait for words then, not in a sum.
        self._book.count(self._plan.device)
        self._told.clear()
        if self._drafts is not None:
            self._draft(self._drafts, shape)
        if self._masks_drafts(plan):
            self._result.fetch()
        self._mark(1)
        if shape.width:
            with self.target.group.together("round", "verify", shape):
                logits = self.verify(shape)
            if logits is not None:
                self._judge(plan, shape, logits)

    def start(self, shape: RoundShape) -> None:
        """Take over rank 0's plan. All ranks do."""
        self.target.group.share(self._plan.whole)
        self._parts.run(self._begin, shape.moving, 0)

    def verify(self, shape: RoundShape) -> torch.Tensor | None:
        """Read rank 0's drafts, and choose; or return the logits of all ranks, where rank 0 is to choose by them."""
        if shape.deepest:
            self.target.group.share(self._result.whole)
        self._parts.run(self._verify, shape.width, (shape.rows, shape.wide))
        if shape.together:
            return self.target.joined(self._scores[: shape.width])
        self._parts.run(self._choose, shape.width, shape.wide)
        return None

    def _draft(self, drafts: DraftSteps, shape: RoundShape) -> None:
        drafts.begin(moving=shape.moving)
        for step in range(shape.deepest):
            logits = drafts.read(shape.rows, step)
            if self._book.ruled:
                # The rules, and what they count, are with the target.
                self._result.take(drafts.result)
                there = logits.to(self.target.device)
                own = torch.arange(shape.rows, device=there.device)
                asked = torch.where(self._plan.device["depths"][: shape.rows] > step, own, -1)
                self._rule(there, asked, torch.full_like(own, step), torch.full_like(own, -1), masked=not step)
                if there is not logits:
                    logits.copy_(there)
            drafts.draw(shape.rows, warm=shape.warm, wide=shape.wide)
        if shape.deepest:
            drafts.end(shape.rows, wide=shape.wide)

    def _judge(self, plan: RoundPlan, shape: RoundShape, logits: torch.Tensor) -> None:
        """Choose after each token of the verify pass, by its logits."""
        if self._masks_drafts(plan):
            self._wait()  # the device is at the pass meanwhile
            self._book.send_masks(self._result.host["drafted"], self._result.host["counts"])
        asked = self._plan.device["asked"][: len(self._asked)]
        before = logits.index_select(0, asked) if len(asked) else logits
        if self._book.ruled:
            owners, within, ways = self._verified(shape.width, branches=shape.wide)
            node = self._result.device["drafted"][owners, (within - 1).clamp(min=0)]
            rows = torch.where(self._live(shape.width, branches=shape.wide), owners, -1)
            self._rule(logits, rows, ways, torch.where(ways < within, node, -1), masked=True)
        if logits.shape[1] == self.target.tokens:
            self._parts.run(self._choose, shape.width, shape.wide)
        else:
            self._choose_by(logits, branches=shape.wide)
        if len(asked):
            chosen = self._result.device["choices"].index_select(0, asked)
            self._told.append(_told(before, chosen, int(plan.told.max())))

    def _masks_drafts(self, plan: RoundPlan) -> bool:
        """Whether masks depend on what is drafted."""
        return bool(self._book.masked) and bool(plan.depths.any() or plan.counts.any())

    def _rule(
        self, logits: torch.Tensor, rows: torch.Tensor, ways: torch.Tensor, aside: torch.Tensor, *, masked: bool
    ) -> None:
        """Change logits [N, V] of these rows [N] (-1: none) behind so many [N] drafted tokens by the rows' rules.

        The last of these tokens is not of the chain where `aside` [N] has one (else -1).
        """
        sent, slots = self._plan.device, self._plan.device["masks"][rows]
        masks = torch.where((slots >= 0) & masked, slots + ways * self._book.masked, -1)
        at = RuledPositions(rows, ways - (aside >= 0).long(), aside, masks)
        ruled = RuledRows(**{one: sent[one] for one in RuledRows._fields[:-1]}, drafted=self._result.device["drafted"])
        self.target.ops.apply_rules(logits, at, ruled, self._book.tables)

    def capture(self) -> None:
        """Capture the parts of rounds in all shapes, the largest first. They run on nobody's rows meanwhile."""
        with self.target.group.together("round", "capture"), at_work(self.target.device):
            self._capture()

    def _capture(self) -> None:
        host = self._plan.host
        host["rows"][:], host["lengths"][:] = self.target.cache.nobody, 1
        host["owners"][:], host["offsets"][:] = 0, self.most_nodes + 1
        self._tell_tables()
        self._plan.send()
        nobody = torch.full((1,), -1, device=self.target.device)  # rules are compiled, so that no request waits
        self._rule(torch.zeros_like(self._token_keys)[None].float(), nobody, nobody, nobody, masked=True)
        for moving in (True, False):
            self._parts.capture(self._begin, moving, 0)
        if self._drafts is not None:
            self._drafts.plan.take(self._plan)
        for rows in sorted({self._bucket(n) for n in range(1, self._rows + 1)}, reverse=True):
            for width in sorted({self._width(n + 1, rows) for n in range(self._most(rows))}, reverse=True):
                for branches in (False, True):
                    self._parts.capture(self._verify, width, (rows, branches))
                    self._parts.capture(self._choose, width, branches)
            if self._drafts is not None:
                self._drafts.capture(rows)
        for device in {self.target.device, self.target.device if self._drafts is None else self._drafts.model.device}:
            torch.cuda.synchronize(device)

    def end(self) -> None:
        """All of the round has been asked for: have its result come."""
        self._result.fetch()
        self._mark(2)

    def choose_first(self, logits: torch.Tensor, row: int, told: IntArray) -> None:
        """The first tokens of rows whose prompts have ended, from `row` on, by their `logits` [n, V]; `told` [n]."""
        own = torch.arange(row, row + len(logits), device=logits.device)
        sent, result = self._plan.device, self._result.device
        asks = bool((told >= 0).any())
        before = logits.clone() if asks and self._book.ruled else logits
        if self._book.ruled:
            self._rule(logits, own, torch.zeros_like(own), torch.full_like(own, -1), masked=True)
        keys = sent["keys"][:, 0].index_select(0, own)
        found = self.target.ops.choose(logits, sent["temperatures"].index_select(0, own), keys, self._token_keys)
        result["first"].index_copy_(0, own, found.token.long())
        result["bad"].index_copy_(0, own, ~torch.isfinite(found.entropy))
        if asks:
            self._told.append(_told(before, found.token.long(), int(told.max())))

    def result(self, plan: RoundPlan) -> RoundResult:
        """What has come: the one time that the host waits for the device."""
        self._wait()
        host, count = self._result.host, len(plan.rows)
        owners, offsets = self._plan.host["owners"], self._plan.host["offsets"]
        choices: IntArray = np.zeros((count, self.most_nodes + 1), dtype=np.int64)
        real = offsets <= self.most_nodes
        choices[owners[real], offsets[real]] = host["choices"][real]
        # Rows whose prompt ends draft nothing, and lie outside of what `DraftSteps` writes.
        host["picks"][0 if plan.tree is None else plan.decoding : count] = -1
        names = ("drafted", "counts", "picks", "confidence", "entropy", "first", "bad")
        drafted, counts, picks, confidence, entropy, first, bad = (host[name][:count].copy() for name in names)
        told = self._read_told(plan, owners, offsets)
        sure, spread = confidence.astype(np.float64), entropy.astype(np.float64)
        seconds = None
        if self.target.device.type == "cuda":
            begun, drawn, done = self._marks
            seconds = begun.elapsed_time(drawn) * 1e-3, drawn.elapsed_time(done) * 1e-3
        return RoundResult(drafted, counts, picks, sure, spread, choices, first, bad, told, seconds)

    def _read_told(self, plan: RoundPlan, owners: IntArray, offsets: IntArray) -> FloatArray | None:
        parts = [one.double().numpy() for one in self._told]
        if not parts:
            return None
        whole = np.zeros((len(plan.rows), self.most_nodes + 1, max(part.shape[1] for part in parts)))
        if len(self._asked):
            part = parts.pop(0)
            whole[owners[self._asked], offsets[self._asked], : part.shape[1]] = part
        for part in parts:
            whole[plan.decoding :, 0, : part.shape[1]] = part
        return whole

    def spare(self, chains: IntArray) -> int:
        """How many tokens the verify pass of chains of so many [B] has room for beside them."""
        tokens = int(chains.sum()) + len(chains)
        return self._width(tokens, self._bucket(len(chains))) - tokens

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
        return min(1 << max(rows - 1, 0).bit_length(), self._rows)

    def _most(self, rows: int) -> int:
        """Tokens of the verify pass of the longest chains."""
        return padded(rows * (self._steps + 1), tile_of(rows, self.target.info))

    def _width(self, tokens: int, rows: int) -> int:
        """Tokens of a verify pass of so many: 1, 2, 3 or 4 tiles, 6, 8, 12, 16 and so on, as each is captured."""
        tile = tile_of(rows, self.target.info)
        step = tile << max((-(-tokens // tile) - 1).bit_length() - 2, 0)
        return min(padded(tokens, step), self._most(rows))

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
        draft_bounds.write(host, plan.stop, plan.draft_temperature, count)
        if plan.tree is not None:
            combs.write(host, plan.tree, plan.nodes)
        wide = (np.maximum(plan.nodes, plan.counts) + 1)[:decoding]
        tokens = int(wide.sum())
        host["owners"][:tokens] = np.repeat(np.arange(decoding), wide)
        host["offsets"][:tokens] = np.arange(tokens) - np.repeat(np.cumsum(wide) - wide, wide)
        host["owners"][tokens:], host["offsets"][tokens:] = 0, self.most_nodes + 1
        laid = tiles_of(plan.rows[:decoding], wide, self.target.heads)
        host["tiles"][: len(laid)], host["tiles"][len(laid) :] = laid, 0
        # Tokens of whose choices is told how likely they are.
        self._asked: IntArray = np.flatnonzero(np.repeat(plan.told[:decoding] >= 0, wide))
        host["asked"][: len(self._asked)] = self._asked
        return self._width(tokens, self._bucket(decoding)) if decoding else 0

    def _tell_tables(self) -> bool:
        """Write what has changed in the block tables, and what is to be moved; whether anything is."""
        moving = self.target.cache.write(self._plan.host, 0)
        if self._drafts is not None:
            moving |= self._drafts.model.cache.write(self._plan.host, 1)
        return moving

    def _begin(self, moving: int, _: int) -> None:
        self.target.cache.begin(self._plan.device, 0, moving=bool(moving))
        reset(self._plan.device, self._result.device)

    def _verified(self, width: int, *, branches: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each token of a verify pass [width]: its row, its place in the draft, how many drafted tokens lead to it.

        It is one of the latter; of the newest token, and of padding, both are whatever is there.
        """
        plan, result = self._plan.device, self._result.device
        owners, offsets = plan["owners"][:width], plan["offsets"][:width]
        within = offsets.clamp(max=self.most_nodes if branches else self._steps)
        return owners, within, result["ways"][owners, within].clamp(max=self._steps) if branches else within

    def _verify(self, width: int, of: tuple[int, bool]) -> None:
        """The target reads newest tokens and drafts `of` rows: side nodes see what is before them on chains."""
        rows, branches = of
        plan, result, target = self._plan.device, self._result.device, self.target
        owners, within, ways = self._verified(width, branches=branches)
        live = self._live(width, branches=branches)
        tile, each, most = (
            tile_of(rows, target.info),
            tile_tokens(target.heads),
            self.most_nodes if branches else self._steps,
        )
        tiles = plan["tiles"][: min(width // each, rows * (most // each)) + rows]  # all that they may make
        laid = inputs(target, (plan, result), (owners, within, live), tiles)
        if branches:
            laid = aside(laid, torch.where(live, within - ways, 0))
        captured = None if self.hidden_states is None else self.hidden_states[:width]
        states = torch.split(target.run(replace(laid, tile=tile), captured), tile)
        for kept, part in zip(torch.split(self._scores[:width], tile), states, strict=True):
            kept.copy_(target.logits(part))

    def _live(self, width: int, *, branches: bool) -> torch.Tensor:
        """Which of these tokens there are [width]; others are padding."""
        plan, counts = self._plan.device, self._result.device["nodes" if branches else "counts"]
        return plan["offsets"][:width] <= counts[plan["owners"][:width]]

    def _choose(self, width: int, branches: int) -> None:
        """The target chooses after each of them."""
        self._choose_by(self._scores[:width], branches=bool(branches))

    def _choose_by(self, logits: torch.Tensor, *, branches: bool) -> None:
        plan, result, width = self._plan.device, self._result.device, len(logits)
        owners, _, ways = self._verified(width, branches=branches)
        keys, live = plan["keys"][owners, ways], self._live(width, branches=branches)
        found = self.target.choose(logits, plan["temperatures"][owners], keys, self._token_keys)
        result["choices"][:width] = found.token
        broken = (live & ~torch.isfinite(found.entropy)).long()
        result["bad"] |= torch.zeros_like(plan["rows"]).index_add_(0, owners, broken) > 0


def _told(logits: torch.Tensor, choices: torch.Tensor, most: int) -> torch.Tensor:
    """On the way to the host [N, 1 + 2 most]: logarithms of how likely choices are, and the likeliest; then these."""
    parts = []
    for some, chosen in zip(*(torch.split(part, TILES[0]) for part in (logits, choices)), strict=True):
        shares = some.log_softmax(1)  # a tile at a time: they take as much room
        best = shares.topk(min(most, shares.shape[1]), dim=1)
        parts += [torch.cat((shares.gather(1, chosen.unsqueeze(1)), best.values, best.indices.float()), 1)]
    return torch.cat(parts).to("cpu", non_blocking=True)  # tokens as floats: exact up to 2^24
