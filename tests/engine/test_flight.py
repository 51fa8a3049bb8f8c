"""Rounds that run while the text of the last one is read: the same answers, whenever a request turns out to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.executor import Outcome, Pending
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.scheduler import Batch
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import Completion, Delta, FloatArray, RoundRecord
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.engine.policies import COSTS
from tests.fakes import TableRunner

ROOMY = 400
BOTH = ("draft-model", "ngram")
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(2, 23), min_size=1, max_size=20),
        st.sampled_from([0.0, 0.9]),
        st.lists(st.sampled_from("abcdefghijklmnop"), max_size=2),  # stop strings
        st.lists(st.integers(2, 23), max_size=2),  # tokens that end it
        st.integers(0, 12),  # min_tokens
    ),
    min_size=1,
    max_size=6,
)


class Overlapping(ModelExecutor):
    """Has run the whole round when it is launched: what follows happens while it would still be running."""

    overlaps = True
    broken = 0  # the launch that fails, once

    def launch(self, batch: Batch, decision: Decision) -> Pending:
        self.broken -= 1
        if self.broken == 0:
            raise RuntimeError("out of memory, for once")
        pending = super().launch(batch, decision)
        self._outcome = super().finish(pending)
        return pending

    def finish(self, pending: Pending) -> Outcome:
        return self._outcome._replace(seconds=(1e-3, 1e-3))


def _core(
    tokenizer: PreTrainedTokenizerFast, depths: list[int], executor: type[ModelExecutor], capacity: int
) -> tuple[EngineCore, Notes]:
    notes = Notes()
    drafters: list[Drafter] = [
        DraftModelDrafter(TableRunner(seed=1, blend=0.8), (1,)),
        NgramDrafter(longest=2, shortest=1),
    ]
    shape = Shape(width=2, nodes=16, floor=0.0, beam=True, union=True)
    policy = Branched(BOTH, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)], shape)
    limits = EngineLimits(max_rows=3, prefill_tokens=8)
    target = TableRunner(capacity=capacity)
    core = make_core(
        tokenizer, target, drafters, {"p": (policy, "coupled")}, sinks=[notes], limits=limits, executor=executor
    )
    return core, notes


def _run(core: EngineCore, requests: Sequence[Request], aborted: int) -> tuple[dict[str, Completion], list[Delta]]:
    """The first request is aborted after so many rounds, if it has not ended by then. Rounds that fail are undone."""
    for request in requests:
        core.check(request)
        core.add(request)
    deltas: list[Delta] = []
    rounds = 0
    while not core.idle:
        try:
            deltas += core.step()
        except RuntimeError as error:
            deltas += core.recover(error)
        rounds += 1
        if rounds == aborted:
            deltas += core.abort(requests[0].id)
    return {delta.request_id: delta.completion for delta in deltas if delta.completion is not None}, deltas


@settings(max_examples=40, deadline=None)
@given(
    asked=REQUESTS,
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    capacity=st.sampled_from([60, 90, 120, ROOMY]),
    aborted=st.integers(0, 20),
    broken=st.integers(0, 12),
)
def test_overlapping_rounds_give_the_same_answers(  # noqa: PLR0917 - hypothesis names them
    tokenizer: PreTrainedTokenizerFast,
    asked: list[tuple[list[int], float, list[str], list[int], int]],
    depths: list[int],
    capacity: int,
    aborted: int,
    broken: int,
) -> None:
    """Stop strings, end tokens, caches that are too small, aborts, a round that fails: what a dead request drew is
    dropped, and counted nowhere.
    """
    requests = [
        Request(
            f"r{i}",
            tuple(prompt),
            SamplingParams(
                max_tokens=24,
                temperature=temperature,
                seed=i,
                stop=tuple(dict.fromkeys(stop)),
                stop_token_ids=tuple(ends),
                min_tokens=least,
                logprobs=1,
            ),
            SpeculationParams(provenance=True),
        )
        for i, (prompt, temperature, stop, ends, least) in enumerate(asked)
    ]
    first = replace(requests[0], id="doomed", sampling=SamplingParams(max_tokens=60, temperature=0.5, seed=3))
    core, notes = _core(tokenizer, depths, Overlapping, capacity)
    core.executor.broken = broken  # type: ignore[attr-defined]
    done, deltas = _run(core, [first, *requests], aborted)
    expected, _ = _run(_core(tokenizer, depths, ModelExecutor, capacity)[0], requests, 0)
    for request in requests:
        mine, theirs = done[request.id], expected[request.id]
        if mine.error is not None:  # a request that is alone in a round that fails ends with it
            assert "for once" in mine.error
            assert mine.tokens == theirs.tokens[: len(mine.tokens)]
            continue
        assert (mine.text, mine.tokens, mine.finish) == (theirs.text, theirs.tokens, theirs.finish)
        assert [entry.token for entry in mine.logprobs] == list(mine.tokens)
        own = [delta for delta in deltas if delta.request_id == request.id]
        assert "".join(delta.text for delta in own) == mine.text
        assert sum((delta.tokens for delta in own), ()) == mine.tokens
    assert sum(one.error is not None for one in done.values()) <= (broken > 0)
    emitted = dict.fromkeys(done, 0)
    for record in notes.records:
        assert (record.emitted > 0).all()
        for request_id, count in zip(record.request_ids, record.emitted.tolist(), strict=True):
            emitted[request_id] += count
    for request_id, completion in done.items():
        # The first token, and those after giving way, come from reading a prompt: no decoding row brings them.
        assert emitted[request_id] <= max(len(completion.tokens) - 1, 0)
        if capacity == ROOMY and not broken:
            assert emitted[request_id] == max(len(completion.tokens) - 1, 0)
    assert core.scheduler.idle
    assert core.executor.cache.free_memory == 1.0


class Taught(Dictated):
    """Depths are dictated, and an algorithm that is asked and not heeded learns of them. Holds records to decisions."""

    def __init__(self, depth: int) -> None:
        super().__init__(BOTH, lambda _, size: [depth] * size)
        self.algorithm = Goodput(CostTable(COSTS), 3, 1, GoodputSettings(drafters=BOTH))
        self.decided: dict[int, tuple[BatchSignals, Decision]] = {}

    @property
    def search_depth(self) -> int:
        return self.max_depth

    def start(self, row: int) -> None:
        super().start(row)
        self.algorithm.start(row)

    def decide(self, signals: BatchSignals) -> Decision:
        self.algorithm.choose(signals)
        decision = replace(super().decide(signals), drafter=np.zeros_like(signals.rows))
        self.decided[signals.number] = signals, decision
        return decision

    def learn(self, record: RoundRecord) -> None:
        signals, decision = self.decided.pop(record.decision)
        at = [signals.rows.tolist().index(row) for row in record.rows.tolist()]
        for told, known in ((record.depths, decision.depths), (record.context, signals.context)):
            assert told.tolist() == known[at].tolist()
        self.algorithm.learn(record)


@given(rows=st.sampled_from([1, 3]), depth=st.integers(0, 5), prompts=REQUESTS)
@settings(max_examples=20, deadline=None)
def test_overlapping_rounds_teach_the_same(
    tokenizer: PreTrainedTokenizerFast,
    rows: int,
    depth: int,
    prompts: list[tuple[list[int], float, list[str], list[int], int]],
) -> None:
    """Of the same rounds, what an algorithm knows at the end is the same, though it is told of each one late."""
    requests = [
        Request(f"r{i}", tuple(prompt), SamplingParams(8 + 5 * i, warmth, seed=i, stop=tuple(set(stop))))
        for i, (prompt, warmth, stop, *_) in enumerate(prompts[: 3 if rows == 3 else 6])
    ]
    states: list[dict[str, FloatArray]] = []
    for executor in (ModelExecutor, Overlapping):
        policy = Taught(depth)
        drafters: list[Drafter] = [DraftModelDrafter(TableRunner(seed=1, blend=0.8), (1,)), NgramDrafter()]
        limits = EngineLimits(max_rows=rows, prefill_tokens=64)
        policies: dict[str, tuple[Dictated, str]] = {"p": (policy, "coupled")}
        core = make_core(tokenizer, TableRunner(capacity=ROOMY), drafters, policies, limits=limits, executor=executor)
        run(core, requests)
        states.append(policy.algorithm.learned())
    for name, known in states[0].items():
        # Counts fade with every settlement, which may come a round later.
        np.testing.assert_allclose(states[1][name], known, rtol=0.01, atol=0.01, err_msg=name)
