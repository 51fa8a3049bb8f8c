"""Other engines' configurations become policies that do the same, or are refused where they cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.commands.policy_import import import_sglang, import_vllm, policy_text
from adaptspec.control.algorithms.depth_rules import EmaTiersSpec
from adaptspec.control.language.build import load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import PolicyError

POLICIES = Path(__file__).parents[2] / "policies"


def sglang(tmp_path: Path, config: object) -> EmaTiersSpec:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config, indent=1))
    choose = parse_policy_spec(import_sglang(path)).spec.choose
    assert isinstance(choose, EmaTiersSpec)
    return choose


def test_ladders_by_batch_size(tmp_path: Path) -> None:
    """The layout SGLang ships: general settings beside keys that are batch sizes."""
    ladder = {"candidate_steps": [3, 1, 5], "up_hysteresis": 0.5, "ceiling_coeff": 0}
    choose = sglang(tmp_path, {"ema_alpha": 0.3, "1": ladder, "8": {"candidate_steps": [0], "down_hysteresis": 0.0}})
    assert (choose.alpha, choose.warmup, choose.interval) == (0.3, 10, 5)
    assert choose.ladders is not None
    assert choose.ladders[1].tiers == [1, 3, 5]
    assert (choose.ladders[1].down_hysteresis, choose.ladders[1].up_hysteresis) == (-0.25, 0.5)
    assert (choose.ladders[8].tiers, choose.ladders[8].down_hysteresis) == ([0], 0.0)


def test_one_ladder_for_all(tmp_path: Path) -> None:
    """The older layout, and the one that names tiers by batch size only."""
    choose = sglang(tmp_path, {"candidate_steps": [1, 3, 7], "warmup_batches": 4, "update_interval": 2})
    assert (choose.warmup, choose.interval) == (4, 2)
    assert choose.ladders is not None
    assert list(choose.ladders) == [1]
    choose = sglang(tmp_path, {"batch_size_to_candidate_steps": {"1": [1, 3], "16": [0, 1]}, "down_hysteresis": 0.1})
    assert choose.ladders is not None
    assert {size: ladder.tiers for size, ladder in choose.ladders.items()} == {1: [1, 3], 16: [0, 1]}
    assert choose.ladders[16].down_hysteresis == 0.1


def test_a_file_without_ladders_means_the_shipped_ones(tmp_path: Path) -> None:
    """As the policy sglang-ema has them."""
    assert sglang(tmp_path, {}) == load_policy_spec(POLICIES / "sglang-ema.yaml").spec.choose


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"ema_alfa": 0.2}, r"c.json:2:2: ema_alfa: unknown key \(did you mean 'ema_alpha'\?\)"),
        ({"ema_alpha": "0.2"}, "c.json:2:15: ema_alpha: input should be a valid number"),
        ({"candidate_steps": [1, 99]}, "c.json:4:3: candidate_steps.1: input should be less than or equal to 64"),
        ({"8": {"candidate_steps": [1]}}, "must be for batch size 1"),
        ({"1": {"candidate_step": [1]}}, r"1.candidate_step: unknown key \(did you mean 'candidate-?_?steps'\?\)"),
        ({"1": {"candidate_steps": [1], "ceiling_coeff": 1.5}}, "1.ceiling_coeff: a cap by the expected length"),
        ({"1": {"candidate_steps": [1]}, "candidate_steps": [1]}, "only one"),
        ({"01": {"candidate_steps": [1]}}, "01"),
    ],
)
def test_what_sglang_has_alone_is_refused(tmp_path: Path, config: object, said: str) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(PolicyError, match=said):
        sglang(tmp_path, config)


def vllm(tmp_path: Path, config: object) -> PolicySpec:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    return parse_policy_spec(import_vllm(path))


def test_a_fixed_number_of_tokens(tmp_path: Path) -> None:
    """With the draft model, which a policy does not hold: the remark says where it goes."""
    config = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4}
    spec = vllm(tmp_path, config)
    assert spec.spec.choose.model_dump() == {"algorithm": "static", "depth": 4}
    assert spec.drafters == ("draft-model",)
    assert "--draft 'org/draft'" in import_vllm(tmp_path / "c.json")


def test_a_schedule_is_held_to_the_fixed_number(tmp_path: Path) -> None:
    """As vLLM does."""
    schedule = [[5, 16, 2], [1, 4, 7]]
    spec = vllm(tmp_path, {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": schedule})
    assert spec.spec.choose.model_dump() == {"algorithm": "batch-table", "schedule": [[1, 4, 5], [5, 16, 2]]}


@pytest.mark.parametrize("more", [{"method": "ngram"}, {"prompt_lookup_max": 4, "prompt_lookup_min": 2}])
def test_lookup(tmp_path: Path, more: dict[str, object]) -> None:
    """Said, or meant by the lengths of n-grams."""
    spec = vllm(tmp_path, {"num_speculative_tokens": 3, "disable_by_batch_size": 32, **more})
    assert spec.drafters == ("ngram",)
    assert spec.spec.guard.max_batch_size == 32


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "c.json:1:1: give num_speculative_tokens"),
        ({"num_speculative_tokens": 65}, "c.json:1:28: num_speculative_tokens: input should be less than"),
        (
            {"num_speculative_tokens": 3, "method": "eagle3"},
            "method: 'eagle3' is not supported; there are: draft_model",
        ),
        ({"num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: unknown key"),
        ({"num_speculative_tokens_per_batch_size": [[2, 3, 1]]}, "must start at batch size 1"),
    ],
)
def test_what_vllm_has_alone_is_refused(tmp_path: Path, config: object, said: str) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(PolicyError, match=said):
        vllm(tmp_path, config)


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    """YAML has no tabs, JSON does."""
    path = tmp_path / "c.json"
    path.write_text('{\n\t"num_speculative_tokens":\t3,\t"method": null\n}')
    assert parse_policy_spec(import_vllm(path)).spec.choose.model_dump() == {"algorithm": "static", "depth": 3}


@pytest.mark.parametrize(("text", "said"), [("[1]", "c.json:1:1: a mapping"), ("{", "c.json:1:2: not YAML")])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(PolicyError, match=said):
        import_sglang(path)


def test_what_is_written_is_a_policy_with_completion() -> None:
    """Editors need the first line; readers the remarks."""
    text = policy_text("x", "y", {"choose": {"algorithm": "static", "depth": 2}}, ["Why."])
    assert text.startswith("# yaml-language-server: $schema=./policy.schema.json\n# Why.\n")
    assert parse_policy_spec(text).name == "x"
