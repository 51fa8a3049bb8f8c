"""GuardEvents: switches, probes and baseline rounds from the reasons of rounds in order."""

from __future__ import annotations

import pytest

from adaptspec.decision import Reason
from adaptspec.telemetry.guard_events import GuardEvents

POLICY, GUARD, PROBE = int(Reason.POLICY), int(Reason.GUARD), int(Reason.PROBE)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([POLICY] * 3 + [GUARD] + [POLICY] * 3, (0, 0, 0, 1)),
        ([POLICY] + [GUARD] * 9 + [PROBE] * 6 + [POLICY] * 2, (1, 1, 1, 0)),
        ([POLICY] + [GUARD] * 9 + [PROBE] * 2 + [GUARD] * 20 + [PROBE] * 2 + [GUARD], (1, 2, 0, 0)),
        ([POLICY] + [GUARD] * 2 + [PROBE] + [POLICY] + [GUARD] * 5, (2, 1, 1, 0)),
    ],
)
def test_guards_are_counted_by_stretches(rounds: list[int], expected: tuple[int, int, int, int]) -> None:
    """A round that renews the baseline is no switch; a probe in vain goes back to the same off."""
    guarding = GuardEvents()
    for reason in rounds:
        guarding.add([reason])
    assert (guarding.switched_off, guarding.probes, guarding.came_back, guarding.baselines) == expected
