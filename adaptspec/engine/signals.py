"""What the controller sees of the coming round."""

from __future__ import annotations

import numpy as np

from adaptspec.arrays import EMPTY_INT
from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals
from adaptspec.engine.executor import Executor
from adaptspec.engine.scheduler import Batch


def round_signals(batch: Batch, executor: Executor, controller: Controller) -> BatchSignals:
    """The signals of a batch's decoding rows. Model-free drafters search as deep as the policies ask for."""
    size, num_drafters = len(batch.decoding), len(executor.drafters)
    gaps = executor.cache_gaps(batch)
    lookups = executor.look_up(batch, controller.search_depth, controller.asked)
    # One array, cut in rows: at batch 1 an array costs as much to make as to fill.
    table = np.array(
        [
            [sequence.length for sequence in batch.decoding],
            batch.limits,
            [sequence.emitted for sequence in batch.decoding],
            *gaps,
            *lookups.num_found,
        ],
        dtype=np.int64,
    )
    return BatchSignals(
        rows=batch.rows[:size],
        tasks=EMPTY_INT,
        context=table[0],
        limits=table[1],
        position=table[2],
        cache_gap=table[3 : 3 + num_drafters],
        found=table[3 + num_drafters :],
        prefill_tokens=batch.prefill_tokens,
        stated=lookups.confidence,
    )
