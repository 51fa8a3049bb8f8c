"""SGLang's own plugin loader, configuration and AdaptiveController, with a policy where it has a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.sglang.conftest import ROOT, Program

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]

MODEL = ROOT / "adaptspec" / "models" / "bundled" / "target"
POLICY = ROOT / "policies" / "goodput.yaml"
STOCK = {"1": {"candidate_steps": [0, 1, 3]}}
PARAMS = "srt/speculative/adaptive_spec_params.py"
RUNTIME = "srt/speculative/adaptive_runtime_state.py"
# What has another name or form in a copy of SGLang, as [file, text, other text], and what its refusal says.
MUTANTS = {
    "version": (["", "", "0.6.0"], "this is SGLang 0.6.0, and 0.5.23 was tried"),
    "class": ([PARAMS, "class AdaptiveSpeculativeParams", "class AdaptiveParams"], "AdaptiveSpeculativeParams"),
    "its parameter": ([PARAMS, "cfg_path: str | None = None,\n    ):", "path: str | None = None,\n    ):"], "cfg_path"),
    "function": (
        [PARAMS, "def resolve_candidate_steps_from_config", "def candidate_steps_of"],
        "resolve_candidate_steps_from_config",
    ),
    "reason": ([PARAMS, "def adaptive_unsupported_reason", "def why_not"], "adaptive_unsupported_reason"),
    "asked": ([RUNTIME, "get_steps_for_batch", "steps_for_batch"], "AdaptiveSpecPolicy.get_steps_for_batch"),
    "told": ([RUNTIME, "num_correct_drafts_per_req", "accepted"], "num_correct_drafts_per_req"),
    "more asked": (
        [RUNTIME, "    def set_cuda_graph_bs", "    def reset(self) -> None: ...\n    def set_cuda_graph_bs"],
        "AdaptiveSpecPolicy asks for reset",
    ),
    "batch": (
        [RUNTIME, "def activate_step_by_batch(self, batch_size", "def activate_step_by_batch(self, size"],
        "size",
    ),
    "context": (["srt/runtime_context.py", "def get_server_args()", "def get_args()"], "get_server_args"),
    "view": (
        ["srt/arg_groups/model_override_base.py", "def resolving_view(", "def resolving_view(source, "],
        "resolving_view",
    ),
}


def _with(path: object, *more: str) -> list[str]:
    return ["--speculative-adaptive-config", str(path), *more]


@pytest.fixture(scope="module")
def started(program: Program, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("configurations")
    (folder / "own.json").write_text(json.dumps(STOCK))
    text = POLICY.read_text()
    (folder / "wrong.yaml").write_text(text.replace("choose: goodput", "choose: goodptu"))
    (folder / "lossy.yaml").write_text(text + "  verification: {method: typical, lossy: true}\n")
    (folder / "tiers.yml").write_text(text.replace("max-depth: 12", "tiers: [off, 2, 4]"))
    cases = {
        "policy": _with(POLICY),
        "tiers": _with(folder / "tiers.yml"),
        "none": [],
        "own": _with(folder / "own.json"),
        "wrong": _with(folder / "wrong.yaml"),
        "lossy": _with(folder / "lossy.yaml"),
        "absent": _with(folder / "absent.yaml"),
        "raises": _with(POLICY),
        "ranks": _with(POLICY, "--tp-size", "2"),
        "wide": _with(POLICY, "--speculative-eagle-topk", "4"),
        "other steps": _with(POLICY, "--speculative-num-steps", "4"),
    }
    return program("started", MODEL, json.dumps(cases), timeout=600)


def test_a_policy_goes_through_all_places_that_read_the_configuration(started: dict[str, Any]) -> None:
    """The configuration's steps, the widest draft, the rows of the buffer of logits, and what chooses steps."""
    told = started["policy"]
    assert told["asked"] == "PolicySteps"
    assert told["adaptive"] is True
    assert (told["steps"], told["widest"], told["rows"]) == (3, 8, 64)
    assert list(told["built"]) == ["0", "1", "3", "5", "7"]
    assert all(sizes == [1, 2, 4, 8, 16, 32] for sizes in told["built"].values())
    told = started["tiers"]
    assert (told["asked"], told["widest"], told["rows"], list(told["built"])) == ("PolicySteps", 5, 40, ["0", "2", "4"])


