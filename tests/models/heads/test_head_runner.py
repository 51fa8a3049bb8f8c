"""Heads compute what `speculators` computes, however the states of a text come, and however drafts branch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.models.heads.head_checkpoint import PLAIN_HEADS, HeadMakers
from adaptspec.models.heads.head_runner import ABSENT, MAX_BUFFERED
from tests.conftest import MakeModel
from tests.exactness.worlds import REFERENCE_HEADS
from tests.models.heads.golden import VOCAB, Text, drafted, golden_target, head_of, names_of
from tests.models.packing import TOLERANCE, pack
from tests.models.test_branches import path, sight

NAMES = names_of("eagle3", "mtp", "dflash")
KINDS = ("eagle3", "eagle3.1", "eagle3-window", "mtp", "dflash", "dflash-window")
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMS: dict[str, tuple[str, dict[str, int], dict[str, float]]] = {
    "float32": ("float32", {}, TOLERANCE),
    "paged": ("float32", {"block_size": 3}, TOLERANCE),
    "float16": ("float16", {}, {"atol": 5e-3, "rtol": 5e-3}),
    "bfloat16": ("bfloat16", {}, {"atol": 0.15, "rtol": 0.05}),
    "paged bfloat16": ("bfloat16", {"block_size": 3}, {"atol": 0.15, "rtol": 0.05}),
    "gpu": ("float32", {"block_size": 3}, TOLERANCE),
}


def makers_of(form: str) -> HeadMakers:
    """The code for GPUs with operators of torch, or that of other devices."""
    return REFERENCE_HEADS if form == "gpu" else PLAIN_HEADS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_library_that_saved_it(
    make_model: MakeModel, tmp_path: Path, name: str, form: str
) -> None:
    """At each place, one step with the target's state and two with the head's own."""
    dtype, limits, tolerance = FORMS[form]
    target = golden_target(make_model, dtype)
    for place in (0, 3, 11, 15):
        text = Text(head_of(make_model, name, tmp_path, target, makers_of(form), **limits), name)
        text.pass_states(place + 1)
        for step in range(min(3, len(text.tokens) - place - 2)):
            found = text.own(text.draft(place + 2 + step))
            torch.testing.assert_close(found, text.expected[step, place], **tolerance)


@SLOW
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from(KINDS),
)
def test_what_was_drafted_leaves_nothing_behind(
    make_model: MakeModel, tmp_path: Path, rounds: list[tuple[int, int, int]], name: str
) -> None:
    """Rounds in which the head drafts, and a part of the draft is accepted."""
    runner = head_of(make_model, name, tmp_path)
    text = Text(runner, name)
    for read, steps, accepted in rounds:
        if text.passed + read + steps + 2 > len(text.states):
            break
        text.pass_states(text.passed + read)
        newest = text.passed
        for step in range(steps):
            text.draft(newest + 1 + step)
        text.pass_states(newest + 1 + min(accepted, steps))
        assert runner.length(0) <= newest + 1
    found = text.own(text.draft(text.passed + 1))
    torch.testing.assert_close(found, text.expected[0, text.passed - 1], **TOLERANCE)


@SLOW
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=5),
    st.sampled_from(KINDS),
    st.sampled_from(["float32", "paged", "gpu"]),
)
def test_branches_are_chains_of_their_own(
    make_model: MakeModel, tmp_path: Path, shape: list[int], name: str, form: str
) -> None:
    """Each node of a tree has the logits that it would have as the end of a chain."""
    limits, makers = FORMS[form][1], makers_of(form)
    parents = [min(parent, place - 1) for place, parent in enumerate(shape)]
    runner = head_of(make_model, name, tmp_path, makers=makers, **limits)
    text = Text(runner, name)
    nodes = [30 + place for place in range(len(parents))]
    text.pass_states(6)
    text.draft(7)
    assert runner.reserve(0, 20)
    found = []
    for place, token in enumerate(nodes):
        seen = sight(parents[: place + 1])[-1:, 1:]
        found.append(runner.forward(pack((0, [token], 1), seen=[seen])).logits[0])
    for place in range(len(nodes)):
        chain = Text(head_of(make_model, name, tmp_path), name)
        chain.tokens[7:] = [nodes[i] for i in path(parents, place)]
        chain.pass_states(6)
        for upto in range(7, len(chain.tokens) + 1):
            logits = chain.draft(upto)
        torch.testing.assert_close(found[place], logits, **TOLERANCE)


@pytest.mark.parametrize("name", ["eagle3-vocabulary", "dflash"])
def test_a_vocabulary_of_its_own_is_the_targets_by_name(make_model: MakeModel, tmp_path: Path, name: str) -> None:
    """`d2t` holds differences of ids. Tokens that the head lacks have a finite score: 0 times -inf is NaN in an
    entropy."""
    text = Text(head_of(make_model, name, tmp_path), name)
    text.pass_states(4)
    logits = text.draft(5)
    assert logits.shape == (VOCAB,)
    assert text.runner.spec.vocabulary is not None
    absent = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, text.runner.spec.vocabulary, False)
    assert (logits[absent] == ABSENT).all()
    shares = logits.log_softmax(0)
    assert torch.isfinite((shares.exp() * shares).sum())
    torch.testing.assert_close(logits[~absent], text.expected[0, 3], **TOLERANCE)


@pytest.mark.parametrize("name", KINDS)
def test_a_row_that_was_idle_drafts_as_if_its_text_began_later(
    make_model: MakeModel, tmp_path: Path, name: str
) -> None:
    """At most 256 of its states are buffered, of which the latest stay, and the head's cache holds nothing of it."""
    runner, late = (head_of(make_model, name, tmp_path, context=256) for _ in range(2))
    states = torch.randn(300, Text(runner, name).states.shape[1])
    for start in range(0, 300, 3):
        wide = torch.cat((states[start : start + 3], states[:50]))  # of one pass, most of it of other rows
        runner.on_hidden_states([0], [start], [3], wide[:3])
        assert start + 3 - runner.length(0) <= MAX_BUFFERED  # its text begins with the first of them
    assert runner.free_memory == 1.0
    begin = runner.length(0)
    assert 300 - MAX_BUFFERED <= begin < 300 - MAX_BUFFERED // 2
    tokens = torch.randint(4, 250, (302,)).tolist()
    late.on_hidden_states([0], [0], [300 - begin], states[begin:])
    for upto in (301, 302):
        found = drafted(runner, tokens[:upto])
        torch.testing.assert_close(found, drafted(late, tokens[begin:upto]), rtol=0, atol=0)
    assert runner.length(0) == 302
    runner.free(0)
    assert (runner.length(0), runner.free_memory) == (0, 1.0)


