"""Rounds that go on with an earlier decision: when they may, that nothing is lost, and that text is the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.deciding import Deciding
from adaptspec.request import Request, SamplingParams
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.fakes import TableRunner

LENGTH = 600


class Blind(Dictated):
    """One that does not."""

    search_depth = None


class Looking(Dictated):
    """As a policy that goes by n-grams, which may be found at any time."""

    search_depth = 3


def served(
    tokenizer: PreTrainedTokenizerFast,
    choose: Callable[[int, int], Sequence[int]],
    *,
    slow: bool = True,
    looking: bool = False,
) -> tuple[Dictated, Notes, list[tuple[int, ...]]]:
    """Two requests, the second one shorter, where deciding takes as long as all else (`slow`), or no time."""
    target, draft = (TableRunner(blend=blend, context=2 * LENGTH) for blend in (1.0, 0.9))
    drafters, notes = [DraftModelDrafter(draft)], Notes()
    policy = (Looking if looking else Blind)(("draft-model",), choose)
    core = make_core(tokenizer, target, drafters, {"p": (policy, "coupled")}, sinks=[notes])
    ticks = itertools.count()
    core._deciding = Deciding(core.controller, core.executor, lambda: float(next(ticks)) if slow else 0.0)
    params = [SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in (LENGTH, LENGTH // 2)]
    done = run(core, [Request(f"r{i}", (5 + i, 6, 7), one) for i, one in enumerate(params)])
    notes.records = [one for one in notes.records if len(one.rows)]  # others read prompts alone
    return policy, notes, [done[f"r{i}"].tokens for i in range(2)]


def nobody(_: int, size: int) -> list[int]:
    return [0] * size


def test_where_nobody_drafts_few_rounds_are_decided_and_those_stand_for_all(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    policy, notes, texts = served(tokenizer, nobody)
    assert len(policy.records) < 0.4 * len(notes.records)
    assert 0 <= len(notes.records) - sum(one.stands_for for one in policy.records) < 8
    _, every, same = served(tokenizer, nobody, slow=False)
    assert texts == same
    assert [one.context.tolist() for one in notes.records] == [one.context.tolist() for one in every.records]
    assert [one.request_ids for one in notes.records] == [one.request_ids for one in every.records]


@pytest.mark.parametrize(
    ("choose", "slow", "looking"),
    [
        (lambda _, size: [1] + [0] * (size - 1), True, False),
        (nobody, False, False),
        (nobody, True, True),
    ],
    ids=["somebody drafts", "deciding takes no time", "drafts may be found"],
)
def test_else_every_round_is_decided_and_learned_from(
    tokenizer: PreTrainedTokenizerFast, choose: Callable[[int, int], list[int]], slow: bool, looking: bool
) -> None:
    policy, notes, _ = served(tokenizer, choose, slow=slow, looking=looking)
    assert len(policy.records) == len(notes.records)
    assert {one.stands_for for one in policy.records} == {1}


def test_a_single_plain_round_stays_single(tokenizer: PreTrainedTokenizerFast) -> None:
    """One in ten does not draft: what comes after it is decided anew."""
    policy, notes, _ = served(tokenizer, lambda number, size: [2 * (number % 10 > 0)] * size)
    assert any(not one.depths.any() for one in notes.records)
    assert len(policy.records) == len(notes.records)


def test_a_policy_that_fails_is_heard_of_and_asked_again(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    """From its second decision on: each round is tried, and the log says so once in a thousand."""

    def failing(number: int, size: int) -> list[int]:
        assert number < 2, "it fails"
        return [0] * size

    policy, notes, texts = served(tokenizer, failing)
    assert policy._round == len(notes.records)
    assert [one.message for one in caplog.records if "could not be decided" in one.message]
    assert texts == served(tokenizer, nobody)[2]
