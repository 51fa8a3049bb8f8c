"""`adaptspec doctor`: a verdict, a table, a policy that can be served, and errors before anything is loaded."""

from __future__ import annotations

import errno
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptspec.cli import main
from adaptspec.command_line import Parser
from adaptspec.commands import serve_command
from adaptspec.commands.arguments import engine_config
from adaptspec.engine.assembly import build
from adaptspec.engine.engine_config import EngineConfig


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"task": task, "source": "own", "prompt": f"one two {task} one two"} for task in ("chat", "code")]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.whole
def test_what_it_writes_is_checked_and_served(
    target_path: Path, draft_path: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All drafts in one run; what is not there is left out and reported; the policy is one of the language."""
    policy, missing = tmp_path / "policy.yaml", tmp_path / "nothing"
    line = ["doctor", "--model", str(target_path), "--prompts", str(prompts), "--tokens", "12"]
    drafts = [part for draft in (draft_path, "quantized:int8", missing) for part in ("--draft", str(draft))]
    assert main([*line, *drafts, "--write", str(policy), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["plain_tokens_per_second"]) == {"chat", "code"}
    assert {row["draft"] for row in result["drafters"]} == {str(draft_path), "quantized:int8", None}
    memory = {row["draft"]: row["memory"] for row in result["drafters"]}
    assert memory[None] == 0 < memory["quantized:int8"]
    assert set(result["unusable"]) == {str(missing)}
    assert str(policy) in result["serve"]
    assert main(["policy", "validate", str(policy)]) == 0
    draft = result["best"]["draft"] if result["worth"] else None
    built = build(EngineConfig(str(target_path), draft, policies=(str(policy),)))
    assert built.core.controller.default == "doctor"


@pytest.mark.whole
def test_people_read_the_verdict_first(target_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["doctor", "--model", str(target_path), "--draft", "none", "--prompts", str(prompts), "--tokens", "8"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert said.startswith(("Yes: ", "No: "))
    assert "would help" in said
    assert "adaptspec serve --model" in said
    assert "--write policy.yaml" in said


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What every run of the doctor finds here: a head that pays."""
    row = {
        "draft": "head",
        "drafters": ["ngram"],
        "width": 1,
        "memory": 0,
        "mean": 1.5,
        "tasks": {"a": {"over_plain": 1.5, "best_fixed": "off"}},
    }
    speeds = {"plain_tokens_per_second": {"a": 9.0}, "four_tokens_over_one": 1.5, "would_help": {}}
    result = {"model": "m", "worth": True, "best": row, "drafters": [row], "unusable": {}, "policy": "p", **speeds}
    monkeypatch.setattr("adaptspec.bench.doctor.run_doctor", lambda *_, **__: result)
    return result


@pytest.mark.usefixtures("found")
def test_what_was_found_is_told_even_if_the_policy_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes went into it."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["doctor", "--write", "policy.yaml"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("Yes: ")
    assert "choose another file" in shown.err


@pytest.mark.parametrize("worth", [True, False])
def test_what_is_served_is_what_was_tried(
    found: dict[str, Any], worth: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is a command, of which `serve` makes the same configuration but for the draft."""
    found["worth"] = worth
    given = ["--model", "m", "--counts", "c.npz", "--device", "cpu", "--dtype", "float32", "--allow-pickle"]
    assert main(["doctor", *given, "--json"]) == 0
    program, command, *line = shlex.split(json.loads(capsys.readouterr().out)["serve"])
    assert (program, command) == ("adaptspec", "serve")
    parser = Parser()
    serve_command.add_arguments(parser)
    own = EngineConfig("m", "head" if worth else None, ("policy.yaml",), "cpu", "float32", counts="c.npz")
    assert engine_config(parser.parse_args(line)) == replace(own, allow_pickle=worth)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tokens", "1"], "--tokens is 1; a timing needs at least 2"),
        (["--write", "policy.txt"], "--write policy.txt: a policy's name ends in .yaml"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *given]) == 2
    assert said in capsys.readouterr().err
