"""`adaptspec doctor`: a verdict, a table, a policy that can be served, and errors before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
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
    """All drafts in one run; what is not there is left out and told; the policy is one of the language."""
    policy, missing = tmp_path / "policy.yaml", tmp_path / "nothing"
    line = ["doctor", "--model", str(target_path), "--prompts", str(prompts), "--tokens", "12"]
    drafts = [part for draft in (draft_path, "quantized:int8", missing) for part in ("--draft", str(draft))]
    assert main([*line, *drafts, "--write", str(policy), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["plain_tokens_per_second"]) == {"chat", "code"}
    assert {row["draft"] for row in told["drafters"]} == {str(draft_path), "quantized:int8", None}
    assert set(told["unusable"]) == {str(missing)}
    assert str(policy) in told["serve"]
    assert main(["policy", "validate", str(policy)]) == 0
    draft = told["best"]["draft"] if told["worth"] else None
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tokens", "1"], "--tokens is 1; a timing needs at least 2"),
        (["--write", "no/such/policy.yaml"], "there is no folder no/such; make it first"),
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
