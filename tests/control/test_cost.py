"""The cost table adds up, learns, keeps its head, and survives a round trip."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from adaptspec.control.cost import CostProfile, CostTable, DrafterCost, draft_passes
from adaptspec.errors import ConfigError
from adaptspec.types import RoundRecord
from tests.control.helpers import QUIET, record, table
from tests.trees import CHAIN, Grown, branching, forests


def test_a_round_is_the_sum_of_its_parts() -> None:
    cost = table()
    whole = cost.round_seconds("draft-model", 4, np.array([0.0, 2.0]), np.array([0.0, 8.0]))
    assert whole[0] == pytest.approx(cost.plain_seconds(4))
    expected = 2 * QUIET.step(4) + QUIET.verify(12) + QUIET.overhead_ms / 1e3
    assert whole[1] == pytest.approx(expected, rel=0.02)


def test_it_learns_a_machine_that_is_slower_than_profiled() -> None:
    cost = table()
    before = cost.plain_seconds(1)
    for _ in range(400):
        cost.observe(record([3], [2], slower=1.5), ("draft-model",))
        cost.observe(record([0], [0], slower=1.5), ("draft-model",))
    assert cost.plain_seconds(1) == pytest.approx(1.5 * before, rel=0.05)
    assert cost.draft_step_seconds("draft-model", 1) == pytest.approx(1.5 * QUIET.step(1), rel=0.05)


def test_what_begins_a_draft_is_paid_once_a_round() -> None:
    """Rounds of one depth teach what a step is, not that every step costs as much as the first."""
    profile = CostProfile((1,), (1, 8), ((1e-3, 1.7e-3),), {"draft-model": DrafterCost((1,), (2e-4,), 0.0, 3e-4)})
    cost = CostTable(profile)
    deeper = cost.round_seconds("draft-model", 1, np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    assert deeper[1] - deeper[0] == pytest.approx(2e-4 + 1e-4)
    rest = cost.overhead_seconds(1, drafting=True) + cost.verify_seconds(1, 2)
    assert deeper[0] == pytest.approx(rest + 2e-4 + 3e-4)
    told = replace(record([1], [1]), verify_seconds=1.1e-3, draft_seconds=5e-4, total_seconds=1.6e-3)
    for _ in range(50):
        cost.observe(told, ("draft-model",))
    assert cost.draft_step_seconds("draft-model", 1) == pytest.approx(2e-4, rel=1e-6)
    assert cost.start_seconds("draft-model", 1) == pytest.approx(3e-4, rel=1e-6)
    assert cost.start_seconds("ngram", 1) == 0.0


def test_drafting_rounds_take_no_less_beside_their_passes_than_plain_ones() -> None:
    """They do all that plain ones do: where plain ones take longer, so will those with drafts."""
    cost = table()
    for _ in range(200):
        cost.observe(record([3], [2]), ("draft-model",))
        cost.observe(record([0], [0], slower=3.0))
    assert cost.overhead_seconds(1, drafting=True) >= cost.overhead_seconds(1, drafting=False)


def test_a_hiccup_does_not_change_which_depth_pays_and_it_recovers() -> None:
    cost = table()

    def relative() -> float:
        return cost.verify_seconds(1, 4) / cost.plain_seconds(1)

    for _ in range(40):
        cost.observe(record([3], [2]), ("draft-model",))
        cost.observe(record([0], [0]), ("draft-model",))
    usual = relative()
    for _ in range(3):
        cost.observe(record([3], [2], slower=50.0), ("draft-model",))
    assert relative() == pytest.approx(usual, rel=0.05)
    for _ in range(200):
        cost.observe(record([3], [2]), ("draft-model",))
        cost.observe(record([0], [0]), ("draft-model",))
    assert relative() == pytest.approx(usual, rel=0.01)


def test_rounds_that_read_a_prompt_teach_nothing() -> None:
    cost = table()
    before = cost.plain_seconds(1)
    for _ in range(20):
        cost.observe(record([0], [0], slower=9.0, prefill=100))
    assert cost.plain_seconds(1) == before


def test_rounds_that_only_caught_up_are_no_dearer_without_drafts() -> None:
    """What a draft model took to read what it missed is not what plain decoding costs: guards compare with that."""
    cost = table()
    read = replace(record([0], [0]), caught_up=500, draft_seconds=5e-3)
    read = replace(read, total_seconds=read.total_seconds + read.draft_seconds)
    for told, times in ((record([0], [0]), 50), (read, 50)):
        for _ in range(times):
            cost.observe(told, ("draft-model",))
        if told is not read:
            before = cost.plain_seconds(1)
    assert cost.plain_seconds(1) == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1, "rows": [1]}'])
def test_foreign_files_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="profile again"):
        CostTable.from_json(text)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"overhead": math.nan}, "overhead"),
        ({"per_cached_token": -1e-9}, "per_cached_token"),
        ({"verify": [[math.inf]]}, r"verify\.0\.0"),
        ({"drafters": {"ngram": {"start_seconds": math.nan}}}, r"drafters\.ngram\.start_seconds"),
        ({"drafters": {"ngram": {"catch_up_per_token": "fast"}}}, r"drafters\.ngram\.catch_up_per_token"),
        ({"drafters": {"ngram": {"rows": [1.5]}}}, r"drafters\.ngram\.rows\.0"),
    ],
)
def test_what_is_no_time_is_refused_by_its_name(changed: dict[str, object], named: str) -> None:
    """A NaN in a small field would make every price NaN: nothing compares with it, so nothing is ever chosen."""
    text = json.dumps(json.loads(table().to_json()) | changed)
    with pytest.raises(ConfigError, match=rf"not a cost table \({named}: input should be .*: profile again"):
        CostTable.from_json(text)


def test_the_rare_kind_of_round_is_always_heard() -> None:
    """One round in eight says enough of what every round does; the plain one among drafts is the guard's baseline."""
    cost = table()
    for _ in range(200):
        cost.observe(record([3], [2]), ("draft-model",))
    before = cost.plain_seconds(1, 100.0)
    for _ in range(4):
        cost.observe(record([0], [0], slower=1.3))
        for _ in range(20):
            cost.observe(record([3], [2]), ("draft-model",))
    assert cost.plain_seconds(1, 100.0) > 1.02 * before


