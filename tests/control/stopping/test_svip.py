"""SVIP is its inequality: stop when sqrt(scale x entropy) > threshold."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.stopping.svip import SvipStopSpec, svip_stop
from tests.control.stopping.asking import ask

CHOICE = Choice(np.full(1, 7), np.zeros(1, dtype=np.int64))


@given(entropy=st.floats(0.0, 12.0), scale=st.floats(0.01, 1.0), threshold=st.floats(0.0, 2.0))
def test_it_is_the_inequality(entropy: float, scale: float, threshold: float) -> None:
    assume(abs(math.sqrt(scale * entropy) - threshold) > 1e-9)
    going = ask(svip_stop(scale, threshold).begin(CHOICE), [0.5], entropy=[entropy])
    assert going == [math.sqrt(scale * entropy) <= threshold]


def test_the_defaults_are_the_papers() -> None:
    """sqrt(0.15 H) > 0.3 is H > 0.6 nats."""
    rule = SvipStopSpec(rule="svip").build(None)
    assert not rule.learns
    assert ask(rule.begin(CHOICE), [0.5], entropy=[0.59]) == [True]
    assert ask(rule.begin(CHOICE), [0.5], entropy=[0.61]) == [False]