def test_buffered_states_are_copies(make_model: MakeModel, tmp_path: Path) -> None:
    """A slice would keep the memory of the whole pass, with the states of rejected drafts and of other prompts."""
    runner = head_of(make_model, "eagle3", tmp_path)
    text = Text(runner, "eagle3")
    states = torch.cat((text.states[:5], text.states))
    runner.on_hidden_states([0], [0], [5], states[:5])
    states.zero_()
    torch.testing.assert_close(text.own(text.draft(6)), text.expected[0, 4], **TOLERANCE)


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash"])
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "failed"])
def test_a_row_without_states_comes_back(make_model: MakeModel, tmp_path: Path, name: str, idle: bool) -> None:
    """A drafter that fails frees its rows, and no states are passed while no policy asks for the head. Such a row
    drafts again when the target has read on, as if its text began there. Other rows go on."""
    runner = head_of(make_model, name, tmp_path)
    texts = [Text(runner, name, row) for row in range(2)]
    for text in texts:
        text.pass_states(5)
    if idle:
        runner.forget(0)
        texts[0].passed = 6
        assert not runner.reserve(0, 8)
    else:
        runner.free(0)
    assert runner.length(0) == 0
    begin = texts[0].passed
    for text in texts:
        text.pass_states(8)
    late = Text(head_of(make_model, name, tmp_path), name)
    late.tokens, late.states = late.tokens[begin:], late.states[begin:]
    late.pass_states(8 - begin)
    torch.testing.assert_close(texts[0].draft(9), late.draft(9 - begin), rtol=0, atol=0)
    torch.testing.assert_close(texts[1].own(texts[1].draft(9)), texts[1].expected[0, 7], **TOLERANCE)
    runner.free(0)
    again = Text(runner, name)
    again.pass_states(5)
    torch.testing.assert_close(again.own(again.draft(6)), again.expected[0, 4], **TOLERANCE)


