"""The command: its exit status tells scripts what its text tells people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.bench import exactness, quick, side_by_side
from adaptspec.cli import main
from adaptspec.engine.engine_config import EngineConfig


def _exactness(monkeypatch: pytest.MonkeyPatch, unexplained: int) -> int:
    result: dict[str, Any] = {"unexplained": unexplained, "settings": [], "prompts": 10, "tokens": 8}
    result |= {"dtype": "float32", "changed_share": {}}
    monkeypatch.setattr(exactness, "run_exactness", lambda *_, **__: result)
    return main(["bench", "exactness", "--json"])


@pytest.mark.parametrize(("unexplained", "status"), [(0, 0), (3, 1)])
def test_unexplained_divergence_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unexplained: int, status: int
) -> None:
    """A CI job that runs the check goes red when text changed; the result is printed all the same."""
    assert _exactness(monkeypatch, unexplained) == status
    assert json.loads(capsys.readouterr().out)["unexplained"] == unexplained


def test_an_unknown_policy_is_an_error_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists the names, no traceback."""
    assert main(["bench", "quick", "--policy", "fastest"]) == 2
    assert "shipped are: " in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exactness_reports_shares_in_any_data_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    """A changed text is a figure in 16 bits, not a failure; what rounding cannot explain fails everywhere."""

    def result(config: EngineConfig, *_: Any, **__: Any) -> dict[str, Any]:
        shares = {"0": 0.0, "3": 0.125}
        row: dict[str, Any] = {"dtype": config.dtype, "unexplained": 0, "settings": [], "prompts": 8, "tokens": 8}
        return row | {"changed_share": shares}

    monkeypatch.setattr(exactness, "run_exactness", result)
    assert main(["bench", "exactness", "--json", "--dtype", dtype]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == dtype
    assert main(["bench", "exactness", "--dtype", dtype]) == 0
    printed = capsys.readouterr().out
    assert dtype in printed
    assert "12.5% at depth 3" in " ".join(printed.split())


def test_a_disturbed_run_is_shown_beside_the_quiet_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are whole runs, on engines of their own."""
    ratio = {"median": 1.25, "lowest": 1.0, "highest": 1.5}

    def result(*_: Any) -> dict[str, Any]:
        ratios = {"policy_over_plain": ratio}
        sums = {"policy_over_plain": 1.25}
        return {"mean": sums, "worst": sums, "tasks": {"chat": ratios}, "milliseconds_per_token": {"off": 1.5}}

    monkeypatch.setattr(quick, "run_quick", result)
    assert main(["bench", "quick", "--disturb", "--prompts", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("policy over plain") == 2
    assert "beside 2 busy processes" in printed
    assert main(["bench", "quick", "--disturb", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["disturbed"]["mean"] == {"policy_over_plain": 1.25}


def test_policies_are_compared_with_the_draft_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So every figure of a draft has a command."""
    monkeypatch.setattr(side_by_side, "run_side_by_side", lambda config, *_: {"draft": config.draft})
    monkeypatch.setattr(side_by_side, "side_by_side_report", lambda _: [])
    assert main(["bench", "policies", "off", "static-3", "--draft", "first-layers:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"draft": "first-layers:1"}
