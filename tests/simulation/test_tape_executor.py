"""What stands in for models: sequences that end where the tape does, passes that take what the cost table says."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.policy import Decision
from adaptspec.engine.executor import Kept
from adaptspec.engine.scheduler import Batch, Chunk
from adaptspec.request import Request
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_executor import TapeExecutor, TapeInputs, TapeSequence
from adaptspec.types import FinishReason
from adaptspec.verification import make_method
from tests.policies.tapes import one_request

COSTS = load_costs("cpu-2-cores")


def sequence(tape: Tape, emitted: int = 1) -> TapeSequence:
    made = TapeInputs(tape, lambda name: 0, emitted=emitted).sequence(Request("only", (0,)), make_method("coupled"))
    made.row = 0
    return made


def executor(tape: Tape) -> TapeExecutor:
    return TapeExecutor(tape, COSTS, ("draft-model",), 1, catch_up_tokens=512, factors=lambda: (1.0, 2.0, 3.0))


def test_a_sequence_emits_what_was_recorded_and_no_more() -> None:
    one = sequence(one_request([1, 1, 0], prompt=8))
    assert (one.length, one.emitted, one.depth_limit) == (9, 1, 2)
    one.take([0, 0], 0.0)
    assert one.read() == 2
    assert one.finish is None
    one.take([0, 0, 0], 0.0)
    assert one.read() == 1
    assert one.finish is FinishReason.LENGTH
    assert one.completion(0.0).prompt_tokens == 8


def test_drafts_are_kept_as_far_as_the_tape_agrees() -> None:
    """A round of one row: its parts take their times, and the cache keeps what was accepted."""
    tape = one_request([1, 1, 0, 1, 1, 1], prompt=8)
    one, models = sequence(tape), executor(tape)
    models.start(one)
    assert models.cache.length(0) == 8
    batch = Batch([one], [5], [])
    assert models.cache_gaps(batch) == [[7]]
    pending = models.launch(batch, Decision(np.array([4]), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)))
    drafted, draft = models.now, pending.draft
    assert (draft.counts.tolist(), draft.steps, draft.caught_up) == ([4], 4, 7)
    assert drafted > 0.0
    verdict = models.finish(pending).verdict
    assert verdict.accepted.tolist() == [2]
    assert models.now - drafted == pytest.approx(2.0 * COSTS.verify_seconds(1, 5, 9.0))
    models.keep([Kept(one, one.length, [0, 1], 0)])
    assert models.cache.length(0) == 11


def test_prompts_are_read_in_chunks_and_yield_the_first_token() -> None:
    tape = one_request([1, 0], prompt=20)
    one, models = sequence(tape, emitted=0), executor(tape)
    models.start(one)
    nothing = np.zeros(0, dtype=np.int64)
    for start, count, last in ((0, 16, False), (16, 4, True)):
        batch = Batch([], [], [Chunk(one, start, count, last)])
        models.cache_gaps(batch)
        pending = models.launch(batch, Decision(nothing, nothing, nothing))
        assert len(models.finish(pending).verdict.accepted) == int(last)
    assert models.cache.length(0) == 20
    assert models.firsts == 1
