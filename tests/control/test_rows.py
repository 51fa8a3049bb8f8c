"""A policy's drafter numbers against the engine's: lags, scores and choices land where they belong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.rows import DrafterNumbers
from tests.control.helpers import record, signals

ENGINE = ("draft-model", "ngram", "heads")


@given(st.permutations(ENGINE).flatmap(lambda order: st.integers(1, 3).map(lambda n: tuple(order[:n]))))
def test_everything_a_policy_sees_is_in_its_own_order(wanted: tuple[str, ...]) -> None:
    numbers = DrafterNumbers(wanted, ENGINE)
    cache_gap = np.array([[10, 11], [20, 21], [30, 31]])
    seen = numbers.signals(replace(signals([7, 7]), cache_gap=cache_gap, found=cache_gap + 1))
    places = [ENGINE.index(name) for name in wanted]
    assert seen.cache_gap[: len(wanted)].tolist() == cache_gap[places].tolist()
    assert seen.found[: len(wanted)].tolist() == (cache_gap[places] + 1).tolist()
    own = np.arange(2) % len(wanted)
    engine = numbers.drafter(own)
    assert [ENGINE[i] for i in engine] == [wanted[i] for i in own]
    told = numbers.record(
        replace(record([1, 1], [0, 1], drafter=engine.tolist()), shadow=cache_gap, shadow_drafted=cache_gap)
    )
    assert told.drafter.tolist() == own.tolist()
    assert told.shadow is not None
    assert told.shadow[: len(wanted)].tolist() == cache_gap[places].tolist()
    assert numbers.watched == tuple(places)
