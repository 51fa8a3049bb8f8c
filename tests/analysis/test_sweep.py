"""The groups of a sweep, and the intervals over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.analysis.intervals import Ratio
from adaptspec.analysis.sweep import split
from adaptspec.simulation.tape import join
from tests.policies.tapes import made_tape


def test_a_prompt_is_in_one_group_only() -> None:
    """Also where it was recorded at several temperatures: groups are to be independent."""
    tape = made_tape(count=7)
    both = join([tape, tape])
    both = replace(both, ids=tuple(f"{name}@{temperature}" for temperature in ("0", "0.8") for name in tape.ids))
    groups = split(both, 4)
    prompts = [{name.partition("@")[0] for name in group.ids} for group in groups]
    assert sum(map(len, prompts)) == len(set().union(*prompts)) == len(tape)
    assert sum(map(len, groups)) == len(both)
    assert max(map(len, prompts)) - min(map(len, prompts)) <= 1


def test_one_group_has_no_interval() -> None:
    """It shows no difference, however large its ratio is."""
    ratio = Ratio.of_groups(np.array([1.2]))
    assert str(ratio) == "1.20"
    assert not ratio.differs
    assert ratio.to_json() == {"mean": pytest.approx(1.2), "low": None, "high": None}


@pytest.mark.parametrize("groups", [4, 8, 16])
def test_an_interval_misses_what_it_estimates_as_rarely_as_it_says(groups: int) -> None:
    """Also over few groups, of which a plain bootstrap makes too much."""
    rng = np.random.default_rng(groups)
    missed = [Ratio.of_groups(np.exp(rng.normal(0.0, 0.1, groups))).differs for _ in range(400)]
    assert 0.01 < np.mean(missed) < 0.09
    assert all(Ratio.of_groups(np.exp(rng.normal(0.3, 0.1, 16))).differs for _ in range(20))
