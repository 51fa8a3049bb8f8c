"""What several tests of journals read."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.control.language.build import load_policy_spec
from adaptspec.simulation.scenarios import Schedule, in_turn, stream
from tests.analysis.logs import LOGGING, write_journal
from tests.policies.tapes import made_tape


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of requests one at a time, each exploring by itself."""
    path = tmp_path_factory.mktemp("log") / "j"
    tape = made_tape(count=16, length=96)
    write_journal(path, load_policy_spec(LOGGING), stream(tape, Schedule((1,)), in_turn(tape)))
    return path
