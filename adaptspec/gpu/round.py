"""A draft/verify round on a device: begun by one copy, ended by one, and nothing in between asks the host.

The host lays a round out for the most that it may come to; rows whose stop table cuts their draft leave padding.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from adaptspec.gpu import combs, draft_bounds, rules
from adaptspec.gpu.device_decoder import BUCKETS, DeviceDecoder
from adaptspec.gpu.draft_steps import DraftSteps, inputs, reset
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.ops import RuledPositions, RuledRows, RuleTables
from adaptspec.gpu.plan import tile_tokens
from adaptspec.gpu.plan import tiles as tiles_of
from adaptspec.gpu.round_plan import RoundPlan, RoundResult, RoundShape
from adaptspec.gpu.staging import Block, at_work
from adaptspec.models.noise import token_keys
from adaptspec.types import FloatArray, IntArray

LEAST = 32  # tokens of a verify pass: no slower than the 16 that tensor cores take, and room for branches
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
        self._tables: RuleTables | None = None  # where a row of the round has rules
        # Of the latest pass: what comes after it is captured by itself, as rows with rules have theirs in between.
        self._scores = torch.empty(self._widest * target.tokens, device=device)
        self._told: list[torch.Tensor] = []
        self._parts = Captured(device)
        whole_round, vocab = (self._plan, self._result, self._parts), target.info.vocab_size
        self._drafts = None if draft is None else DraftSteps(draft, whole_round, steps, ends, vocab)
        self._waits = False
        if device.type == "cuda":
            self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]

    def launch(self, plan: RoundPlan) -> None:
        """Send a plan and begin."""
        self._wait()  # for a round that nobody wants any more: what it reads must stay until then
        width = self._lay(plan)
        self._book.send_masks(None, None)  # what may fail comes before caches take for told what is in the plan
        moving = self._tell_tables()
        self._plan.send()
        self._mark(0)
        shape = RoundShape(
            self._bucket(len(plan.rows)),
            int(plan.depths.max(initial=0)),
            plan.warmth is not None,
            plan.tree is not None,
            width if plan.decoding else 0,
            moving,
            self._book.ruled or bool((plan.told[: plan.decoding] >= 0).any()),
        )
        with self.target.group.together("round", "play", shape):
            self.play(shape, plan)

    def play(self, shape: RoundShape, plan: RoundPlan | None = None) -> None:
        """Draft and verify. All ranks do; one of them has the `plan`, and shares it."""
        rows, group = shape.rows, self.target.group
        group.share(self._plan.whole)
        self._parts.run(self._begin, shape.moving, 0)
        self._tables = self._book.tables(self._plan.device) if self._book.ruled else None
        self._told.clear()
        if self._drafts is not None:
            self._draft(self._drafts, shape)
        if shape.deepest:
            group.share(self._result.whole)
        if plan is not None and self._masks_drafts(plan):
            self._result.fetch()
        self._mark(1)
        if shape.width:
            verify = self._verify_branches if shape.wide else self._verify
            self._parts.run(verify, shape.width, self._tiles(shape.width, rows))
            logits = self._logits(shape.width)
            if shape.together:
                logits = self.target.joined(logits)
            if plan is not None:
                self._judge(plan, shape, logits)
            elif not shape.together:
                self._parts.run(self._choose, shape.width, shape.wide)

    def _draft(self, drafts: DraftSteps, shape: RoundShape) -> None:
        drafts.begin(moving=shape.moving)
        for step in range(shape.deepest):
            logits = drafts.read(shape.rows, step)
            if self._tables is not None:
                # The rules, and what they count, are with the target.
                self._result.take(drafts.result)
                there = logits.to(self.target.device)
                own = torch.arange(shape.rows, device=there.device)
                self._rule(there, own, torch.full_like(own, step), None, masked=not step)
                if there is not logits:
                    logits.copy_(there)
            drafts.draw(shape.rows, warm=shape.warm, wide=shape.wide)
        if shape.deepest:
            drafts.end(shape.rows, wide=shape.wide)

    def _judge(self, plan: RoundPlan, shape: RoundShape, logits: torch.Tensor) -> None:
        """Choose after each token of the verify pass, by its logits, of all tokens or this rank's."""
        if self._masks_drafts(plan):
            self._wait()  # the device is at the pass meanwhile
            self._book.send_masks(self._result.host["drafted"], self._result.host["counts"])
        shares = _shares(logits, plan.told[: plan.decoding])
        if self._tables is not None:
            owners, within, ways = self._verified(shape.width, branches=shape.wide)
            node = self._result.device["drafted"][owners, (within - 1).clamp(min=0)]
            self._rule(logits, owners, ways, torch.where(ways < within, node, -1), masked=True)
        if logits.shape[1] == self.target.tokens:
            self._parts.run(self._choose, shape.width, shape.wide)
        else:
            self._choose_by(logits, branches=shape.wide)
        if shares is not None:
            self._told.append(_told(shares, self._result.device["choices"][: shape.width], int(plan.told.max())))

    def _masks_drafts(self, plan: RoundPlan) -> bool:
        """Whether masks depend on what is drafted."""
        return bool(self._book.masked) and bool(plan.depths.any() or plan.counts.any())

    def _rule(
        self, logits: torch.Tensor, rows: torch.Tensor, ways: torch.Tensor, aside: torch.Tensor | None, *, masked: bool
    ) -> None:
        """Change logits [N, V] of these rows [N] behind so many [N] drafted tokens by the rows' rules.

        The last of these tokens is not of the chain where `aside` [N] has one (else -1).
        """
        assert self._tables is not None
        slots = self._plan.device["masks"][rows]
        masks = torch.where((slots >= 0) & masked, slots + ways * self._book.masked, -1)
        own = torch.full_like(ways, -1) if aside is None else aside
        at = RuledPositions(rows, ways - (own >= 0).long(), own, masks)
        sent = {name: self._plan.device[name] for name in RuledRows._fields[:-1]}
        ruled = RuledRows(**sent, drafted=self._result.device["drafted"])
        self.target.ops.apply_rules(logits, at, ruled, self._tables)

    def _logits(self, positions: int) -> torch.Tensor:
        """Where those of the target's pass are kept, [positions, this rank's tokens]."""
        return self._scores[: positions * self.target.tokens].view(positions, self.target.tokens)

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
        for moving in (True, False):
            self._parts.capture(self._begin, moving, 0)
        if self._drafts is not None:
            self._drafts.plan.take(self._plan)
            self._drafts.capture_begin()
        rows = self._rows
        while rows:
            for width in range(self._width(rows), self._room(rows) - 1, -BUCKETS[-1]):
                for branches, verify in enumerate((self._verify, self._verify_branches)):
                    self._parts.capture(verify, width, self._tiles(width, rows))
                    self._parts.capture(self._choose, width, branches)
            if self._drafts is not None:
                self._drafts.capture(rows)
            rows = rows // 2 if rows < self._rows else bucket_rows(rows) // 2
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
        shares = _shares(logits, told)
        if self._tables is not None:
            self._rule(logits, own, torch.zeros_like(own), None, masked=True)
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
        choices: IntArray = np.zeros((count, self.most_nodes + 1), dtype=np.int64)
        real = offsets <= self.most_nodes
        choices[owners[real], offsets[real]] = host["choices"][real]
        if plan.tree is None:
            host["picks"][:count] = -1
        names = ("drafted", "counts", "picks", "confidence", "entropy", "first", "bad")
        drafted, counts, picks, confidence, entropy, first, bad = (host[name][:count].copy() for name in names)
        told = self._read_told(plan, owners[real], offsets[real])
        steps = int(np.where(plan.depths > 0, counts, 0).max(initial=0))
        sure, spread = confidence.astype(np.float64), entropy.astype(np.float64)
        seconds = None
        if self.target.device.type == "cuda":
            begun, drawn, done = self._marks
            seconds = begun.elapsed_time(drawn) * 1e-3, drawn.elapsed_time(done) * 1e-3
        return RoundResult(drafted, counts, picks, sure, spread, choices, first, bad, told, steps, seconds)

    def _read_told(self, plan: RoundPlan, owners: IntArray, offsets: IntArray) -> FloatArray | None:
        parts = [one.double().numpy() for one in self._told]
        if not parts:
            return None
        whole = np.zeros((len(plan.rows), self.most_nodes + 1, max(part.shape[1] for part in parts)))
        if (plan.told[: plan.decoding] >= 0).any():
            part = parts.pop(0)
            whole[owners, offsets, : part.shape[1]] = part[: len(owners)]
        for part in parts:
            whole[plan.decoding :, 0, : part.shape[1]] = part
        return whole

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
        return min(bucket_rows(rows), self._rows)

    def _room(self, rows: int) -> int:
        """Tokens of a verify pass by the number of rows, as long as that is next to free: text is then the same
        whatever their depths.
        """
        return min(self._width(rows), BUCKETS[-1])

    def _width(self, rows: int) -> int:
        """Tokens of a verify pass of the longest chains."""
        return self.target.bucket(max(rows * (self._steps + 1), LEAST))

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
        if plan.tree is not None:
            combs.write(host, plan.tree, plan.nodes)
        wide = (np.maximum(plan.nodes, plan.counts) + 1)[:decoding]
        tokens = int(wide.sum())
        width = max(self.target.bucket(max(tokens, 1)), self._room(self._bucket(count)))
        host["owners"][:tokens] = np.repeat(np.arange(decoding), wide)
        host["offsets"][:tokens] = np.arange(tokens) - np.repeat(np.cumsum(wide) - wide, wide)
        host["owners"][tokens:], host["offsets"][tokens:] = 0, self.most_nodes + 1
        laid = tiles_of(plan.rows[:decoding], wide, self.target.heads)
        host["tiles"][: len(laid)], host["tiles"][len(laid) :] = laid, 0
        return width

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

    def _verify_branches(self, width: int, tiles: int) -> None:
        """The same of drafts that branch: a side node sees what is before it on its chain, and itself."""
        self._verify(width, tiles, branches=True)

    def _verify(self, width: int, tiles: int, *, branches: bool = False) -> None:
        """The target reads each row's newest token and drafts, `width` tokens in `tiles`."""
        plan, result, target = self._plan.device, self._result.device, self.target
        owners, within, ways = self._verified(width, branches=branches)
        node = (within - 1).clamp(min=0)
        tokens = torch.where(within == 0, plan["newest"][owners, 1], result["drafted"][owners, node])
        live, places = self._live(width, branches=branches), plan["lengths"][owners] - 1 + within
        laid = inputs(target, tokens, (plan["rows"][owners], places, live), plan["tiles"][:tiles])
        if branches:
            laid = combs.aside(laid, torch.where(live, within - ways, 0))
        self._logits(width).copy_(target.logits(target.run(laid)))

    def _live(self, width: int, *, branches: bool) -> torch.Tensor:
        """Which of these tokens there are [width]; others are padding."""
        plan, counts = self._plan.device, self._result.device["nodes" if branches else "counts"]
        return plan["offsets"][:width] <= counts[plan["owners"][:width]]

    def _choose(self, width: int, branches: int) -> None:
        """The target chooses after each of them."""
        self._choose_by(self._logits(width), branches=bool(branches))

    def _choose_by(self, logits: torch.Tensor, *, branches: bool) -> None:
        plan, result, width = self._plan.device, self._result.device, len(logits)
        owners, _, ways = self._verified(width, branches=branches)
        keys, live = plan["keys"][owners, ways], self._live(width, branches=branches)
        found = self.target.choose(logits, plan["temperatures"][owners], keys, self._token_keys)
        result["choices"][:width] = found.token
        broken = (live & ~torch.isfinite(found.entropy)).long()
        result["bad"] |= torch.zeros_like(plan["rows"]).index_add_(0, owners, broken) > 0


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
