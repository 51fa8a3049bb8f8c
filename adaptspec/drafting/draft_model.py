"""Drafting with a small language model of the same vocabulary.

The draft model's KV cache may be any number of tokens behind the output. The first pass of a draft reads all missing
tokens, so reading a prompt and catching up after a pause are the same operation. Each step is one pass over the nodes
that are expanded; a chain has one such node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.decision import draft_temperatures
from adaptspec.draft_tree import matching_path, path_mask
from adaptspec.drafting.draft_loop import DraftLoop
from adaptspec.drafting.drafter import Draft, DraftJob, Loaded, ModelDrafter
from adaptspec.drafting.tree_builder import ROOT, Candidates, Node, TreeBuilder, TreeGrowth
from adaptspec.errors import ConfigError
from adaptspec.models.async_runner import AsyncRunner
from adaptspec.models.noise import Floats, Stream
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import certainty, entropies, leading, tempered
from adaptspec.progress import report_progress
from adaptspec.rounds import DraftWork

# Tokens that a round usually leaves to read: the newest token and, after full acceptance, the last drafted one.
_USUAL = 2


class DraftModelDrafter(ModelDrafter):
    """Drafts with a `Runner`, one pass per step over the nodes that are expanded."""

    name = "draft-model"
    description = "in the target's tokens"
    non_anticipating = True  # stop rules and EOS are checked after a token that is submitted

    def __init__(self, runner: Runner, eos_token_ids: Collection[int] = (), catch_up_tokens: int = 512) -> None:
        """A draft stops at one of `eos_token_ids`, also in requests that ignore EOS.

        At most about `catch_up_tokens` are read per round, so that a long prompt does not delay the other rows.
        """
        self.runner = runner
        self.eos_token_ids: Collection[int] = frozenset(eos_token_ids)
        self.catch_up_tokens = catch_up_tokens
        self._read: dict[int, ReadNodes] = {}  # by row, from its draft to its commit

    @classmethod
    def make(cls, loaded: Loaded) -> DraftModelDrafter:
        if loaded.draft is None:
            raise ConfigError(f"{cls.name} needs a draft model; pass one with --draft DIR")
        return cls(loaded.draft, loaded.eos_token_ids)

    def cache_gap(self, row: int, length: int) -> int:
        return max(0, length - self.runner.length(row) - _USUAL)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Rows that get no cache memory draft nothing in this round."""
        depths = self._within_context(job)
        first = self._first(job, depths)
        later_passes: list[int] = []  # number of nodes of each pass after the first
        builder = TreeBuilder(len(job.rows), job.tree)
        if len(first.active):
            later_passes = self._draft(replace(job, depths=depths), builder, first)[1:]
        elif len(first.packed.rows):
            self.runner.forward(first.packed)  # no row drafts yet, but prompts are still being read
        passes = (len(first.packed.rows), *later_passes) if len(first.packed.rows) else ()
        work = DraftWork(self.name, int(np.count_nonzero(job.depths)), passes, first.caught_up)
        return Draft(builder.build(), (work,))

    def _draft(self, job: DraftJob, builder: TreeBuilder, first: _FirstPass) -> list[int]:
        """Draft for the rows that are active; returns the number of nodes of each pass."""
        rows, chooser, runner = first.active.tolist(), job.sampling.chooser, self.runner
        # Other drafts need the scores of all tokens on the host.
        in_place = job.shares_noise and not job.keep_distribution and job.draft_temperature is None
        if isinstance(runner, AsyncRunner) and chooser is not None and in_place:
            loop = DraftLoop(runner, chooser, job, builder, first.packed)
            TreeGrowth(builder, loop, job.depths, self.eos_token_ids).run(rows, job.stop)
            loop.take_rest(self.eos_token_ids)
            for row in rows:
                self._record_chain(job, builder, row, loop.num_read(row))
            return loop.passes
        source = _Passes(runner, job, builder, first.packed)
        passes = TreeGrowth(builder, source, job.depths, self.eos_token_ids).run(rows, job.stop)
        self._read.update(source.read_nodes())
        return passes

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`. Cached nodes that match the text are kept, whichever drafter proposed those tokens."""
        read = self._read.pop(row, None)
        if read is not None:
            nodes = read.path(tokens[read.base : valid])
            if nodes and nodes[-1] >= len(nodes):  # not a prefix of the nodes in the cache
                self.runner.keep(row, read.base, nodes)
            valid = min(valid, read.base + len(nodes))
        if self.runner.length(row) > valid:
            self.runner.truncate(row, valid)

    def _record_chain(self, job: DraftJob, builder: TreeBuilder, row: int, count: int) -> None:
        """Record that the model has read the first `count` tokens of a row's main chain."""
        nodes = builder.row(row)
        read = self._read[int(job.rows[row])] = ReadNodes(len(job.tokens[row]))
        for node, number in enumerate(nodes.chain[:count]):
            read.add(node - 1, nodes.tokens[number])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`."""
        self._read.pop(target, None)
        self.runner.copy_prefix(source, target, length)

    def free(self, row: int) -> None:
        """See `ModelDrafter.free`."""
        self._read.pop(row, None)
        self.runner.free(row)

    def _within_context(self, job: DraftJob) -> IntArray:
        """The depths, limited by the draft model's maximum depth and by its context, which may be a shorter one."""
        info = self.runner.info
        limits = [min(info.context - len(tokens), info.deepest or info.context) for tokens in job.tokens]
        if min(limits) >= job.depths.max():
            return job.depths
        return np.clip(job.depths, 0, np.maximum(np.array(limits, dtype=np.int64), 0))

    def _first(self, job: DraftJob, depths: IntArray) -> _FirstPass:
        """The first pass, which reads the tokens that are missing in the cache of each drafting row.

        Rows that read all of them draft.
        """
        budget, vocabulary, runner = self.catch_up_tokens, self.runner.info.vocab_size, self.runner
        reading: list[int] = []
        fed: list[int] = []
        counts: list[int] = []
        complete: list[bool] = []
        for i in np.flatnonzero(depths).tolist():
            row, context = int(job.rows[i]), job.tokens[i]
            missing = context[runner.length(row) :]
            part = missing[: max(budget, _USUAL)]
            # A target with a wider (padded) vocabulary may hold tokens that the draft has no embedding for.
            if max(missing) >= vocabulary or not runner.reserve(row, len(context) + int(depths[i])):
                continue
            budget -= len(part)
            reading.append(i)
            fed += part
            counts.append(len(part))
            complete.append(len(part) == len(missing))
        rows, read, wanted, tokens = (np.array(part, dtype=np.int64) for part in (reading, counts, complete, fed))
        caught_up = sum(count - _USUAL for count in counts if count > _USUAL)
        packed = Packed(job.rows[rows], read, tokens, wanted, prompts=len(rows) if caught_up else 0)
        return _FirstPass(rows if all(complete) else rows[wanted > 0], packed, caught_up)


