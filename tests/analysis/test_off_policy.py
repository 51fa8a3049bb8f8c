"""Off-policy estimates against the simulator: what a log of one policy says of others is what they really earn."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.analysis.journal_rounds import JournalLog
from adaptspec.analysis.off_policy import estimate, exploring_policies
from adaptspec.errors import JournalError
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import replay, static_spec
from adaptspec.simulation.scenarios import Schedule, in_turn, stream
from tests.analysis.logs import write_journal
from tests.policies.tapes import made_tape


@pytest.mark.parametrize("depth", [1, 7])
def test_fixed_depths_earn_what_was_estimated(depth: int, log: Path) -> None:
    """The truth of each lies within its interval, or next to it: the four are not independent."""
    tape = made_tape(count=16, length=96)
    truth = replay(static_spec(depth), stream(tape, Schedule((1,)), in_turn(tape)), load_costs("cpu-2-cores")).goodput
    found = estimate(JournalLog(log), static_spec(depth), "logging").result.goodput
    spread = found.high - found.low
    assert found.low - 0.5 * spread - 0.01 * truth < truth < found.high + 0.5 * spread + 0.01 * truth
    assert spread < 0.35 * truth


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
