"""`adaptspec policy ...`: what one does with policies before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import parse_policy_spec


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


def test_policy_diff_tells_what_a_change_means(capsys: pytest.CaptureFixture[str]) -> None:
    """By path, with defaults."""
    assert main(["policy", "diff", "goodput", "static-3"]) == 0
    assert "spec.choose.algorithm: goodput -> static" in capsys.readouterr().out
    assert main(["policy", "diff", "goodput", "goodput"]) == 0
    assert capsys.readouterr().out == "the two mean the same\n"


def test_policy_import_writes_a_policy_that_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the terminal or to a file, which is never overwritten. Without a guard, which the other engine has not."""
    config, policy = tmp_path / "config.json", tmp_path / "mine.yaml"
    config.write_text('{"num_speculative_tokens": 4, "method": "ngram"}')
    assert main(["policy", "import", "vllm", str(config)]) == 0
    printed = capsys.readouterr().out
    assert main(["policy", "import", "vllm", str(config), "-o", str(policy)]) == 0
    assert policy.read_text() == printed
    assert main(["policy", "validate", str(policy)]) == 0
    for engine, text in (
        ("vllm", '{"num_speculative_tokens": 4, "disable_by_batch_size": 8}'),
        ("vllm", '{"num_speculative_tokens_per_batch_size": [[1, 8, 3]]}'),
        ("sglang", "{}"),
    ):
        other = tmp_path / "other.json"
        other.write_text(text)
        capsys.readouterr()
        assert main(["policy", "import", engine, str(other)]) == 0
        guard = parse_policy_spec(capsys.readouterr().out).spec.guard
        assert guard.never_slower is None
        assert guard.max_batch_size == (8 if "disable" in text else None)
    assert main(["policy", "import", "sglang", str(config)]) == 2
    assert main(["policy", "import", "vllm", str(config), "-o", str(policy)]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert "num_speculative_tokens: unknown key" in shown[0]
    assert "cannot be written" in shown[-1]
