"""Reading a journal by policy: which rows a policy decided, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.analysis.journal_reader import JournalReader, named_policy
from adaptspec.errors import JournalError, PolicyError
from adaptspec.journal import LinesDropped, RequestStarted, to_line
from adaptspec.simulation.machine import load_machine
from tests.analysis.logs import header
from tests.control.helpers import record

HEADER = header(load_machine("cpu-2-cores"), ["a", "b"])
BOTH = replace(record([1, 3], [1, 2]), request_ids=("one", "two"))


def _started(name: str, policy: str) -> RequestStarted:
    return RequestStarted(name, policy, None, 8, 64, None, 0.0)


def _write(path: Path, *entries: object) -> JournalReader:
    path.write_text("".join(to_line(entry) + "\n" for entry in entries))  # type: ignore[arg-type]  # any entries
    return JournalReader(path)


def test_a_round_is_split_by_the_policies_of_its_rows(tmp_path: Path) -> None:
    log = _write(tmp_path / "j", HEADER, _started("one", "a"), _started("two", "b"), LinesDropped(2), BOTH)
    (found,) = log.rounds("b")
    assert found.own.request_ids == ("two",)
    assert found.own.depths.tolist() == [3]
    assert len(found.whole.rows) == 2
    assert (log.missing_lines, log.unknown_rows, dict(log.policies)) == (2, 0, {"a": 1, "b": 1})
    (whole,) = JournalReader(log.path).rounds()
    assert whole.own is whole.whole
    assert "a (1 request), b (1 request)" in str(log.no_rounds("c"))


def test_requests_that_began_before_the_oldest_line_have_no_policy(tmp_path: Path) -> None:
    """A rotated journal has lost their beginning; guessing their policy would put rounds to the wrong account."""
    log = _write(tmp_path / "j", HEADER, _started("one", "a"), BOTH)
    (found,) = log.rounds("a")
    assert found.own.request_ids == ("one",)
    assert log.unknown_rows == 1


def test_other_models_and_missing_headers_are_refused(tmp_path: Path) -> None:
    """Depths of one pair of models say nothing of another's."""
    log = _write(tmp_path / "j", HEADER, replace(HEADER, pair="other"))
    with pytest.raises(JournalError, match="different models"):
        list(log.rounds())
    with pytest.raises(JournalError, match="no header"):
        _write(tmp_path / "k", BOTH).costs()


def test_a_policy_is_named_by_what_the_journal_calls_it(tmp_path: Path) -> None:
    """Of a file, the name inside; a name without a file may still be in the journal."""
    own = tmp_path / "file.yaml"
    own.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: inside}\n"
        "spec: {choose: {algorithm: goodput}}\n"
    )
    assert named_policy(str(own))[0] == "inside"
    assert named_policy("of-yesterday") == ("of-yesterday", None)
    assert named_policy("goodput")[1] is not None
    with pytest.raises(PolicyError):
        named_policy(str(tmp_path / "none.yaml"))
