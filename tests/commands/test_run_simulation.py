"""`policy simulate` and `policy tune`: what they print and write, and what they refuse before any work."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands.policy_command import add_simulate_arguments
from adaptspec.control.language.build import load_policy_spec
from adaptspec.errors import AdaptSpecError, ConfigError
from adaptspec.journal import RequestFinished, RequestStarted, read_entries, to_line
from adaptspec.simulation.replay import static_spec
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.tape_file import save_tape
from tests.analysis.logs import write_journal
from tests.analysis.test_tune import STATIC
from tests.policies.tapes import made_tape


def _run(line: str) -> int:
    parser = argparse.ArgumentParser()
    add_simulate_arguments(parser)
    arguments = parser.parse_args(line.split())
    return int(arguments.run(arguments))


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "tape.npz"
    save_tape(made_tape({"code": 0.6, "json": 0.9}, count=1, length=20), path)
    return path


def test_it_prints_one_object(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tapes joined, a shipped table, a shipped policy and one from a file, mixed streams of two sizes."""
    own = tape.with_name("own.yaml")
    own.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: own}\n"
        "spec: {choose: {algorithm: static, depth: 2}}\n"
    )
    line = f"--tape {tape} {tape} --cost cpu-2-cores --policy goodput --policy {own} --batch 1,1-2-1 --mixed --json"
    assert _run(line) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data["policies"]) == ["goodput", "own"]
    assert [(cell["machine"], cell["batch"]) for cell in data["cells"]] == [
        ("cpu-2-cores", batch) for batch in ("1", "1", "1-2-1", "1-2-1")
    ]


def test_a_journal_replays_the_default_policy_and_says_without_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No journal knows what n-grams would have guessed: the policy goes without them, as a trial on the page does."""
    journal, tape = tmp_path / "j", made_tape(count=3)
    write_journal(journal, static_spec(4), stream(tape, Schedule((1,))))
    for one in [entry for entry in read_entries(journal) if isinstance(entry, RequestStarted)]:
        length = int(tape.lengths[tape.ids.index(one.id.partition("#")[0])])
        with journal.open("a") as file:
            file.write(to_line(RequestFinished(one.id, "x", "stop", length, 1, 0, 0, 0.1, 0.0, 0.05, 0.1)) + "\n")
    assert _run(f"--journal {journal} --batch 1 --mixed --policy goodput --policy static-3 --json") == 0
    told = capsys.readouterr()
    assert list(json.loads(told.out)["policies"]) == ["goodput", "static-3"]
    assert [line for line in told.err.splitlines() if "without" in line] == [
        "policy goodput is simulated without ngram: a journal can replay only drafts of draft-model"
    ]
    with pytest.raises(ConfigError, match="goodput-ngram drafts with ngram only"):
        _run(f"--journal {journal} --batch 1 --mixed --policy goodput-ngram")


@pytest.mark.parametrize(
    "line",
    [
        "--cost abacus",
        "--policy goodputt",
        "--policy off --policy off",
        "--batch many",
        "--temperature 0.7",
        "--plot out.png",
    ],
)
def test_what_cannot_be_simulated_is_refused(line: str, tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(AdaptSpecError):
        _run(f"--tape {tape} {line}")


@pytest.fixture
def tuning(tmp_path: Path) -> list[str]:
    """The command for a policy that drafts far too deep."""
    tape, policy = tmp_path / "tape.npz", tmp_path / "deep.yaml"
    save_tape(made_tape({"code": 0.5}, count=12, length=32), tape)
    policy.write_text(STATIC)
    return ["policy", "tune", str(policy), "--tape", str(tape), "--budget", "3", "--set", "spec.choose.depth=1..2"]


def test_it_writes_what_the_held_out_prompts_confirm(
    tuning: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "best.yaml"
    assert main([*tuning, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "tokens per second before" in told
    assert "confirm it" in told
    assert load_policy_spec(out).spec.choose.depth < 7  # type: ignore[union-attr]  # static has one
    assert "# too deep" in out.read_text()
