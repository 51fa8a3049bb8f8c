"""A head is given the target's states of committed tokens alone, of each row in the order of its text."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adaptspec.drafting.head_drafter import HeadDrafter
from tests.models.packing import pack


class Notes:
    """Stands for a head: by row, the positions and states that it was given."""

    spec, info = SimpleNamespace(capture=(1, 2)), SimpleNamespace(architecture="notes")

    def __init__(self) -> None:
        self.given: dict[int, list[tuple[int, float]]] = {}
        self.forgotten: list[int] = []

    def on_hidden_states(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int], states: torch.Tensor
    ) -> None:
        for row, start, part in zip(rows, starts, torch.split(states, list(counts)), strict=True):
            self.given.setdefault(row, []).extend(enumerate(part[:, 0].tolist(), start))

    def forget(self, row: int) -> None:
        self.given.pop(row, None)
        self.forgotten.append(row)


@pytest.fixture
def notes() -> Notes:
    return Notes()


def committed(notes: Notes) -> HeadDrafter:
    head: Any = notes
    return HeadDrafter(head)


def numbered(first: int, count: int) -> torch.Tensor:
    """States of which each is its number."""
    return torch.arange(first, first + count).float()[:, None]


def test_states_of_rejected_drafts_are_never_passed_on(notes: Notes) -> None:
    """Of a branching draft those of the accepted path, after the newest token's; of prompts all, and at once."""
    states = committed(notes)
    packed = replace(pack((0, [5] * 5, 5), (1, [5] * 3, 3), (2, [5] * 4, 1)), prompts=1)
    states.observe_pass(packed, [10, 20, 0], numbered(100, 12))
    assert notes.given == {2: [(0, 108.0), (1, 109.0), (2, 110.0), (3, 111.0)]}
    states.observe_commit([(2, []), (0, [1, 3]), (1, [])])
    assert notes.given[0] == [(10, 100.0), (11, 102.0), (12, 104.0)]
    assert notes.given[1] == [(20, 105.0)]
    assert len(notes.given[2]) == 4


def test_a_row_is_committed_once(notes: Notes) -> None:
    """Not again, if the next round fails before its pass; and not at all if its request has ended."""
    states = committed(notes)
    states.observe_pass(pack((0, [5] * 2, 2), (1, [5] * 2, 2)), [3, 3], numbered(0, 4))
    states.leave(1)
    states.observe_commit([(0, [0]), (1, [0])])
    states.observe_commit([(0, [0])])
    assert notes.given == {0: [(3, 0.0), (4, 1.0)]}


def test_prompts_that_are_read_by_themselves_leave_waiting_rows_alone(notes: Notes) -> None:
    """On a GPU they have a pass of their own, between that of a round and its result."""
    states = committed(notes)
    states.observe_pass(pack((0, [5] * 2, 2)), [3], numbered(0, 2))
    states.observe_pass(replace(pack((1, [5] * 3, 1)), prompts=1), [6], numbered(50, 3))
    states.observe_commit([(0, [])])
    assert notes.given == {1: [(6, 50.0), (7, 51.0), (8, 52.0)], 0: [(3, 0.0)]}


def test_states_of_prompts_are_not_kept_for_decoding_rows(notes: Notes) -> None:
    """Prompts have thousands of tokens: their states take no memory once the head has read them."""
    states, memory = committed(notes), np.zeros((6, 1), dtype=np.float32)
    freed = weakref.ref(memory)
    packed = replace(pack((0, [5] * 2, 2), (1, [5] * 4, 1)), prompts=1)
    states.observe_pass(packed, [3, 0], torch.from_numpy(memory))
    del memory
    assert freed() is None
    states.observe_commit([(0, [0])])
    assert notes.given[0] == [(3, 0.0), (4, 0.0)]


def test_an_idle_head_forgets_rows_that_go_on(notes: Notes) -> None:
    """While no policy asks for the head, it is given nothing, nor what came before it was idle."""
    states = committed(notes)
    states.observe_pass(pack((0, [5] * 2, 2)), [3], numbered(0, 2))
    states.activate(active=False)
    states.observe_pass(pack((0, [5] * 2, 2), (1, [5], 1)), [4, 7], numbered(10, 3))
    states.observe_commit([(0, [0]), (1, [])])
    assert (notes.given, notes.forgotten) == ({}, [0, 1])
    states.activate(active=True)
    states.observe_pass(pack((0, [5], 1)), [6], numbered(20, 1))
    states.observe_commit([(0, [])])
    assert notes.given == {0: [(6, 20.0)]}
