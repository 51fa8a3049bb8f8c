"""`policy explain`: from a journal to words, tables and one object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.simulation.scenarios import Schedule, stream
from tests.analysis.logs import policy, write_journal
from tests.policies.tapes import made_tape


def test_it_tells_a_story_with_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words a user understands, and rounds where they are asked for."""
    path = tmp_path / "j"
    records = write_journal(path, load_policy_spec(find_policy("goodput")), stream(made_tape(), Schedule((1,))))
    assert main(["policy", "explain", "goodput", "--journal", str(path), "--rounds", "2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"12 requests, {len(records)} rounds" in told
    assert "x the speed of plain decoding" in told
    assert "expected" in told
    assert str(records[-1].number) in told
    line = ["policy", "explain", "goodput", "--journal", str(path), "--request", records[0].request_ids[0], "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 1
    assert found["lines"][0]["reason"] in {"policy", "explore", "off"}


def test_a_file_that_has_changed_since_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal is of what served, not of what the file says today."""
    path, file = tmp_path / "j", tmp_path / "mine.yaml"
    write_journal(path, policy("{choose: {algorithm: static, depth: 5}}", "mine"), stream(made_tape(), Schedule((1,))))
    file.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
        "spec: {choose: {algorithm: goodput}, max-depth: 2}\n"
    )
    assert main(["policy", "explain", str(file), "--journal", str(path)]) == 0
    assert "the file has changed since" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_explained_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "j"
    write_journal(path, policy("{choose: {algorithm: static, depth: 1}}"), stream(made_tape(), Schedule((1,))))
    for line in (["goodput"], ["made", "--request", "none"]):
        assert main(["policy", "explain", *line, "--journal", str(path)]) == 2
        assert capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["policy", "explain", "made", "--rounds", "-1", "--journal", str(path)])


def test_without_a_policy_it_is_the_journals_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody should have to know what served; where several did, it says so, and a request has its own."""
    path, two = tmp_path / "j", tmp_path / "k"
    world = stream(made_tape(), Schedule((1,)))
    mine = write_journal(path, policy("{choose: {algorithm: static, depth: 2}}", "mine"), world)
    assert main(["policy", "explain", "--journal", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "mine"
    # Another server went on in the same file, with another default.
    write_journal(two, policy("{choose: {algorithm: static, depth: 1}}", "other"), world)
    path.write_text(
        path.read_text() + two.read_text().replace('"id":"', '"id":"x').replace('"request_ids":["', '"request_ids":["x')
    )
    assert main(["policy", "explain", "--journal", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("other: 12 requests")
    assert "rounds of other policies, too: mine (12 requests)" in told
    assert main(["policy", "explain", "--journal", str(path), "--request", mine[0].request_ids[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "mine"