class _FirstPass(NamedTuple):
    """The first pass of a draft, the rows [b] that draft from its logits, and its number of catch-up tokens."""

    active: IntArray
    packed: Packed
    caught_up: int


class ReadNodes:
    """Drafted tokens in a draft model's cache after the first `base` tokens of a row, parents first."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._children: dict[tuple[int, int], int] = {}  # by parent and token
        self._parents: list[int] = []

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, parent: int, token: int) -> int:
        """Add a node and return its position after `base`. `parent` -1 is the last of the `base` tokens."""
        node = len(self._parents)
        self._children[parent, token] = node
        self._parents.append(parent)
        return node

    def visible(self, count: int) -> BoolArray | None:
        """Attention mask [count, nodes] of the last `count` nodes; None while all nodes are one chain."""
        if self._parents == list(range(-1, len(self) - 1)):
            return None
        return path_mask(self._parents)[-count:]

    def path(self, text: Sequence[int]) -> list[int]:
        """The longest path of nodes that matches `text`, which begins after `base`."""
        return matching_path(self._children, text)


class _Passes:
    """The passes of one draft: reads the nodes of a frontier and proposes candidates after them.

    Under shared noise g the candidates after a node are the tokens with the largest log q + g. They are draws without
    replacement, and a chain takes the first. softmax(log q + g) of a token predicts its acceptance better than q.
    """

    lag = 0

    def __init__(self, runner: Runner, job: DraftJob, builder: TreeBuilder, first: Packed) -> None:
        """`first` is the pass that reads the text before the draft."""
        self.beams = runner.info.takes_trees
        self._runner, self._job, self._builder, self._first = runner, job, builder, first
        self._read: dict[int, ReadNodes] = {}  # by index of the row in the round
        self._position: dict[Node, int] = {}  # in `ReadNodes`

    def read_nodes(self) -> dict[int, ReadNodes]:
        """The drafted tokens that the model has read, by row of its cache."""
        return {int(self._job.rows[row]): read for row, read in self._read.items()}

    def has_room(self, row: int, more: int) -> bool:
        """See `CandidateSource.has_room`. The cache of the main chain stays reserved."""
        base, depth = len(self._job.tokens[row]), int(self._job.depths[row])
        info, nodes = self._runner.info, depth + len(self._read.get(row, ())) + more
        if nodes > (info.max_nodes or nodes):
            return False
        needed = base + nodes
        return needed <= info.context and self._runner.reserve(int(self._job.rows[row]), needed)

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        """See `CandidateSource.candidates`: one pass reads the whole frontier."""
        report_progress()
        job, builder = self._job, self._builder
        if not step:
            self._read = {row: ReadNodes(len(job.tokens[row])) for row, _ in frontier}
        logits = self._runner.forward(self._packed(frontier) if step else self._first).logits
        index = np.array([row for row, _ in frontier], dtype=np.int64)
        offsets = np.full(len(frontier), step, dtype=np.int64)
        scores = job.sampling.process(logits, index, [builder.row(row).path(number) for row, number in frontier])
        entropy, drawn_from = None, scores
        if job.draft_temperature is not None:
            entropy = entropies(scores)
            drawn_from = tempered(scores, draft_temperatures(job.draft_temperature[index], entropy))
        if job.keep_distribution:
            for (row, _), distribution in zip(frontier, job.sampling.probabilities(drawn_from, index), strict=True):
                builder.row(row).distributions.append(distribution)
        return self._drawn(scores, drawn_from, entropy, index, offsets)

    def _drawn(
        self, scores: Floats, drawn_from: Floats, known_entropy: FloatArray | None, index: IntArray, offsets: IntArray
    ) -> list[Candidates]:
        """The candidates of each node; `known_entropy` is that of `scores`, if it was computed."""
        job, width = self._job, max(map(self._builder.width, index.tolist()))
        if width > 1 or (job.shares_noise and job.sampling.sampled[index].any()):
            tokens, confidence = leading(job.sampling.perturbed(drawn_from, index, offsets), width)
            entropy = entropies(scores) if known_entropy is None else known_entropy
        else:
            tokens = job.sampling.choose(drawn_from, index, offsets, Stream.DRAFT)[:, None]
            known = certainty(scores, tokens[:, 0])
            confidence, entropy = known.confidence[:, None], known.entropy
        return [
            (zip(node_tokens, node_confidence, strict=True), node_entropy)
            for node_tokens, node_confidence, node_entropy in zip(
                tokens.tolist(), confidence.tolist(), entropy.tolist(), strict=True
            )
        ]

    def _packed(self, frontier: Sequence[Node]) -> Packed:
        """The pass that reads the frontier, in which nodes of one row are adjacent."""
        counts: dict[int, int] = {}
        tokens: list[int] = []
        for node in frontier:
            row, number = node
            nodes = self._builder.row(row)
            parent = nodes.parents[number]
            parent_position = -1 if parent == ROOT else self._position[Node(row, parent)]
            self._position[node] = self._read[row].add(parent_position, nodes.tokens[number])
            tokens.append(nodes.tokens[number])
            counts[row] = counts.get(row, 0) + 1
        visible = [self._read[row].visible(count) for row, count in counts.items()]
        branching = any(mask is not None for mask in visible)
        wanted = np.array(list(counts.values()), dtype=np.int64)
        fed = np.array(tokens, dtype=np.int64)
        return Packed(self._job.rows[list(counts)], wanted, fed, wanted, visible if branching else None)
