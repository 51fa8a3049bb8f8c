"""vLLM's speculative configuration becomes the same depths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.control.importing.foreign import policy_text
from adaptspec.control.importing.vllm import import_vllm
from adaptspec.control.spec import PolicySpec, parse_policy_spec
from adaptspec.errors import PolicyError


def imported(tmp_path: Path, config: object) -> PolicySpec:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    return parse_policy_spec(policy_text(import_vllm(path)))


def test_a_fixed_number_of_tokens(tmp_path: Path) -> None:
    """With the draft model, which a policy does not hold: the remark says where it goes."""
    config = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4}
    spec = imported(tmp_path, config)
    assert spec.spec.choose.model_dump() == {"algorithm": "static", "depth": 4}
    assert spec.drafters == ("draft-model",)
    assert "--draft 'org/draft'" in policy_text(import_vllm(tmp_path / "c.json"))


def test_a_schedule_is_held_to_the_fixed_number(tmp_path: Path) -> None:
    """As vLLM does."""
    schedule = [[5, 16, 2], [1, 4, 7]]
    spec = imported(tmp_path, {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": schedule})
    assert spec.spec.choose.model_dump() == {"algorithm": "batch-table", "schedule": [[1, 4, 5], [5, 16, 2]]}


@pytest.mark.parametrize("more", [{"method": "ngram"}, {"prompt_lookup_max": 4, "prompt_lookup_min": 2}])
def test_lookup(tmp_path: Path, more: dict[str, object]) -> None:
    """Said, or meant by the lengths of n-grams."""
    spec = imported(tmp_path, {"num_speculative_tokens": 3, "disable_by_batch_size": 32, **more})
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
def test_what_cannot_be_carried_over_is_refused(tmp_path: Path, config: object, said: str) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(PolicyError, match=said):
        imported(tmp_path, config)
