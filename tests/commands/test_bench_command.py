"""`adaptspec bench`: its exit status tells scripts what its text tells people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.models.source import PINNED

LOSSY = """
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: lossy}
spec:
  choose: {algorithm: static, depth: 4}
  drafters: [draft-model]
  verification: {method: threshold, lossy: true, high: 0.0, low: 0.0}
"""


@pytest.mark.whole
@pytest.mark.parametrize("lossy", [False, True])
def test_the_exit_status_says_whether_answers_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lossy: bool
) -> None:
    """One object on standard output. A policy that keeps wrong tokens fails, and nothing else does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy = tmp_path / "lossy.yaml"
    policy.write_text(LOSSY)
    more = ["--policy", str(policy)] if lossy else []
    assert main(["bench", "exactness", "--prompts", "1", "--tokens", "12", "--json", *more]) == lossy
    result = json.loads(capsys.readouterr().out)
    assert (result["setup"]["model"], result["setup"]["runner"]) == ("bundled", "torch")
    assert {row["setting"] for row in result["settings"] if row["different"]} == ({"lossy"} if lossy else set())
    speculating = [row for row in result["settings"] if row["setting"].startswith("static")]
    assert all(row["accepted"] > 0 for row in speculating)


def test_an_unknown_policy_is_an_error_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists the names, no traceback."""
    assert main(["bench", "speed", "--policy", "fastest"]) == 2
    assert "shipped are: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("speed --temperature -1", "temperature is -1"),
        ("record --out tape.npz --temperatures nan", "temperature is nan"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("adaptspec.engine.build.build", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["bench", *line.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.whole
def test_a_model_that_a_variable_names_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the bundled one, where the usual one was pulled."""
    pulled = tmp_path / "adaptspec/models/smollm2" / PINNED["smollm2"].file
    pulled.parent.mkdir(parents=True)
    pulled.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ADAPTSPEC_MODEL", "bundled")
    line = ["bench", "speed", "--draft", "none", "--tokens", "2", "--policy", "off", "--depths", "--json"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["setup"]["model"] == "bundled"


@pytest.mark.parametrize("benchmark", ["speed", "exactness", "chats", "record"])
@pytest.mark.parametrize("flag", ["--prompts", "--tokens"])
def test_no_benchmark_passes_without_an_answer(benchmark: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", benchmark, flag, "0"])
    assert f"argument {flag}: give a whole number of at least 1" in capsys.readouterr().err


def test_chats_need_prompts_for_their_system_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps({"task": "chat", "source": "own", "prompt": "Hello"}))
    assert main(["bench", "chats", "--workloads", str(tmp_path)]) == 2
    assert "chats need at least 3 prompts" in capsys.readouterr().err


@pytest.mark.whole
def test_speed_of_policies_needs_no_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--draft none` means what it means when a server starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices = ["--draft", "none", "--prompts", "1", "--tokens", "2", "--json", "--depths"]
    assert main(["bench", "speed", "--policy", "goodput-ngram", *choices]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["contenders"]] == ["off", "goodput-ngram"]
