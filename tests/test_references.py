"""Kept figures: found by what they were made of, and found out where they are no longer true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from adaptspec.simulation.cost_profiles import load_costs
from tests import references
from tests.references import CHECKED, References, digest, fixed_goodput
from tests.simulation.test_goodput_on_tapes import CPU, WORLD, lasting


@dataclass(frozen=True)
class Made:
    name: str
    values: Any


def test_whatever_differs_has_a_digest_of_its_own() -> None:
    inputs: list[object] = ["a", 1, 1.0, (1, 2), [1, 2], (12,), Made("a", np.arange(3)), Made("a", np.arange(3.0))]
    inputs += [Made("a", np.arange(3)[::-1]), Made("b", np.arange(3)), {"a": 1}, {"a": 2}, {"b": 1}, None, (None,)]
    assert len({digest(one) for one in inputs}) == len(inputs)
    assert digest(Made("a", np.arange(3))) == digest(Made("a", np.arange(3)))
    with pytest.raises(AssertionError, match="Machine made of"):
        digest(type("Machine", (), {})())


def test_what_is_kept_is_not_computed_and_what_is_not_is() -> None:
    plain = next(n for n in range(1000) if int(digest(n), 16) % CHECKED)
    figures = References({digest(plain): 5.0})
    assert figures.get(lambda: pytest.fail("it was there"), plain) == 5.0
    assert figures.get(lambda: 7.0, "nobody kept it") == 7.0


def test_figures_that_are_out_of_date_are_noticed() -> None:
    """One in so many is computed all the same."""
    checked = next(n for n in range(1000) if int(digest(n), 16) % CHECKED == 0)
    figures = References({digest(checked): 5.0})
    assert figures.get(lambda: 5.0, checked) == 5.0
    with pytest.raises(AssertionError, match=r"python -m tests\.references"):
        figures.get(lambda: 5.1, checked)


def test_the_tests_find_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One figure stands for all: with inputs that differ by a field, every run would compute two thousand of them."""
    monkeypatch.setattr(references, "replay", lambda *_: pytest.fail("not kept; python -m tests.references"))
    fixed_goodput(7, "draft-model", lasting("chat", 4).stream, load_costs(CPU), WORLD)
