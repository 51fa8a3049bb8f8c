"""Tuning: the halves share no prompt, the search is deterministic, and only what the other half shows is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.analysis.search_space import Range, parse_parameter
from adaptspec.analysis.tune import Tuned, split, tune
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.errors import TapeError
from adaptspec.simulation.machine import load_machine
from adaptspec.simulation.scenarios import Schedule
from adaptspec.simulation.tape import join
from tests.policies.tapes import made_tape

STATIC = """# deep on purpose
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: made}
spec:
  choose: {algorithm: static, depth: 7}  # too deep
"""
DEPTH = Range(("spec", "choose", "depth"), 1, 12, integer=True)


def _tune(text: str = STATIC, seed: int = 0, acceptance: float = 0.5) -> Tuned:
    tape = made_tape({"code": acceptance, "chat": acceptance}, count=8, length=48)
    return tune(text, [DEPTH], tape, [Schedule((1,))], [load_machine("cpu-2-cores")], budget=6, seed=seed)


@pytest.fixture(scope="module")
def found() -> Tuned:
    return _tune()


def test_it_finds_what_is_plainly_better_and_keeps_comments(found: Tuned) -> None:
    """Drafting seven tokens of which half are right wastes most: a shallow depth wins on prompts it never saw, too."""
    assert found.improves
    assert found.after > found.before
    assert 1.0 < found.low < found.gain < found.high
    assert parse_policy_spec(found.best.text).spec.choose.depth < 7  # type: ignore[union-attr]  # static has one
    assert found.best.text.startswith("# deep on purpose\n")
    assert found.best.text.endswith("# too deep\n")
    assert found.best.folds == 6
    assert found.to_json()["values"] == {"spec.choose.depth": found.best.values["spec", "choose", "depth"]}


def test_luck_where_searched_is_not_claimed() -> None:
    """Seeds of a random policy make no difference but luck: some look better where searched, none is confirmed."""
    text = STATIC.replace("static, depth: 7", "thompson, seed: 2")
    tape = made_tape({"code": 0.6, "json": 0.8}, count=6, length=48)
    seeds = parse_parameter("spec.choose.seed=1..100000")
    claimed = [
        tune(text, [seeds], tape, [Schedule((1,))], [load_machine("cpu-2-cores")], budget=5, seed=seed).improves
        for seed in range(3)
    ]
    assert not any(claimed)


def test_the_half_that_was_not_searched_decides() -> None:
    """Every second prompt is drafted well, the others badly: what pays in one half loses in the other."""
    good, bad = (made_tape({"code": rate}, count=12, length=32, seed=seed) for seed, rate in enumerate((0.98, 0.02)))
    both = join([good, replace(bad, ids=tuple(f"bad-{name}" for name in bad.ids))])
    tape = both.take([half + at for at in range(12) for half in (0, 12)])
    text = STATIC.replace("depth: 7", "depth: 3")
    found = tune(text, [DEPTH], tape, [Schedule((1,))], [load_machine("cpu-2-cores")], budget=6)
    assert found.best.gain > 1.05
    assert max(found.gains) < 1.0
    assert found.after < found.before
    assert not found.improves


def test_a_prompt_is_in_one_half_only() -> None:
    """Also where it was recorded at several temperatures: the other half must be new. Too few prompts are refused."""
    tape = made_tape(count=7)
    both = join([tape, tape])
    both = replace(both, ids=tuple(f"{name}@{temperature}" for temperature in ("0", "0.8") for name in tape.ids))
    halves = split(both, 2)
    prompts = [{name.partition("@")[0] for name in half.ids} for half in halves]
    assert not prompts[0] & prompts[1]
    assert sum(len(half) for half in halves) == len(both)
    assert abs(len(halves[0]) - len(halves[1])) <= 2
    with pytest.raises(TapeError, match="at least 12 prompts"):
        tune(STATIC, [DEPTH], made_tape({"code": 0.5}, count=5), [Schedule((1,))], [load_machine("cpu-2-cores")])
