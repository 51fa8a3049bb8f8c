"""What the passes of a round ran on, and how long they took: the input of the cost model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.drafters import Kind, kind_of
from adaptspec.rounds import RoundRecord


class DraftWork(NamedTuple):
    """The drafting of one drafter in a round.

    `passes`: active rows of each pass that ran, the first one included for rows that only caught up. A model-free
    drafter runs none; `rows` counts the rows that it drafted for. `catch_up_tokens` were read before the first pass.
    """

    drafter: str
    rows: int
    passes: tuple[int, ...] = ()
    catch_up_tokens: float = 0.0


class RoundWork(NamedTuple):
    """A round as the cost model sees it: `verify_tokens` are packed tokens of the target's pass, prompts excluded.

    `context_tokens`: cached tokens of all rows together. `ragged`: rows verify different numbers of tokens.
    """

    rows: int
    verify_tokens: int
    context_tokens: float = 0.0
    drafts: tuple[DraftWork, ...] = ()
    prefill_tokens: int = 0
    ragged: bool = False


class Timing(NamedTuple):
    """Seconds of a round; `draft` and `verify` are NaN where only the whole round was timed."""

    draft: float
    verify: float
    total: float

    @property
    def has_parts(self) -> bool:
        """Whether drafting and verification were timed apart."""
        return not (math.isnan(self.draft) or math.isnan(self.verify))


def work_of(record: RoundRecord, drafters: Sequence[str], whole_drafts: Collection[str] = ()) -> RoundWork:
    """The work of a recorded round. `drafters` are the names that its rows index.

    For drafters in `whole_drafts` every draft pass of the round covers all of its rows. A record has one sum of tokens
    that were caught up and one of draft passes. Drafters that run a model share them: the tokens by their rows, the
    passes of whole drafts by their depths.
    """
    passes = list(draft_passes(record)) if record.drafting or record.caught_up > 0 else []
    named = [(drafters[number] if number < len(drafters) else "", rows, active) for number, rows, active in passes]
    models = [(rows, len(active)) for name, rows, active in named if kind_of(name) is not Kind.MODEL_FREE]
    model_rows, model_steps = sum(rows for rows, _ in models), sum(steps for _, steps in models)
    drafts = []
    for name, rows, active in named:
        if kind_of(name) is Kind.MODEL_FREE:
            drafts.append(DraftWork(name, rows))
            continue
        counts = tuple(active.tolist())
        if name in whole_drafts:
            counts = (len(record.rows),) * round(record.draft_steps * len(active) / model_steps)
        drafts.append(DraftWork(name, rows, counts, record.caught_up * rows / model_rows))
    return RoundWork(
        len(record.rows),
        record.verify_tokens - record.prefill_tokens,
        float(record.context.sum()),
        tuple(drafts),
        record.prefill_tokens,
    )


def timing_of(record: RoundRecord) -> Timing:
    """The seconds of a recorded round."""
    return Timing(record.draft_seconds, record.verify_seconds, record.total_seconds)


def draft_passes(record: RoundRecord) -> Iterator[tuple[int, int, IntArray]]:
    """Each drafter of a round: its number, its rows, and the active rows (or nodes) of each of its passes.

    A drafter extends the newest token and the nodes that have a child of its own; siblings come from one pass. A row
    counts for every drafter that added nodes to it. At least one pass is reported, for rows that only caught up.
    """
    asked, tree = record.depths > 0, None if record.branches is None else record.branches.tree
    if tree is None:
        for drafter_id in sorted(set(record.drafter[asked].tolist())):
            drafted = record.drafted[(record.drafter == drafter_id) & asked]
            active = np.count_nonzero(drafted[:, None] > np.arange(max(1, drafted.max())), axis=0)
            active[0] = len(drafted)
            yield drafter_id, len(drafted), active
        return
    inside, depths = np.arange(tree.parents.shape[1]) < record.nodes[:, None], tree.depths
    for drafter_id in sorted({*record.drafter[asked].tolist(), *tree.drafters[inside].tolist()}):
        nodes = inside & (tree.drafters == drafter_id)
        rows = int(np.count_nonzero(nodes.any(axis=1) | (asked & (record.drafter == drafter_id))))
        row, position = np.nonzero(nodes)
        first = np.unique(np.stack((row, tree.parents[row, position])), axis=1, return_index=True)[1]
        active = np.bincount(depths[row, position][first] - 1, minlength=1).astype(np.int64)
        active[0] = rows
        yield drafter_id, rows, active


def batch_bucket(rows: int) -> int:
    """The class of a batch size: 0 for 1 row, then 2, 3-4, 5-8, 9-16 ..."""
    return max(0, rows - 1).bit_length()