def test_what_does_not_hold_inside_sglang_is_said_with_line_and_column(started: dict[str, Any]) -> None:
    said = "\n".join(started["policy"]["log"])
    assert f"{POLICY}:12:11: spec.choose: SGLang has one depth for the whole batch" in said
    assert f"{POLICY}:11:27: spec.drafters.1: ngram is left out" in said


def test_without_a_policy_sglang_is_as_it_is(started: dict[str, Any]) -> None:
    assert started["none"]["asked"] == started["own"]["asked"] == "AdaptiveSpeculativeParams"
    assert started["none"]["built"]["7"] == [1, 2, 4]  # its own table by batch size
    assert list(started["own"]["built"]) == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("wrong", "spec.choose: there is no algorithm"),
        ("lossy", "typical is lossy"),
        ("absent", "absent.yaml"),
        ("ranks", "its ranks would decide apart (tp_size=2)"),
        ("wide", "only topk=1 is supported"),
        ("other steps", "--speculative-num-steps=4 is not in the adaptive config candidate_steps [0, 1, 3, 5, 7]"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_the_start(started: dict[str, Any], case: str, said: str) -> None:
    assert said in started[case]["refused"]


def test_a_plugin_that_raises_is_seen(started: dict[str, Any]) -> None:
    """SGLang logs it and goes on; its own way to choose steps must not take the policy's place."""
    told = started["raises"]
    assert "asked" not in told
    assert told["refused"].startswith("JSONDecodeError")
    assert any(line.startswith("Failed to execute general plugin: adaptspec") for line in told["log"])


def test_another_sglang_is_refused_by_name(program: Program) -> None:
    """Each copy has one thing otherwise, and nobody serves with it."""
    changes = {name: change for name, (change, _) in MUTANTS.items()}
    told = program("mutants", MODEL, POLICY, json.dumps(changes), timeout=800)
    for name, (_, said) in MUTANTS.items():
        refused, log = told[name].get("refused", ""), "\n".join(told[name]["log"])
        assert refused, name
        assert said in refused or said in log, (name, refused, log)
        assert "policies are refused here" in log, name


@pytest.fixture(scope="module")
def scripted(program: Program) -> dict[str, Any]:
    return program("scripted", MODEL, POLICY, timeout=600)


@pytest.mark.parametrize("lag", [0, 1])
def test_steps_follow_the_world_by_the_policy(scripted: dict[str, Any], lag: int) -> None:
    """By SGLang's controller, synchronously and with the outcome one step late; the hours between are nobody's."""
    fixed = [told["rates"] for name, told in scripted.items() if name.startswith("static")]
    told = scripted[f"policy lag {lag}"]
    assert told["errors"] == 0
    shares = [mine / max(others) for mine, *others in zip(told["rates"], *fixed, strict=True)]
    assert min(shares[:5]) > 0.8, shares
    assert max(told["last"]) == 7  # after drafts that never paid it tries ever more rarely, and comes back
    assert told["here"] == 1  # rows of batches that are over have gone


def test_what_fails_in_a_policy_costs_no_step(scripted: dict[str, Any]) -> None:
    assert scripted["raises"]["detached"] is True
    assert set(scripted["raises"]["last"]) == {3}  # what SGLang began with
    assert scripted["third"]["errors"] > 500
    assert scripted["third"]["detached"] is False
    assert set(scripted["deep"]["last"]) == {7}


def test_the_wheel_declares_the_plugin(installed: Path) -> None:
    (declared,) = installed.glob("adaptspec-*.dist-info/entry_points.txt")
    assert "[sglang.srt.plugins]\nadaptspec = adaptspec.hosts.sglang.plugin:register" in declared.read_text()
