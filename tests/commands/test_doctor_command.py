"""`adaptspec doctor`: a verdict, a table, a policy that can be served, and errors before anything is loaded."""

from __future__ import annotations

import json
import resource
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands import serve_command
from adaptspec.commands.arguments import engine_config
from adaptspec.config import EngineConfig
from adaptspec.engine.build import build


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
    line = ["doctor", "--model", str(target_path), "--prompts", str(prompts), "--tokens", "12", "--dtype", "float32"]
    line += ["--threads", "1", "--max-model-len", "96"]
    drafts = [part for draft in (draft_path, "quantized:int8", missing) for part in ("--draft", str(draft))]
    assert main([*line, *drafts, "--write", str(policy), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["plain_tokens_per_second"] > 0.0
    assert {row["draft"] for row in result["candidates"]} == {str(draft_path), "quantized:int8", None}
    memory = {row["draft"]: row["memory"] for row in result["candidates"]}
    assert memory[None] == 0 < memory["quantized:int8"]
    assert set(result["unusable"]) == {f"draft {missing}"}
    assert result["file"] == str(target_path)
    assert str(policy) in result["serve"]
    assert main(["policy", "validate", str(policy)]) == 0
    draft = result["best"]["draft"] if result["worth"] else None
    built = build(EngineConfig(model=str(target_path), draft=draft, policy=(str(policy),)))
    assert built.core.controller.default == "doctor"
    program, command, *served = shlex.split(result["serve"])
    assert (program, command) == ("adaptspec", "serve")
    parser = ArgumentParser()
    serve_command.add_arguments(parser)
    assert engine_config(parser.parse_args(served)) == EngineConfig(
        model=str(target_path), draft=draft, policy=(str(policy),), dtype="float32", threads=1, max_model_len=96
    )


@pytest.mark.whole
def test_people_read_the_verdict_even_if_the_policy_cannot_be_written(
    target_path: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes went into it."""
    line = ["doctor", "--model", str(target_path), "--draft", "none", "--prompts", str(prompts), "--tokens", "8"]
    line += ["--seconds", "20"]
    assert main(line) == 0
    assert "--write policy.yaml" in capsys.readouterr().out
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))  # no file can grow
    try:
        status = main([*line, "--write", str(tmp_path / "policy.yaml")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    shown = capsys.readouterr()
    assert status == 2
    assert shown.out.startswith(("Speculate with ", "Do not speculate: "))
    assert "would help" in shown.out
    assert "choose another file" in shown.err


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
