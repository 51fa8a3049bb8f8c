"""Off-policy estimates against the simulator: what a log of one policy says of others is what they really earn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adaptspec.analysis.journal_rounds import JournalLog
from adaptspec.analysis.off_policy import estimate, exploring_policies
from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.errors import ConfigError, JournalError
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import replay, static_spec
from adaptspec.simulation.scenarios import Schedule, in_turn, stream
from adaptspec.simulation.tape_file import find_tape, load_tape
from tests.analysis.logs import LOGGING, policy, write_journal
from tests.policies.tapes import made_tape

SHARED = policy("{choose: {algorithm: exp3, scope: batch-bucket, rate: 0.05}, tiers: [0, 1, 3]}", "shared")


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_fixed_depths_earn_what_was_estimated(depth: int, log: Path) -> None:
    """The truth of each lies within its interval, or next to it: the four are not independent."""
    tape = made_tape(count=16, length=96)
    truth = replay(static_spec(depth), stream(tape, Schedule((1,)), in_turn(tape)), load_costs("cpu-2-cores")).goodput
    found = estimate(JournalLog(log), static_spec(depth), "logging").result.goodput
    spread = found.high - found.low
    assert found.low - 0.5 * spread - 0.01 * truth < truth < found.high + 0.5 * spread + 0.01 * truth
    assert spread < 0.35 * truth


def test_a_draw_that_a_batch_shares_counts_once(tmp_path: Path) -> None:
    """Four rows under one arm: multiplied by row, the weights would overlap with nothing."""
    tape, path = made_tape(count=24, length=96), tmp_path / "j"
    made = stream(tape, Schedule((4,)), in_turn(tape))
    write_journal(path, SHARED, made)
    truth = replay(static_spec(1), made, load_costs("cpu-2-cores")).goodput
    found = estimate(JournalLog(path), static_spec(1), "shared").result
    assert found.goodput.low - 0.02 * truth < truth < found.goodput.high + 0.02 * truth
    assert found.effective > 0.3 * found.matched


@pytest.mark.parametrize("name", ["ucb", "sglang-ema", "nightjar", "linucb-context", "vllm-batch-table"])
def test_policies_that_learn_can_be_judged(name: str, log: Path) -> None:
    """They are driven over the journal, taught by the rounds that they would have had."""
    found = estimate(JournalLog(log), load_policy_spec(find_policy(name)), "logging")
    assert 0.5 < found.result.over_logged.value < 2.0
    assert found.rounds + sum(found.left_out.values()) - found.left_out["impossible"] > found.result.matched


def test_no_propensities_and_no_overlap_are_refused(log: Path, tmp_path: Path) -> None:
    """Each says what is missing and what to do about it."""
    fixed = tmp_path / "fixed"
    write_journal(fixed, static_spec(2), stream(made_tape(), Schedule((1,))))
    assert not exploring_policies(JournalLog(fixed))
    with pytest.raises(JournalError, match="by chance"):
        estimate(JournalLog(fixed), static_spec(2), "static-2")
    with pytest.raises(JournalError, match="too little of what 'static-5' would do"):
        estimate(JournalLog(log), static_spec(5), "logging")
    with pytest.raises(JournalError, match="it has rounds of: logging"):
        estimate(JournalLog(log), static_spec(1), "other")


def test_drafts_that_end_at_an_end_token_are_no_stop_rule(tmp_path: Path) -> None:
    """Short answers: the draft sees the end coming, and every other request has a round with less than its depth."""
    path = tmp_path / "j"
    tape = load_tape(find_tape("bundled"))
    short = tape.take(np.flatnonzero(tape.lengths < 24).tolist())
    records = write_journal(path, load_policy_spec(LOGGING), stream(short, Schedule((1,)), in_turn(short) * 2))
    ended = sum(int((r.drafted < r.depths).sum()) for r in records)
    assert ended > 0.05 * sum(int((r.drafted > 0).sum()) for r in records)
    assert estimate(JournalLog(path), static_spec(1), "logging").result.matched


def test_drafts_that_end_by_a_stop_rule_are_refused(tmp_path: Path) -> None:
    """Its depths do not say what was done."""
    path = tmp_path / "j"
    body = "{choose: {algorithm: exp3, scope: request}, tiers: [0, 1, 3, 7], stop: {rule: confidence, threshold: 0.6}}"
    tape = made_tape(count=4)
    write_journal(path, policy(body, "stopping"), stream(tape, Schedule((1,)), in_turn(tape)))
    with pytest.raises(JournalError, match="by a stop rule"):
        estimate(JournalLog(path), static_spec(1), "stopping")


@pytest.mark.parametrize(
    ("name", "why"), [("goodput", "n-grams propose"), ("entropy-gate", "stop rules"), ("per-task", "stop rules")]
)
def test_policies_that_do_more_than_choose_depths_are_refused(name: str, why: str, log: Path) -> None:
    """A journal of depths cannot tell where a stop rule would have ended a draft, nor what a lookup found."""
    with pytest.raises(ConfigError, match=why):
        estimate(JournalLog(log), load_policy_spec(find_policy(name)), "logging")
