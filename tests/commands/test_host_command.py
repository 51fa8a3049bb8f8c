"""`adaptspec host check` says what of a policy holds in another engine."""

from __future__ import annotations

import pytest

from adaptspec.cli import main


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["goodput", "--for", "vllm", "--depth", "5"], 0, "goodput.yaml:10:14: spec.max-depth: vLLM drafts up to 5"),
        (["per-task", "--for", "sglang"], 0, "spec.tasks: SGLang does not tell requests apart"),
        (["lookahead", "--for", "vllm"], 1, "drafts with lookahead, which vLLM does not have here"),
        (["goodput-ngram", "--for", "vllm", "--method", "ngram"], 0, "spec.verification"),
        (["off", "--for", "vllm"], 0, ""),
    ],
)
def test_notes_are_printed(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, with its place; 1 where it is refused."""
    assert main(["host", "check", *arguments]) == status
    printed = capsys.readouterr()
    assert said in printed.out
    assert printed.out or "all of off holds" in printed.err


def test_a_policy_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "check", "nothing", "--for", "vllm"]) == 2
    assert "there is no policy" in capsys.readouterr().err
