"""`policy simulate` and `policy tune`: what they print and write, and what they refuse before any work."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands.policy_command import MACHINES, add_simulate_arguments
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.errors import AdaptSpecError, ConfigError
from adaptspec.journal import RequestFinished, RequestStarted, read_entries, to_line
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import static_spec
from adaptspec.simulation.tape_file import load_tape, save_tape
from adaptspec.start_status import EVERY_SECONDS
from tests.analysis.logs import write_journal
from tests.analysis.test_tune import STATIC
from tests.policies.cells import tape as smollm2_tape
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
    assert [(cell["machine"], cell["simulated"], cell["batch"]) for cell in data["cells"]] == [
        ("cpu-2-cores", False, batch) for batch in ("1", "1", "1-2-1", "1-2-1")
    ]


@pytest.mark.parametrize(
    ("line", "policies"),
    [
        ("off static-3", ["off", "static-3"]),
        ("--batch 1 off static-3", ["off", "static-3"]),
        ("off --policy static-3", ["off", "static-3"]),
        ("off --policy off", ["off"]),
    ],
)
def test_policies_need_no_option(
    line: str, policies: list[str], tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names and files come before or after other options; those of `--policy` follow."""
    assert _run(f"{line} --tape {tape} --cost cpu-2-cores --mixed --batch 1 --json") == 0
    assert list(json.loads(capsys.readouterr().out)["policies"]) == policies


def test_it_explains_its_columns_and_what_no_tape_shows(
    tape: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each column of both tables has a line; the GPU is labelled; where standard error is piped, progress is lines."""
    monkeypatch.delenv("COLUMNS", raising=False)
    begun = time.monotonic()
    assert _run(f"off --tape {tape} --cost gpu-8b --batch 1 --markdown") == 0
    shown = capsys.readouterr()
    headers = [line for line in shown.out.splitlines() if line.startswith(("| machine", "| policy"))]
    assert len(headers) == 2
    columns = [cell.strip() for header in headers for cell in header.strip("|").split("|")]
    explained = [line.strip().partition(": ")[0] for line in shown.out.splitlines() if line.startswith("  ")]
    assert explained == [name for name in columns if name != "policy"]
    assert shown.out.count("gpu-8b (simulated)") == shown.out.count("gpu-8b") == 3
    assert "cannot show other texts" in shown.out.splitlines()[-1]
    lines = [line for line in shown.err.splitlines() if line.startswith("simulate (")]
    assert lines[0] == "simulate (1 of 3)"
    assert len(lines) <= 1 + (time.monotonic() - begun) / EVERY_SECONDS


def test_without_a_machine_of_its_model_a_tape_is_replayed_on_others_and_it_says_so(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(f"off --tape {tape} --batch 1 --mixed --json") == 0
    shown = capsys.readouterr()
    assert {cell["machine"] for cell in json.loads(shown.out)["cells"]} == {"cpu-2-cores", "gpu-8b"}
    assert "no machine of the tape's model ships" in shown.err
    assert "--cost FILE" in shown.err
    known = load_tape(tape)
    save_tape(replace(known, about={"target": smollm2_tape().about["target"]}), tape)
    assert _run(f"off --tape {tape} --batch 1 --mixed --json") == 0
    shown = capsys.readouterr()
    assert {cell["machine"] for cell in json.loads(shown.out)["cells"]} == {
        name for name in MACHINES if name.startswith("smollm2-")
    }
    assert "no machine" not in shown.err


def test_a_journal_replays_the_default_policy_and_says_without_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal cannot replay n-grams: the policy is simulated without them, as a trial on the page is."""
    journal, tape = tmp_path / "j", made_tape(count=3)
    write_journal(journal, static_spec(4), stream(tape, Schedule((1,))))
    for one in [entry for entry in read_entries(journal) if isinstance(entry, RequestStarted)]:
        length = int(tape.lengths[tape.ids.index(one.id.partition("#")[0])])
        with journal.open("a") as file:
            file.write(to_line(RequestFinished(one.id, "x", "stop", length, 1, 0, 0, 0.1, 0.0, 0.05, 0.1)) + "\n")
    assert _run(f"--journal {journal} --batch 1 --mixed goodput static-3 --json") == 0
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)["policies"]) == ["goodput", "static-3"]
    assert [line for line in shown.err.splitlines() if "without" in line] == [
        "policy goodput is simulated without ngram: a journal can replay only drafts of draft-model"
    ]
    with pytest.raises(ConfigError, match="goodput-ngram drafts with ngram only"):
        _run(f"goodput-ngram --journal {journal} --batch 1 --mixed")


@pytest.mark.parametrize(
    "line",
    [
        "--cost abacus",
        "--policy goodputt",
        "--cost cpu-2-cores off off",
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
    shown = capsys.readouterr().out
    assert "tokens per second before" in shown
    assert "confirm it" in shown
    assert load_policy_spec(out).spec.choose.depth < 7  # type: ignore[union-attr]  # static has one
    assert "# too deep" in out.read_text()
