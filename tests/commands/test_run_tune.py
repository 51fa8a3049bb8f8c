"""`policy tune`: what is printed, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.language.build import load_policy_spec
from adaptspec.simulation.tape_file import save_tape
from tests.analysis.test_tune import STATIC
from tests.simulation.tapes import made_tape


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    """The command for a policy that drafts far too deep."""
    tape, policy = tmp_path / "tape.npz", tmp_path / "deep.yaml"
    save_tape(made_tape({"code": 0.5}, count=12, length=32), tape)
    policy.write_text(STATIC)
    return ["policy", "tune", str(policy), "--tape", str(tape), "--budget", "3", "--set", "spec.choose.depth=1..2"]


def test_it_writes_what_the_held_out_prompts_confirm(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "best.yaml"
    assert main([*line, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "tokens per second before" in told
    assert "confirm it" in told
    assert load_policy_spec(out).spec.choose.depth < 7  # type: ignore[union-attr]  # static has one
    assert "# too deep" in out.read_text()


def test_without_a_gain_the_original_stays(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Deeper still is no better, and the file written is the one that was given."""
    out = tmp_path / "best.yaml"
    assert main([*line[:-1], "spec.choose.depth=20..30", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["improves"]
    assert out.read_text() == STATIC


def test_what_cannot_be_used_is_refused(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--budget", "0"], ["--requests", "-1"], ["--seed", "-1"], ["--set", "x"], ["--batch", "many"]):
        assert main([*line, *wrong]) == 2
    assert main(["policy", "tune", "vllm-batch-table"]) == 2
    assert "--set" in capsys.readouterr().err
