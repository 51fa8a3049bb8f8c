"""Cost profiles survive a round trip, refuse what is no profile by name, and correct impossible times."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.errors import ConfigError
from tests.control.helpers import QUIET

ROWS, TOKENS = (1, 4, 16), (1, 2, 8)
# Version 2 as files hold it since the drafters' later fields were added, and before.
OLDER = {
    "version": 2,
    "rows": [1, 2],
    "tokens": [1, 4],
    "verify": [[0.001, 0.002], [0.0015, 0.003]],
    "drafters": {"draft-model": {"rows": [1, 2], "step_seconds": [0.0002, 0.0003], "catch_up_per_token": 1e-6}},
    "per_cached_token": 1e-8,
    "overhead": 1e-4,
}


def random_profile(seed: int) -> CostProfile:
    """Times that differ by chance alone, up to a hundredfold."""
    rng = np.random.default_rng(seed)
    verify = np.exp(rng.normal(-6.0, 1.5, (len(ROWS), len(TOKENS))))
    steps = np.exp(rng.normal(-8.0, 1.5, len(ROWS)))
    return CostProfile(
        ROWS, TOKENS, tuple(map(tuple, verify.tolist())), {"draft-model": DrafterCost(ROWS, tuple(steps.tolist()))}
    )


def test_a_profile_survives_a_round_trip() -> None:
    profile = replace(
        QUIET.profile(),
        drafters={"draft-model": DrafterCost((1, 4), (2e-4, 3e-4), 1e-6, 5e-5, together=True, reads_along=True)},
    )
    assert CostProfile.from_json(profile.to_json()) == profile


def test_files_of_users_stay_readable() -> None:
    """Additional keys, such as `about`, are no part of the profile; missing ones have defaults."""
    profile = CostProfile.from_json(json.dumps({"about": {"measured": "2026-01-01"}, **OLDER}))
    assert profile.verify == ((0.001, 0.002), (0.0015, 0.003))
    assert profile.drafters["draft-model"] == DrafterCost((1, 2), (0.0002, 0.0003), 1e-6)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1, "rows": [1]}'])
def test_foreign_files_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="record it again"):
        CostProfile.from_json(text)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"overhead": math.nan}, "overhead"),
        ({"per_cached_token": -1e-9}, "per_cached_token"),
        ({"verify": [[math.inf]]}, r"verify\.0\.0"),
        ({"drafters": {"ngram": {"start_seconds": math.nan}}}, r"drafters\.ngram\.start_seconds"),
        ({"drafters": {"ngram": {"catch_up_per_token": "fast"}}}, r"drafters\.ngram\.catch_up_per_token"),
        ({"drafters": {"ngram": {"rows": [1.5]}}}, r"drafters\.ngram\.rows\.0"),
    ],
)
def test_a_field_that_is_no_time_is_refused_by_its_name(changed: dict[str, object], named: str) -> None:
    """A NaN in a small field would make every price NaN: it compares with nothing, so no draft would be chosen."""
    text = json.dumps(json.loads(QUIET.profile().to_json()) | changed)
    with pytest.raises(ConfigError, match=rf"not a cost table \({named}: input should be .*: record it again"):
        CostProfile.from_json(text)


@pytest.mark.parametrize(
    ("rows", "columns", "seconds"),
    [
        ((1, 1), (1,), ((1.0,), (1.0,))),
        ((0, 1), (1,), ((1.0,), (1.0,))),
        ((1,), (1,), ((0.0,),)),
        ((1,), (1,), ((math.nan,),)),
        ((1,), (1, 2), ((1.0,),)),
        ((), (1,), ()),
    ],
)
def test_broken_tables_are_refused(
    rows: tuple[int, ...], columns: tuple[int, ...], seconds: tuple[tuple[float, ...], ...]
) -> None:
    """The target's passes and a drafter's are checked alike, when they are read and before they are used."""
    broken = CostProfile(rows, columns, seconds)
    for refused in (broken.check, lambda: CostModel(broken)):
        with pytest.raises(ConfigError, match="record it again"):
            refused()
    if columns == (1,) and rows:
        steps = DrafterCost(rows, tuple(line[0] for line in seconds))
        with pytest.raises(ConfigError, match="record it again"):
            CostProfile((1,), (1,), ((1.0,),), {"draft-model": steps}).check()


@given(seed=st.integers(0, 2**32 - 1))
def test_plausible_times_rise_with_work_and_hardly_faster(seed: int) -> None:
    """Profiles of busy hours said that one token takes 5.2 ms and two take 2.2, or 2.3 and 7.7."""
    measured = random_profile(seed)
    profile = measured.plausible()
    for times, counts in _lines(profile):
        assert (np.diff(times) >= -1e-12).all()
        assert (times[1:] / times[:-1] <= 2.4 ** np.log2(counts[1:] / counts[:-1]) + 1e-9).all()
    assert (np.array(profile.verify) <= np.array(measured.verify) + 1e-12).all(), "a disturbed time is too long"
    assert np.min(profile.verify) == pytest.approx(np.min(measured.verify))
    assert np.array(profile.plausible().verify) == pytest.approx(np.array(profile.verify))


def test_plausible_times_are_left_as_they_were_measured() -> None:
    assert QUIET.profile().plausible() == QUIET.profile()


def _lines(profile: CostProfile) -> list[tuple[FloatArray, FloatArray]]:
    """Seconds along each axis, with the counts of that axis."""
    verify = np.array(profile.verify)
    steps = np.array(profile.drafters["draft-model"].step_seconds)
    rows, tokens = np.array(ROWS, dtype=np.float64), np.array(TOKENS, dtype=np.float64)
    return [*((line, tokens) for line in verify), *((line, rows) for line in verify.T), (steps, rows)]
