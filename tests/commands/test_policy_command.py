"""`adaptspec policy ...`: what one does with policies before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.language.library import find_policy


def test_policy_show_prints_the_file_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """What one copies to start a policy of one's own."""
    assert main(["policy", "show", "goodput"]) == 0
    assert capsys.readouterr().out == find_policy("goodput").read_text()


def test_policy_validate_tells_every_fault_of_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run shows all there is to mend; what is right says so."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(find_policy("per-task").read_text().replace("max-depth:", "max-dpth:"))
    assert main(["policy", "validate", "goodput", "off"]) == 0
    assert capsys.readouterr().out == "goodput: ok\noff: ok\n"
    assert main(["policy", "validate", str(broken), "goodput", str(tmp_path / "none.yaml")]) == 2
    shown = capsys.readouterr()
    assert shown.out == "goodput: ok\n"
    faults = shown.err.splitlines()
    assert all(line.startswith(str(tmp_path)) for line in faults)
    assert "(did you mean 'max-depth'?)" in faults[0]
    assert "no such file" in faults[-1]


def test_policy_validate_notes_tasks_that_no_prompt_is_detected_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
        "  choose: {algorithm: goodput}\n"
        "  tasks:\n    code: {max-depth: 2}\n    coding: {off: true}\n    other: {off: true}\n"
    )
    assert main(["policy", "validate", str(mine)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{mine}: ok\n"
    (note,) = shown.err.splitlines()
    assert note.startswith(
        f"note: {mine}:8:5: spec.tasks.coding: no prompt is detected as 'coding' (detected are: chat,"
    )
    assert '{"adaptspec": {"task": "coding"}}' in note


def test_policy_validate_notes_routes_that_never_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A canary is never the default policy, whose `when` alone counts."""
    mine = tmp_path / "mine.yaml"
    text = (
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
        "  choose: goodput\n  when: [{task: code, use: off}]\n"
    )
    mine.write_text(text + "  rollout: {mode: canary, percent: 5}\n")
    assert main(["policy", "validate", str(mine)]) == 0
    assert capsys.readouterr().err == (
        f"note: {mine}:6:3: spec.when: `when` counts only in the default policy, which this one is not\n"
    )
    mine.write_text(text)
    assert main(["policy", "validate", str(mine)]) == 0
    assert not capsys.readouterr().err


def test_policy_schema_is_the_committed_one(capsys: pytest.CaptureFixture[str]) -> None:
    """For editors that look elsewhere."""
    assert main(["policy", "schema"]) == 0
    committed = find_policy("goodput").with_name("policy.schema.json")
    assert capsys.readouterr().out == committed.read_text()
