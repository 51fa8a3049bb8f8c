"""Rounds that run while the text of the last one is read: the same answers, and the same is learned."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exactness.harness import KINDS, SHAPES, Case, Script, hold, run
from tests.exactness.worlds import Worlds

SCRIPT_OF = st.builds(
    Script,
    requests=st.integers(1, 6),
    rows=st.integers(1, 4),
    late=st.integers(0, 3),
    abort=st.integers(0, 20),
    short=st.booleans(),
    fails=st.integers(0, 12),
    overlaps=st.booleans(),
)
CASE_OF = st.builds(
    Case,
    shape=st.sampled_from(SHAPES),
    request=st.sampled_from(tuple(KINDS)),
    temperature=st.sampled_from((0.0, 0.8)),
    seed=st.integers(0, 999),
)


@settings(max_examples=80)
@given(case=CASE_OF, script=SCRIPT_OF)
def test_overlapping_rounds_give_the_same_answers(worlds: Worlds, case: Case, script: Script) -> None:
    """Stops, caches that are too small, aborts, a pass that fails: tokens of a request that has ended are dropped."""
    world = worlds.of("table", case.drafter, short=script.short)
    result = run(case, world, script)
    hold(result, world, script)
    # A request that is alone in the round that fails ends with it.
    assert sum(one.error is not None for one in result.done.values()) <= (script.fails > 0)


@settings(max_examples=20)
@given(rows=st.sampled_from((1, 3)), depth=st.integers(0, 5), seed=st.integers(0, 999))
def test_overlapping_rounds_teach_the_same(worlds: Worlds, rows: int, depth: int, seed: int) -> None:
    """Of the same rounds an algorithm learns the same, though the record of each comes a round later."""
    case = Case(depths=str(depth), seed=seed, temperature=0.8, learns=True)
    learned = []
    for overlaps in (False, True):
        world = worlds.of("table", "draft-model")
        script = Script(requests=3 if rows == 3 else 6, rows=rows, overlaps=overlaps)
        result = run(case, world, script)
        learned.append(result.core.controller.learned_policies()["dictated"].learned())
    for name, known in learned[0].items():
        # Counts fade with every settlement, which may come a round later.
        np.testing.assert_allclose(learned[1][name], known, rtol=0.01, atol=0.01, err_msg=name)
