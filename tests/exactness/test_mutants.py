"""The mutants apply to today's sources, and tests kill them: a sample here, all of them nightly."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exactness.mutant_table import MUTANTS, Mutant
from tests.exactness.mutants import ROOT, MutantError, edited, main, no_longer_killed, read_record

SAMPLE = 3
RECORD = Path(__file__).parent / "killed.json"

each = pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])


def _source(mutant: Mutant) -> str:
    return (ROOT / mutant.file).read_text(encoding="utf-8")


@each
def test_every_mutant_applies(mutant: Mutant) -> None:
    """Its text occurs once, the edit changes what the file does, and the tests that may kill it exist."""
    before, after = _source(mutant), edited(_source(mutant), mutant)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    assert [path for path in mutant.tests if not (ROOT / path.partition("::")[0]).exists()] == []


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("old", "found"), [("no line of any file", 0), ("return", 3)])
def test_an_edit_of_another_place_is_refused(old: str, found: int) -> None:
    text = "return 1\nreturn 2\nreturn 3\n"
    with pytest.raises(MutantError, match=f"occurs {found} times"):
        edited(text, replace(MUTANTS[0], old=old))


def test_a_mutant_that_was_killed_before_is_named() -> None:
    before = {"a": {"tests/test_a.py": 1}, "b": {"tests/test_b.py": 2}, "c": {}, "d": {"tests/test_d.py": 1}}
    assert no_longer_killed(before, {"a": {}, "b": {"tests/test_new.py": 1}, "c": {}}) == ["a"]


def test_the_record_names_mutants_of_the_table() -> None:
    assert set(read_record(RECORD)) <= {mutant.name for mutant in MUTANTS}


def _commit_number() -> int:
    """The sample changes with each commit, and is the same for all runs on one."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return int(head.stdout, 16)


@pytest.mark.whole
def test_a_sample_of_mutants_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a baseline: the same tests run in this suite."""
    status = main(["--sample", str(SAMPLE), "--seed", str(_commit_number()), "-x", "--no-baseline"])
    assert (status, capsys.readouterr().out.splitlines()[-1]) == (0, f"{SAMPLE} of {SAMPLE} mutants are killed")


@pytest.mark.whole
def test_a_mutant_that_fails_no_test_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The tests of plain tables know nothing of n-grams."""
    status = main(["--only", "frequent-follower-counted-once", "--tests", "tests/test_tables.py", "--no-baseline"])
    assert status == 1
    assert "SURVIVED frequent-follower-counted-once" in capsys.readouterr().out


@pytest.mark.whole
def test_tests_that_cannot_run_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--only", "frequent-follower-counted-once", "--tests", "tests/no_such_test.py"])
    assert status == 2
    assert "pytest ended with status 4" in capsys.readouterr().err


@pytest.mark.nightly
def test_every_mutant_is_killed() -> None:
    assert main(["--compare", str(RECORD)]) == 0
