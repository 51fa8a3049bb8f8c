"""Drafting with a small language model of the same vocabulary.

Its cache may be any number of tokens behind the output: the first step of a draft feeds all that
is missing, so the prompt's prefill and the catch-up after a pause are one and the same thing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.decision import draft_temperatures
from adaptspec.drafting.drafter import DraftJob, Loaded
from adaptspec.drafting.tree_growth import FedNodes, ModelTrees
from adaptspec.errors import ConfigError
from adaptspec.models.draft import Draft
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.noise import Floats, Stream
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import Certainty, certainty, entropies, leading, tempered
from adaptspec.progress import report_progress
from adaptspec.rounds import DraftWork

# After full acceptance the last drafted token was never fed, so two tokens are the usual share of a round.
_USUAL = 2


class DraftModelDrafter:
    """Runs a `Runner` one token at a time; step j runs only the rows that draft that deep."""

    name = "draft-model"
    way = "in the target's own tokens"
    non_anticipating = True  # rules and ends of texts are looked at behind a token that stays

    def __init__(self, runner: Runner, ends: Collection[int] = (), catch_up_tokens: int = 512) -> None:
        """A draft stops at one of the tokens `ends`, which end a text; requests that go on draft less there.

        At most about `catch_up_tokens` are read per round: a long prompt must not hold up the other rows.
        """
        self.runner = runner
        self.head = runner if isinstance(runner, HeadRunner) else None
        if self.head is not None:
            layers = ", ".join(map(str, self.head.spec.capture))
            self.way = (
                f"in the target's own tokens ({runner.info.architecture}, from its states before layers {layers})"
            )
        self.ends: Collection[int] = frozenset(ends)
        self.catch_up_tokens = catch_up_tokens
        self._fed: dict[int, FedNodes] = {}  # by row, from its draft to its commit

    @classmethod
    def make(cls, loaded: Loaded) -> DraftModelDrafter:
        if loaded.draft is None:
            raise ConfigError(f"{cls.name} needs a draft model: give one (--draft DIR)")
        return cls(loaded.draft, loaded.ends)

    def catch_up(self, job: DraftJob) -> tuple[IntArray, int]:
        """See `ModelDrafter.catch_up`."""
        depths = self._within_context(job)
        active, packed, caught_up = self._first(job, depths, kept=_USUAL)
        if caught_up:
            reading = packed.counts > 0
            counts = packed.counts[reading]
            nothing = np.zeros_like(counts)
            self.runner.forward(Packed(packed.rows[reading], counts, packed.tokens, nothing, prompts=len(counts)))
        return np.where(np.isin(np.arange(len(depths)), active), depths, 0), caught_up

    def cache_gap(self, row: int, length: int) -> int:
        return max(0, length - self.runner.length(row) - _USUAL)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Rows that find no memory draft nothing this round."""
        depths = self._within_context(job)
        first = self._first(job, depths)
        active, packed = first.active, first.packed
        if job.tree is not None and len(active) and (job.tree.width[active] > 1).any():
            growth = ModelTrees(self.runner, self.ends, job, active, depths=depths, first=packed)
            draft = growth.grow(len(job.rows))
            self._fed.update(growth.fed())
            return replace(draft, work=self._work(job, first, growth.fronts[1:]))
        draft = Draft.empty(len(job.rows), int(depths.max(initial=0)))
        room = *draft.tokens.shape, job.sampling.vocab_size
        distribution = np.zeros(room, dtype=np.float32) if job.keep_distribution else None
        steps, stop = 0, None if job.stop is None else job.stop.begin(active)
        further: list[int] = []  # rows of the passes after the first
        if not len(active) and len(packed.rows):
            self.runner.forward(packed)  # nobody drafts yet, but prompts are read on
        while len(active):
            report_progress()
            offsets = np.full(len(active), steps, dtype=np.int64)
            paths = draft.tokens[active, :steps].tolist()
            scores = job.sampling.process(self.runner.forward(packed).logits, active, paths)
            drawn, sure, drawn_from = _draw(job, scores, active, offsets)
            if distribution is not None:
                distribution[active, steps] = job.sampling.probabilities(drawn_from, active)
            draft.tokens[active, steps] = drawn
            draft.confidence[active, steps] = sure.confidence
            draft.entropy[active, steps] = sure.entropy
            draft.counts[active] += 1
            steps += 1
            going = depths[active] > steps
            if self.ends:
                going &= np.array([token not in self.ends for token in drawn.tolist()])
            if stop is not None and going.any():
                going &= stop(steps, active, sure.confidence, sure.entropy)
            active, drawn = active[going], drawn[going]
            further += [len(active)] if len(active) else []
            ones = np.ones_like(active)
            packed = Packed(job.rows[active], ones, drawn, ones)
        for i in first.active.tolist():
            self.note(int(job.rows[i]), len(job.tokens[i]), draft.tokens[i, : draft.counts[i]].tolist())
        return replace(draft, distribution=distribution, work=self._work(job, first, further))

    def _work(self, job: DraftJob, first: _FirstPass, further: Sequence[int]) -> tuple[DraftWork, ...]:
        """What drafting ran: the first pass, and the rows or nodes of the `further` ones."""
        passes = (len(first.packed.rows), *further) if len(first.packed.rows) else ()
        return (DraftWork(self.name, int(np.count_nonzero(job.depths)), passes, first.caught_up),)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`. Of what was drafted for it stays what the text went on with, whoever proposed that."""
        fed = self._fed.pop(row, None)
        if fed is not None:
            places = fed.kept(tokens[fed.base : valid])
            if places and places[-1] >= len(places):
                self.runner.keep(row, fed.base, places)
            valid = min(valid, fed.base + len(places))
        if self.runner.length(row) > valid:
            self.runner.truncate(row, valid)

    def note(self, row: int, base: int, drawn: list[int]) -> None:
        """Remember what a row's chain has fed behind its `base` tokens: all of it but the last token."""
        self._fed[row] = FedNodes(base, drawn[:-1])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`."""
        self._fed.pop(target, None)
        self.runner.copy_prefix(source, target, length)

    def free(self, row: int) -> None:
        self._fed.pop(row, None)
        self.runner.free(row)

    def _within_context(self, job: DraftJob) -> IntArray:
        """Depths that the draft model goes to, and its context has room for: it may be shorter than the target's."""
        info = self.runner.info
        rooms = [min(info.context - len(tokens), info.deepest or info.context) for tokens in job.tokens]
        if min(rooms) >= job.depths.max():
            return job.depths
        return np.clip(job.depths, 0, np.maximum(np.array(rooms, dtype=np.int64), 0))

    def _first(self, job: DraftJob, depths: IntArray, kept: int = 0) -> _FirstPass:
        """The first pass: what each drafting row's cache has not seen, but for `kept` of the usual tokens. Rows that
        read all of it draft.
        """
        budget, vocabulary, runner = self.catch_up_tokens, self.runner.info.vocab_size, self.runner
        reading: list[int] = []
        fed: list[int] = []
        counts: list[int] = []
        complete: list[bool] = []
        for i in np.flatnonzero(depths).tolist():
            row, context = int(job.rows[i]), job.tokens[i]
            missing = context[runner.length(row) :]
            due = len(missing) - kept
            part = missing[: min(max(due, 0), max(budget, _USUAL - kept))]
            # A target with a wider (padded) vocabulary may hold tokens that the draft has no embedding for.
            if max(missing) >= vocabulary or not runner.reserve(row, len(context) + int(depths[i])):
                continue
            budget -= len(part)
            reading.append(i)
            fed += part
            counts.append(len(part))
            complete.append(len(part) >= due)
        who, read, wanted, tokens = (np.array(part, dtype=np.int64) for part in (reading, counts, complete, fed))
        usual = _USUAL - kept
        caught_up = sum(count - usual for count in counts if count > usual)
        packed = Packed(job.rows[who], read, tokens, wanted, prompts=len(who) if caught_up else 0)
        return _FirstPass(who if all(complete) else who[wanted > 0], packed, caught_up)


class _FirstPass(NamedTuple):
    """The pass that begins a round, the rows [b] that draft from its logits, and how many tokens catch up in it."""

    active: IntArray
    packed: Packed
    caught_up: int


def _draw(job: DraftJob, scores: Floats, active: IntArray, offsets: IntArray) -> tuple[IntArray, Certainty, Floats]:
    """The tokens drawn for the active rows, how sure of them it was, and the scores they were drawn from.

    Of what was drawn with the target's noise that is known, too: softmax(log q + g) foretells agreement better than q.
    """
    drawn_from, spread = scores, None
    if job.draft_temperature is not None:
        spread = entropies(scores)
        drawn_from = tempered(scores, draft_temperatures(job.draft_temperature[active], spread))
    if job.shares_noise and job.sampling.sampled[active].any():
        tokens, confidence = leading(job.sampling.perturbed(drawn_from, active, offsets), 1)
        spread = entropies(scores) if spread is None else spread
        return tokens[:, 0], Certainty(confidence[:, 0], spread), drawn_from
    chosen = job.sampling.choose(drawn_from, active, offsets, Stream.DRAFT)
    return chosen, certainty(scores, chosen), drawn_from
