"""Drafting on a device: the drafts are those of a CPU, and each step is launched before the one before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.async_runner import AsyncRunner
from adaptspec.models.runner import Forward, Packed
from adaptspec.models.sampling import Choices, RowSampling, SamplingBatch, entropies, leading
from adaptspec.request import SamplingParams
from tests.fakes import TableRunner

VOCAB, EOS = 24, 1


class Event(NamedTuple):
    """What happened to a step: it was launched, or its choices were read."""

    what: str
    step: int


class Device(TableRunner):
    """A runner on a device, with the rows of each pass; and a chooser, whose choices are known when they are read."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.drawn = torch.zeros(1, dtype=torch.int64)
        self.passes: list[list[int]] = []
        self.events: list[Event] = []
        self._started = 0

    def clear(self) -> None:
        self.passes, self.events, self._started = [], [], 0

    def forward(self, packed: Packed) -> Forward:
        self.passes.append(packed.rows.tolist())
        known = packed.tokens.copy()
        known[known < 0] = self.drawn[torch.from_numpy(-1 - known[known < 0])].numpy()
        return super().forward(replace(packed, tokens=known))

    def start(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        index: IntArray,
        paths: Sequence[Sequence[int]],
        candidates: int = 1,
    ) -> Pending:
        scores = batch.process(logits, index, paths)
        offsets = np.array(list(map(len, paths)), dtype=np.int64)
        tokens, confidence = leading(batch.perturbed(scores, index, offsets), candidates)
        step, self._started = self._started, self._started + 1
        self.events.append(Event("launched", step))
        return Pending(self, step, Choices(tokens, confidence, entropies(scores)))


class Pending:
    def __init__(self, device: Device, step: int, choices: Choices) -> None:
        self.first = torch.from_numpy(choices.tokens[:, 0].copy())
        self._device, self._step, self._choices = device, step, choices

    def wait(self) -> Choices:
        self._device.events.append(Event("read", self._step))
        return self._choices


class Remainders:
    """A grammar whose masks depend on the tokens before a position."""

    def mask(self, drafted: Sequence[int]) -> BoolArray:
        allowed: BoolArray = np.arange(VOCAB) % 3 != sum(drafted) % 3
        return allowed


KINDS = {
    "greedy": SamplingParams(60, 0.0),
    "drawn": SamplingParams(60, 0.9),
    "truncated": SamplingParams(60, 0.8, top_p=0.9, logit_bias={5: 2.0}),
    "penalties": SamplingParams(60, 0.8, frequency_penalty=1.5),
    "grammar": SamplingParams(60, 0.8),
}
OF_PATHS = ("penalties", "grammar")


@settings(max_examples=60)
@given(st.data(), st.integers(0, 2**31), st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
def test_drafts_are_those_of_a_cpu_and_steps_do_not_wait_for_the_host(
    data: st.DataObject, seed: int, kinds: list[str]
) -> None:
    """Over several rounds, of rows that lag, stop early, or branch.

    After each round the cache holds what the draft model has read of the text, and no more.
    """
    numbers, size = np.random.default_rng(seed), len(kinds)
    device = Device()
    assert isinstance(device, AsyncRunner)
    on_device, on_cpu = (DraftModelDrafter(runner, (EOS,)) for runner in (device, TableRunner()))
    texts = [numbers.integers(2, VOCAB, numbers.integers(2, 9)).tolist() for _ in kinds]
    members = [
        RowSampling(KINDS[kind], i, text, len(text), (EOS,), Remainders() if kind == "grammar" else None)  # type: ignore[arg-type]
        for i, (kind, text) in enumerate(zip(kinds, texts, strict=True))
    ]
    for _ in range(4):
        depths = np.array(data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), dtype=np.int64)
        branches = data.draw(st.booleans())
        stop = None if branches else StopTable(confidence=numbers.choice([0.0, 0.3, 0.9], (size, 3)))
        branching = TreeTable(np.full(size, 3), np.full(size, 12), np.zeros(size), np.ones((size, 1, 4)))
        batches = (SamplingBatch(members, VOCAB, chooser=device), SamplingBatch(members, VOCAB))
        job = DraftJob(np.arange(size), texts, depths, batches[0], stop=stop, tree=branching if branches else None)
        device.clear()
        draft, expected = on_device.propose(job), on_cpu.propose(replace(job, sampling=batches[1]))
        ruled = any(kind in OF_PATHS for kind in kinds)
        if branches:
            for name in ("offsets", "chain", "token", "parent", "rank"):
                np.testing.assert_array_equal(getattr(draft.tree, name), getattr(expected.tree, name))
        # A step that was under way when its row stopped is drafted, too.
        whole = DraftModelDrafter(TableRunner(), (EOS,)).propose(replace(job, sampling=batches[1], stop=None)).tree
        for row, count in enumerate(draft.tree.chain.tolist()):
            assert expected.tree.chain[row] <= count <= expected.tree.chain[row] + (not ruled)
            own, its = (slice(int(tree.offsets[row]), int(tree.offsets[row]) + count) for tree in (draft.tree, whole))
            np.testing.assert_array_equal(draft.tree.token[own], whole.token[its])
            for name in ("confidence", "entropy"):
                np.testing.assert_allclose(getattr(draft.tree, name)[own], getattr(whole, name)[its], rtol=1e-5)
            has_ended = count > 0 and draft.tree.token[own][-1] == EOS
            if count:
                assert count <= sum(row in rows for rows in device.passes) <= min(count + has_ended, depths[row])
        assert draft.work[0].passes == tuple(map(len, device.passes))
        steps = sum(event.what == "launched" for event in device.events)
        drafting = [kind for kind, count in zip(kinds, draft.tree.chain, strict=True) if count]
        for step in range(1, steps):
            early = device.events.index(Event("launched", step)) < device.events.index(Event("read", step - 1))
            assert early != ruled
        assert steps or not drafting
        for row, (text, count) in enumerate(zip(texts, draft.tree.chain.tolist(), strict=True)):
            start = int(draft.tree.offsets[row])
            accepted = int(numbers.integers(count + 1)) if numbers.random() < 0.7 else count
            valid = len(text) + accepted
            text += [*draft.tree.token[start : start + accepted].tolist(), int(numbers.integers(2, VOCAB))]
            read = list(device.held(row))
            for drafter in (on_device, on_cpu):
                drafter.commit(row, valid, text)
            right = takewhile(lambda pair: pair[0] == pair[1], zip(read, text[:valid], strict=False))
            assert device.held(row) == [token for token, _ in right]
