"""What catching up tells of a draft model: would it have drafted the tokens that came while it did not?

A draft model that was off reads what it missed in one pass. Its scores on the way say what it would have drafted at
each of those positions, given the true text before it: exactly what the target was asked for. Knows one pass; it does
not know why the model was off, or what becomes of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.runner import Packed
from adaptspec.types import IntArray, Missed

# Every judged token costs a row of the output layer; the latest ones say most about the next.
MOST_JUDGED = 64
# After full acceptance the last drafted token was never fed, so two tokens are the usual share of a round.
USUAL = 2
NOBODY: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class FirstPass:
    """The pass that begins a round: what each drafting row's cache has not seen.

    `reading` are the batch positions of the packed rows; those that read all they missed draft (`active`), and `judged`
    [rows of packed] of their latest output tokens have their logits kept.
    """

    reading: IntArray
    active: IntArray
    packed: Packed
    judged: IntArray
    caught_up: int


def judged_counts(job: DraftJob, reading: IntArray, counts: IntArray, complete: IntArray) -> IntArray:
    """How many tokens to judge in each row that reads `counts` tokens; 0 where it is not known what would be drafted.

    Penalties depend on what stood before each position, and a draft with noise of its own would have drawn anything.
    """
    if not (job.shares_noise or job.sampling.plain_greedy):
        return np.zeros_like(counts)
    # The first token that is read has no logits before it.
    known = np.minimum(counts - 1, job.sampling.replayable[reading])
    return np.where((counts > USUAL) & (complete > 0), np.minimum(known, MOST_JUDGED), 0)


def judge(
    job: DraftJob, first: FirstPass, logits: torch.Tensor, drafted: IntArray
) -> tuple[torch.Tensor, Missed | None]:
    """The logits [A, V] that the active rows draft from, and what the others [sum(judged), V] among `logits` say.

    `drafted` [B, D] are the round's drafted tokens, none of which comes before a judged position.
    """
    if not (first.caught_up and first.judged.any()):
        return logits, None
    wanted = first.packed.wanted
    row = np.repeat(first.reading, wanted)
    # Positions from each row's end: -2, -1 are its latest two tokens, 0 is the next, to be drafted.
    ends = np.repeat(np.cumsum(wanted), wanted)
    offsets = np.arange(len(row)) - ends + 1
    past = np.flatnonzero(offsets < 0)
    index, at = row[past], offsets[past]
    scores = job.sampling.process(logits[torch.from_numpy(past).to(logits.device)], index, at, drafted)
    chosen = job.sampling.choose(scores, index, at).cpu().numpy()
    came = np.array([job.tokens[i][k] for i, k in zip(index.tolist(), at.tolist(), strict=True)], dtype=np.int64)
    size = len(job.rows)
    missed = Missed(np.bincount(index, minlength=size), np.bincount(index[chosen == came], minlength=size))
    return logits[torch.from_numpy(np.flatnonzero(offsets == 0)).to(logits.device)], missed


def judge_alone(job: DraftJob, first: FirstPass, logits: torch.Tensor) -> tuple[torch.Tensor, Missed | None]:
    """`judge` on a CPU, where one row drafts and drafting is taking the most likely token: a tenth of the time."""
    count = len(logits) - 1
    if not count:
        return logits, None
    who = first.active.item()
    scores = job.sampling.process(logits[:-1], NOBODY, NOBODY, NOBODY).numpy()
    agreed = np.count_nonzero(scores.argmax(axis=1) == np.array(job.tokens[who][-count:]))
    judged, right = np.zeros((2, len(job.rows)), dtype=np.int64)
    judged[who], right[who] = count, agreed
    return logits[-1:], Missed(judged, right)
