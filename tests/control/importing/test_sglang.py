"""SGLang's adaptive configuration becomes the same ladders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.control.choosers.ema_tiers import EmaTiersSpec
from adaptspec.control.importing.foreign import policy_text
from adaptspec.control.importing.sglang import import_sglang
from adaptspec.control.spec import load_policy_spec, parse_policy_spec
from adaptspec.errors import PolicyError

POLICIES = Path(__file__).parents[3] / "policies"


def imported(tmp_path: Path, config: object) -> EmaTiersSpec:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config, indent=1))
    choose = parse_policy_spec(policy_text(import_sglang(path))).spec.choose
    assert isinstance(choose, EmaTiersSpec)
    return choose


def test_ladders_by_batch_size(tmp_path: Path) -> None:
    """The layout SGLang ships: general settings beside keys that are batch sizes."""
    ladder = {"candidate_steps": [3, 1, 5], "up_hysteresis": 0.5, "ceiling_coeff": 0}
    choose = imported(tmp_path, {"ema_alpha": 0.3, "1": ladder, "8": {"candidate_steps": [0], "down_hysteresis": 0.0}})
    assert (choose.alpha, choose.warmup, choose.interval) == (0.3, 10, 5)
    assert choose.ladders is not None
    assert choose.ladders[1].tiers == [1, 3, 5]
    assert (choose.ladders[1].down_hysteresis, choose.ladders[1].up_hysteresis) == (-0.25, 0.5)
    assert (choose.ladders[8].tiers, choose.ladders[8].down_hysteresis) == ([0], 0.0)


def test_one_ladder_for_all(tmp_path: Path) -> None:
    """The older layout, and the one that names tiers by batch size only."""
    choose = imported(tmp_path, {"candidate_steps": [1, 3, 7], "warmup_batches": 4, "update_interval": 2})
    assert (choose.warmup, choose.interval) == (4, 2)
    assert choose.ladders is not None
    assert list(choose.ladders) == [1]
    choose = imported(tmp_path, {"batch_size_to_candidate_steps": {"1": [1, 3], "16": [0, 1]}, "down_hysteresis": 0.1})
    assert choose.ladders is not None
    assert {size: ladder.tiers for size, ladder in choose.ladders.items()} == {1: [1, 3], 16: [0, 1]}
    assert choose.ladders[16].down_hysteresis == 0.1


def test_a_file_without_ladders_means_the_shipped_ones(tmp_path: Path) -> None:
    """As the policy sglang-ema has them."""
    assert imported(tmp_path, {}) == load_policy_spec(POLICIES / "sglang-ema.yaml").spec.choose


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
def test_what_cannot_be_carried_over_is_refused(tmp_path: Path, config: object, said: str) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(PolicyError, match=said):
        imported(tmp_path, config)
