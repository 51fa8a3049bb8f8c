"""`adaptspec host check` says what of a policy holds in another engine."""

from __future__ import annotations

import pytest

from adaptspec.cli import main


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["goodput", "--for", "vllm", "--depth", "5"], 0, "goodput.yaml:10:14: spec.max-depth: vLLM drafts up to 5"),
        (["per-task", "--for", "sglang"], 0, "spec.tasks: SGLang does not report which requests are in a batch"),
        (["lookahead", "--for", "vllm"], 1, "drafts with lookahead, which vLLM does not have here"),
        (["goodput-ngram", "--for", "vllm", "--method", "ngram"], 0, ""),
        (["off", "--for", "vllm"], 0, ""),
        (["goodput", "--for", "vllm", "--method", "suffix"], 1, "drafters of the method suffix"),
        (["goodput", "--for", "vllm", "--method", "custom_class"], 1, "drafters of the method custom_class"),
        (
            ["goodput", "--for", "vllm", "--method", "eagle3"],
            0,
            "ngram is left out: vLLM drafts with draft-model (eagle3)",
        ),
    ],
)
def test_notes_are_printed(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, with its place; 1 where it is refused."""
    assert main(["host", "check", *arguments]) == status
    printed = capsys.readouterr()
    assert said in printed.out
    assert printed.out or f"all of {arguments[0]} holds" in printed.err


def test_a_policy_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "check", "nothing", "--for", "vllm"]) == 2
    assert "there is no policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draft", "d", "--method", "suffix"], "drafters of the method suffix"),
        (["--draft", "d", "--method", "custom_class"], "drafters of the method custom_class"),
        (["--draft", "d", "--method", "eagle3", "--skip-draft"], "skip-draft is for draft models and MTP"),
        (["--method", "eagle3"], "name it with --draft"),
        ([], "name it with --draft"),
    ],
)
def test_no_line_is_printed_that_vllm_would_not_start_by(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the scheduler refuses at the start is refused here by the same rules."""
    assert main(["host", "vllm", "--policy", "goodput", "--model", "m", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert not printed.out


@pytest.mark.parametrize("arguments", [["--draft", "d"], ["--method", "mtp", "--skip-draft"], ["--method", "ngram"]])
def test_what_can_start_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    policy = "goodput-ngram" if "ngram" in arguments else "goodput"
    assert main(["host", "vllm", "--policy", policy, "--model", "m", *arguments]) == 0
    assert "num_speculative_tokens_per_batch_size" in capsys.readouterr().out
