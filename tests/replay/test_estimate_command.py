"""`policy estimate`: whom it finds in a journal, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.language.library import find_policy
from adaptspec.replay.simulator import static_spec
from adaptspec.replay.streams import Schedule, stream
from tests.replay.logs import write_journal
from tests.replay.worlds import made_tape


def test_policies_that_learn_are_told_apart(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They saw only the rounds that match; a user must know before believing the figure."""
    assert main(["policy", "estimate", str(find_policy("ucb")), "--journal", str(log)]) == 0
    assert "judged meanwhile" in capsys.readouterr().out
    assert main(["policy", "estimate", "static-3", "--journal", str(log)]) == 0
    assert "judged meanwhile" not in capsys.readouterr().out


def test_the_command_finds_who_explored_and_says_how_sure_it_is(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "estimate", "off", "--journal", str(log)]) == 0
    told = capsys.readouterr().out
    assert "off would have delivered" in told
    assert "95%" in told
    assert "of logging, which served" in told
    assert main(["policy", "estimate", "static-3", "--journal", str(log), "--json", "--level", "0.8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["goodput"]["low"] < found["goodput"]["value"] < found["goodput"]["high"]
    assert main(["policy", "estimate", "off", "--journal", str(log), "--clip", "0.5"]) == 2
    assert main(["policy", "estimate", "off", "--journal", str(log), "--level", "1"]) == 2


def test_the_command_refuses_a_journal_without_propensities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "j"
    write_journal(path, static_spec(2), stream(made_tape(count=1), Schedule((1,))))
    assert main(["policy", "estimate", "off", "--journal", str(path)]) == 2
    assert "no propensities" in capsys.readouterr().err