def test_of_a_long_prompt_the_end_is_kept(make_model: MakeModel, tmp_path: Path) -> None:
    """In whatever chunks it is read: the states of all of it would take a share of the memory that nothing counts."""
    runner = head_of(make_model, "eagle3", tmp_path)
    width = Text(runner, "eagle3").states.shape[1]
    for start, count in ((0, 1000), (1000, 300)):
        runner.on_hidden_states([0], [start], [count], torch.zeros(count, width))
        assert runner.length(0) == start + count - MAX_BUFFERED


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_rows_are_read_together(make_model: MakeModel, tmp_path: Path, name: str) -> None:
    """Several rows of one pass, each at its own place, one of which only reads on. Their states come together, too."""
    runner = head_of(make_model, name, tmp_path)
    texts, read = [Text(runner, name, row) for row in range(3)], (3, 9, 14)
    states = torch.cat([text.states[:count] for text, count in zip(texts, read, strict=True)])
    runner.on_hidden_states([0, 1, 2], [0, 0, 0], read, states)
    assert all(runner.reserve(row, 20) for row in range(3))
    parts = [(row, texts[row].tokens[: count + (row != 1)], int(row != 1)) for row, count in enumerate(read)]
    logits = runner.forward(pack(*parts)).logits
    assert len(logits) == 2
    for row, found in zip((0, 2), logits, strict=True):
        torch.testing.assert_close(texts[row].own(found), texts[row].expected[0, read[row] - 1], **TOLERANCE)
    assert [runner.length(row) for row in range(3)] == [4, 9, 15]


@SLOW
@given(
    name=st.sampled_from(KINDS),
    form=st.sampled_from(["float32", "paged", "gpu"]),
    tokens=st.tuples(st.integers(2, 12), st.integers(1, 12)),
    how=st.tuples(st.booleans(), st.booleans()),
)
def test_a_prefix_drafts_as_the_row_that_it_comes_from(
    make_model: MakeModel, tmp_path: Path, *, name: str, form: str, tokens: tuple[int, int], how: tuple[bool, bool]
) -> None:
    """Copied, or cut in its row: where states that were read are needed once more, the text begins anew there."""
    (read, kept), (drafts, same) = tokens, how
    limits, makers = FORMS[form][1], makers_of(form)
    kept = min(kept, read)
    one, other = (Text(head_of(make_model, name, tmp_path, makers=makers, **limits), name) for _ in range(2))
    one.pass_states(read)
    if drafts:
        one.draft(read + 1)
    row = 0 if same else 1
    held = one.runner.copy_prefix(0, row, kept)
    assert held == one.runner.length(row) <= kept
    after = Text(one.runner, name, row)
    after.passed = kept
    after.pass_states(read + 2)
    other.pass_states(read + 2)
    whole = kept == read or not drafts  # else states that were read are needed again
    if whole:
        torch.testing.assert_close(after.draft(read + 3), other.draft(read + 3), **TOLERANCE)
    else:
        assert torch.isfinite(after.own(after.draft(read + 3))).all()
    for used in {0, row}:
        one.runner.free(used)
    assert (one.runner.length(0), one.runner.length(row), one.runner.free_memory) == (0, 0, 1.0)
