"""Drafting with a small language model of the same vocabulary.

Its cache may lag behind the output by any number of tokens: the first step of a draft feeds all that
is missing, so the prompt's prefill and the catch-up after a pause are one and the same thing.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch

from adaptspec.drafting.catch_up import USUAL, FirstPass, judge, judged_counts
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import Stream, certainty, entropies, tempered, top_certainty
from adaptspec.types import IntArray, Missed

_NOBODY: IntArray = np.zeros(0, dtype=np.int64)


class DraftModelDrafter:
    """Runs a `Runner` one token at a time; step j runs only the rows that draft that deep."""

    name = "draft-model"

    def __init__(self, runner: Runner, catch_up_tokens: int = 512) -> None:
        """At most about `catch_up_tokens` are read per round: a long prompt must not hold up the other rows."""
        self.runner = runner
        self._catch_up_tokens = catch_up_tokens

    def lag(self, row: int, length: int) -> int:
        """See `Drafter.lag`."""
        return max(0, length - self.runner.length(row) - USUAL)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. Rows that find no memory draft nothing this round."""
        depths = self._within_context(job)
        batch, deepest = len(job.rows), int(depths.max(initial=0))
        tokens = np.zeros((batch, deepest), dtype=np.int64)
        confidence = np.full((batch, deepest), np.nan)
        entropy = np.full((batch, deepest), np.nan)
        counts = np.zeros(batch, dtype=np.int64)
        kept: list[tuple[IntArray, torch.Tensor]] = []
        raw: list[tuple[IntArray, torch.Tensor]] = []
        first = self._first(job, depths)
        active, packed = first.active, first.packed
        if len(active) == 1 and _plainly(job) and self.runner.device.type == "cpu":
            return self._alone(job, first, int(depths[active[0]]))
        missed: Missed | None = None
        steps = 0
        if not len(active) and len(packed.rows):
            self.runner.forward(packed)  # nobody drafts yet, but prompts are read on
        while len(active):
            offsets = np.full(len(active), steps, dtype=np.int64)
            logits = self.runner.forward(packed)
            if not steps:
                logits, missed = judge(job, first, logits, tokens)
            scores = job.sampling.process(logits, active, offsets, tokens)
            chosen, drawn_from = _draw(job, scores, active, offsets)
            if job.keep_distribution:
                kept.append((active, job.sampling.probabilities(drawn_from, active)))
            if job.keep_scores:
                raw.append((active, scores.clone()))  # the runner may reuse what it returned
            sure, drawn = certainty(scores, chosen), chosen.cpu().numpy()
            tokens[active, steps] = drawn
            confidence[active, steps] = sure.confidence
            entropy[active, steps] = sure.entropy
            counts[active] += 1
            steps += 1
            going = depths[active] > steps
            if job.stop is not None and going.any():
                going &= job.stop(steps, active, sure.confidence, sure.entropy)
            if not going.all():
                active, drawn = active[going], drawn[going]
            ones = np.ones_like(active)
            packed = Packed(job.rows[active], ones, drawn, ones)
        distribution = _padded(kept, batch, deepest) if kept else None
        own = _padded(raw, batch, deepest) if raw else None
        return Draft(tokens, counts, confidence, entropy, distribution, steps, first.caught_up, missed, own)

    def _alone(self, job: DraftJob, first: FirstPass, depth: int) -> Draft:
        """One row, greedy, on a CPU: the same in half the time, where a step is shortest."""
        active, packed, one = first.active, first.packed, np.ones(1, dtype=np.int64)
        row = job.rows[active]
        tokens = np.zeros((len(job.rows), depth), dtype=np.int64)
        confidence, entropy = np.full(tokens.shape, np.nan), np.full(tokens.shape, np.nan)
        missed: Missed | None = None
        steps, i = 0, int(active[0])
        while steps < depth:
            logits = self.runner.forward(packed)
            if not steps:
                logits, missed = judge(job, first, logits, tokens)
            scores = job.sampling.process(logits, _NOBODY, _NOBODY, _NOBODY).numpy()[0]
            drawn = np.array([scores.argmax()])
            sure, spread = top_certainty(scores, int(drawn[0]))
            tokens[i, steps], confidence[i, steps], entropy[i, steps] = drawn[0], sure, spread
            steps += 1
            if steps == depth or (
                job.stop is not None and not job.stop(steps, active, np.array([sure]), np.array([spread]))[0]
            ):
                break
            packed = Packed(row, one, drawn, one)
        counts = np.zeros(len(job.rows), dtype=np.int64)
        counts[i] = steps
        return Draft(tokens, counts, confidence, entropy, None, steps, first.caught_up, missed)

    def commit(self, row: int, valid: int) -> None:
        """See `Drafter.commit`."""
        if self.runner.length(row) > valid:
            self.runner.truncate(row, valid)

    def free(self, row: int) -> None:
        """See `Drafter.free`."""
        self.runner.free(row)

    def _within_context(self, job: DraftJob) -> IntArray:
        """Depths that the draft model's own context has room for: it may be shorter than the target's."""
        room = self.runner.info.context - np.array([len(tokens) for tokens in job.tokens], dtype=np.int64)
        return np.clip(job.depths, 0, np.maximum(room, 0))

    def _first(self, job: DraftJob, depths: IntArray) -> FirstPass:
        """The first pass: what each drafting row's cache has not seen. Rows that read all of it draft."""
        budget, vocabulary = self._catch_up_tokens, self.runner.info.vocab_size
        reading, fed, complete = [], [], []
        for i in np.flatnonzero(depths).tolist():
            row, context = int(job.rows[i]), job.tokens[i]
            missing = context[self.runner.length(row) :]
            part = missing[: max(budget, USUAL)]
            # A target with a wider (padded) vocabulary may hold tokens that the draft has no embedding for.
            if max(missing) >= vocabulary or not self.runner.reserve(row, len(context) + int(depths[i])):
                continue
            budget -= len(part)
            reading.append(i)
            fed.append(part)
            complete.append(len(part) == len(missing))
        who = np.array(reading, dtype=np.int64)
        wanted = np.array(complete, dtype=np.int64)
        counts = np.array([len(part) for part in fed], dtype=np.int64)
        tokens = np.array(list(chain.from_iterable(fed)), dtype=np.int64)
        caught_up = int(np.maximum(counts - USUAL, 0).sum())
        judged = judged_counts(job, who, counts, wanted) if caught_up else np.zeros_like(counts)
        packed = Packed(job.rows[who], counts, tokens, wanted + judged)
        return FirstPass(who, who[wanted > 0], packed, judged, caught_up)


def _plainly(job: DraftJob) -> bool:
    """Whether drafting is taking the most likely token, and nothing is to be kept of the others."""
    return job.sampling.plain_greedy and job.temperature is None and not (job.keep_distribution or job.keep_scores)


def _draw(
    job: DraftJob, scores: torch.Tensor, active: IntArray, offsets: IntArray
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens drawn for the active rows, and the scores they were drawn from."""
    if job.temperature is not None:
        scores = tempered(scores, job.temperature(active, entropies(scores)))
    if job.shares_noise:
        return job.sampling.choose(scores, active, offsets), scores
    return job.sampling.sample(scores, active, offsets, Stream.DRAFT), scores


def _padded(kept: list[tuple[IntArray, torch.Tensor]], batch: int, deepest: int) -> torch.Tensor:
    """[B, D, V] from each step's distributions of the rows that took it; zeros where nothing was drafted."""
    first = kept[0][1]
    whole = first.new_zeros((batch, deepest, first.shape[-1]))
    for step, (active, distribution) in enumerate(kept):
        whole[torch.from_numpy(active), step] = distribution
    return whole