def test_a_table_that_rounds_contradict_is_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    """It says so once, believes the next rounds more, and is sure again."""
    cost, before = table(), table().plain_seconds(1)
    for slower, rounds in ((1.0, 1000), (3.0, 100)):
        doubted = False
        for _ in range(rounds):
            cost.observe(record([0], [0], slower=slower))
            for _ in range(4):
                cost.observe(record([3], [2]), ("draft-model",))
            doubted |= cost.unsure
        assert doubted == (slower > 1.0)
    assert (cost.unsure, cost.doubts) == (False, 1)
    assert cost.plain_seconds(1) > 1.5 * before
    assert [line.message.split(":")[0] for line in caplog.records] == ["costs are unsure"]


def test_a_stall_hides_no_contradiction() -> None:
    """Plain rounds take three times as long from now on, and in one of eight the machine sleeps: a mean of eight would
    be far off, and its error larger still.
    """
    cost = table()
    for number in range(720):
        late = 1e5 if number % 8 == 3 else 3.0
        cost.observe(record([0], [0], slower=1.0 if number < 600 else late))
        for _ in range(4):
            cost.observe(record([3], [2]), ("draft-model",))
    assert cost.doubts == 1


def test_stalls_are_no_disagreement() -> None:
    """Ten times as long in one round of fifty says that the machine was elsewhere."""
    rng, cost = np.random.default_rng(0), table()
    for _ in range(2000):
        slower = float(np.exp(rng.normal(0.0, 0.3))) * (10.0 if rng.random() < 0.02 else 1.0)
        cost.observe(record([2], [1], slower=slower), ("draft-model",))
    assert cost.doubts == 0


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_what_was_measured_at_the_start_is_outweighed_in_a_few_dozen_rounds(wrong: float) -> None:
    """Plain rounds five times too dear or too cheap in the table: nobody decides by that for long."""
    profile = table().profile
    cost = CostTable(replace(profile, verify=tuple((wrong * one, *rest) for one, *rest in profile.verify)))
    for _ in range(18):
        cost.observe(record([0], [0]))
        cost.observe(record([3], [2]), ("draft-model",))
    assert cost.plain_seconds(1) == pytest.approx(table().plain_seconds(1), rel=0.1)
    assert cost.verify_seconds(1, 4) == pytest.approx(table().verify_seconds(1, 4), rel=0.1)


@settings(max_examples=100, deadline=None)
@given(forests())
def test_what_drafts_are_charged_for_is_what_was_drafted_on_from(one: RoundRecord) -> None:
    """Siblings come of one step; the parts of a tree are paid by whoever proposed them, once."""
    told = {which: (rows, active) for which, rows, active in draft_passes(one)}
    for which in range(2):
        rows, active = told.get(which, (0, np.zeros(1, dtype=np.int64)))
        own = one.branches.tree.drafters == which  # type: ignore[union-attr]
        nodes = int((own & (np.arange(own.shape[1]) < one.nodes[:, None])).sum())
        assert active[0] == rows <= len(one.rows)
        assert active[1:].sum() <= nodes


def test_chains_and_combs_cost_the_same_steps() -> None:
    """What stands beside a chain takes no step of the draft model, but a place in the target's pass."""
    comb = Grown([-1, 0, 1, -1, 0, 1], 3)
    told = [
        [(which, rows, active.tolist()) for which, rows, active in draft_passes(one)]
        for one in (record([3, 2], [1, 0]), branching(comb, CHAIN), branching(Grown([-1, 0, 1], 3), CHAIN))
    ]
    assert told == [[(0, 2, [2, 2, 1])]] * 3
    beam = Grown([-1, 0, -1, 2, 2], 2)  # two nodes are drafted on from in the second step
    assert [(which, rows, active.tolist()) for which, rows, active in draft_passes(branching(beam))] == [(0, 1, [1, 2])]
    union = Grown([-1, 0, -1, 2], 2, drafters=[0, 0, 1, 1])
    assert [which for which, _, _ in draft_passes(branching(union))] == [0, 1]
