"""Heads compute what `speculators` computes, however their texts come, are cut back and branch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.models.heads import hearing
from tests.conftest import MakeModel
from tests.models.heads.golden import Text, head_of, names_of
from tests.models.packing import TOLERANCE, pack
from tests.models.test_branches import path, sight

NAMES = names_of("eagle3", "peagle", "mtp", "dflash", "dspark")
KINDS = (
    "eagle3",
    "eagle3.1",
    "eagle3-window",
    "peagle",
    "mtp",
    "dflash",
    "dflash-window",
    "dspark-gated",
    "dspark-rnn",
)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_library_that_saved_it(make_model: MakeModel, tmp_path: Path, name: str) -> None:
    """At each place, one step with the target's state and two with the head's own."""
    for place in (0, 3, 11, 15):
        text = Text(head_of(make_model, name, tmp_path), name)
        text.hear(place + 1)
        for step in range(min(3, len(text.tokens) - place - 2)):
            found = text.own(text.read(place + 2 + step))
            torch.testing.assert_close(found, text.expected[step, place], **TOLERANCE)


@SLOW
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from(KINDS),
)
def test_what_was_drafted_leaves_nothing_behind(
    make_model: MakeModel, tmp_path: Path, rounds: list[tuple[int, int, int]], name: str
) -> None:
    """Rounds in which the head drafts, the target reads the draft, and keeps a part of it."""
    runner = head_of(make_model, name, tmp_path)
    text = Text(runner, name)
    for read, drafted, kept in rounds:
        if text.heard + read + drafted + 2 > len(text.states):
            break
        text.hear(text.heard + read)
        newest = text.heard
        for j in range(drafted):
            text.read(newest + 1 + j)
        text.hear(newest + 1 + drafted)
        text.heard = newest + 1 + min(kept, drafted)
        runner.truncated(0, text.heard)
        assert runner.length(0) <= newest + 1
    found = text.own(text.read(text.heard + 1))
    torch.testing.assert_close(found, text.expected[0, text.heard - 1], **TOLERANCE)


@SLOW
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=5),
    st.sampled_from(KINDS),
)
def test_branches_are_chains_of_their_own(make_model: MakeModel, tmp_path: Path, shape: list[int], name: str) -> None:
    """Each node of a tree has the logits that it would have as the end of a chain."""
    parents = [min(parent, place - 1) for place, parent in enumerate(shape)]
    runner = head_of(make_model, name, tmp_path)
    text = Text(runner, name)
    nodes = [30 + place for place in range(len(parents))]
    text.hear(6)
    text.read(7)
    assert runner.reserve(0, 20)
    found = []
    for place, token in enumerate(nodes):
        seen = sight(parents[: place + 1])[-1:, 1:]
        found.append(runner.forward(pack((0, [token], 1), seen=[seen]))[0])
    for place in range(len(nodes)):
        own = head_of(make_model, name, tmp_path)
        chain = Text(own, name)
        chain.tokens[7:] = [nodes[i] for i in path(parents, place)]
        chain.hear(6)
        for upto in range(7, len(chain.tokens) + 1):
            logits = chain.read(upto)
        torch.testing.assert_close(found[place], logits, **TOLERANCE)


@pytest.mark.parametrize("name", KINDS)
def test_a_row_that_rested_drafts_as_if_its_text_began_later(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What waits is bounded, the head runs for nobody who does not ask, and has given back its memory. Of drafts of
    others that were rejected nothing is held."""
    monkeypatch.setattr(hearing, "MOST_UNREAD", 8)
    runner = head_of(make_model, name, tmp_path)
    monkeypatch.setattr(runner, "forward", lambda packed: 1 / 0)
    text = Text(runner, name)
    for upto in range(1, 18):
        text.hear(upto)
        runner.heard(pack((0, [3] * 7, 0)), [upto], text.states[:7])
        runner.truncated(0, upto)
        assert runner.unread <= 8 + 1
        held = sum(part.untyped_storage().nbytes() for part in runner._rows[0].parts)
        assert runner.unread_bytes == held == runner.unread * len(text.states[0]) * 4
    monkeypatch.undo()
    begin = runner.length(0)
    assert runner.free_memory == 1.0
    assert 17 - 9 <= begin < 17
    late = Text(head_of(make_model, name, tmp_path), name)
    late.tokens, late.states = late.tokens[begin:], late.states[begin:]
    late.hear(17 - begin)
    for upto in (18, 19):
        torch.testing.assert_close(text.read(upto), late.read(upto - begin), rtol=0, atol=0)
    assert runner.length(0) == 19
    runner.freed(0)
    assert runner.unread == 0
    assert runner.length(0) == 0
    assert runner.free_memory == 1.0


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash"])
@pytest.mark.parametrize("deaf", [True, False], ids=["was not asked for", "failed"])
def test_a_row_whose_states_are_gone_comes_back(make_model: MakeModel, tmp_path: Path, name: str, deaf: bool) -> None:
    """Where a drafter fails it has its rows freed, and a head that no policy asks for is told no states. Such a row
    drafts no more until the target has read on, and then as if its text began there. Others go on."""
    runner = head_of(make_model, name, tmp_path)
    texts = [Text(runner, name, row) for row in range(2)]
    for text in texts:
        text.hear(5)
    runner.listens = not deaf
    runner.free(0)
    if deaf:
        texts[0].hear(6)
        assert not runner.reserve(0, 8)
    assert runner.length(0) == 0
    runner.listens = True
    begin = texts[0].heard
    for text in texts:
        text.hear(8)
    late = Text(head_of(make_model, name, tmp_path), name)
    late.tokens, late.states = late.tokens[begin:], late.states[begin:]
    late.hear(8 - begin)
    torch.testing.assert_close(texts[0].read(9), late.read(9 - begin), rtol=0, atol=0)
    torch.testing.assert_close(texts[1].own(texts[1].read(9)), texts[1].expected[0, 7], **TOLERANCE)
    runner.freed(0)
    again = Text(runner, name)
    again.hear(5)
    torch.testing.assert_close(again.own(again.read(6)), again.expected[0, 4], **TOLERANCE)


def test_of_a_long_prompt_the_end_is_kept(make_model: MakeModel, tmp_path: Path) -> None:
    """In whatever chunks it is read: the states of all of it would take a share of the memory that nothing counts."""
    runner = head_of(make_model, "eagle3", tmp_path)
    width = Text(runner, "eagle3").states.shape[1]
    for start, count in ((0, 1000), (1000, 300)):
        runner.heard(pack((0, [3] * count, 0)), [start], torch.zeros(count, width))
        assert runner.unread == hearing.MOST_UNREAD
        assert runner.unread_bytes == hearing.MOST_UNREAD * width * 4
        assert runner.length(0) == start + count - hearing.MOST_UNREAD


def test_rows_are_read_together(make_model: MakeModel, tmp_path: Path) -> None:
    """Several rows of one pass, each at its own place, one of which only reads on."""
    runner = head_of(make_model, "eagle3", tmp_path)
    texts = [Text(runner, "eagle3", row) for row in range(3)]
    for text, heard in zip(texts, (3, 9, 14), strict=True):
        text.hear(heard)
        assert runner.reserve(text.row, 20)
    parts = [(text.row, text.tokens[: text.heard + 1], int(text.row != 1)) for text in texts]
    logits = runner.forward(pack(*parts))
    assert len(logits) == 2
    for text, found in zip((texts[0], texts[2]), logits, strict=True):
        torch.testing.assert_close(found, text.expected[0, text.heard - 1], **TOLERANCE)
    assert np.array_equal([runner.length(row) for row in range(3)], [4, 10, 15])
