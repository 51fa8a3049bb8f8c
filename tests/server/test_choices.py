"""Seeds of several answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.server.choices import seed_of_choice
from adaptspec.types import MAX_SEED, SamplingParams


@given(seed=st.integers(-MAX_SEED, MAX_SEED))
def test_every_choice_has_a_seed_of_its_own(seed: int) -> None:
    """All valid, all different, the first the request's own."""
    seeds = [seed_of_choice(seed, choice) for choice in range(128)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 128
    assert all(SamplingParams(seed=one).seed == one for one in seeds)


def test_no_seed_stays_none() -> None:
    """The engine draws one for each."""
    assert seed_of_choice(None, 3) is None
