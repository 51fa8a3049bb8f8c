"""Predicted outputs: drafts where the output is in the prediction, and back on track after a difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.drafting.drafter import RowStart
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.sampling import RowSampling
from adaptspec.request import SamplingParams
from tests.drafting.test_lookup import propose

TOKENS = st.lists(st.integers(0, 4), max_size=30)
TEXT = list(range(100, 160))
PROMPT = [1, 2, 3]


def _right(output: list[int], predicted: list[int], depth: int = 4) -> int:
    """Output tokens that drafts of `depth` would have got right, one round after another."""
    prediction, done, right = Prediction(predicted, len(PROMPT)), 0, 0
    while done < len(output):
        prediction.read(PROMPT + output[:done], len(PROMPT) + done)
        kept = 0
        for guess, token in zip(prediction.continuation(depth), output[done:], strict=False):
            if guess != token:
                break
            kept += 1
        right += kept
        done += kept + 1
    return right


def test_what_comes_as_predicted_is_drafted_from_the_first_token_on() -> None:
    """60 tokens in rounds of 4 drafts and a bonus: 48 drafts, all right."""
    assert _right(TEXT, TEXT) == 48


@pytest.mark.parametrize(
    "output",
    [
        [*TEXT[:20], 7, *TEXT[21:]],
        [*TEXT[:20], 7, 8, 9, *TEXT[20:]],
        TEXT[:20] + TEXT[26:],
        TEXT[:20] + TEXT[45:] + TEXT[20:45],
        [7, *TEXT],
    ],
    ids=["replaced", "added", "left out", "moved", "begun otherwise"],
)
def test_it_comes_back_after_a_difference(output: list[int]) -> None:
    """Drafts are lost only around it."""
    assert _right(output, TEXT) >= 0.8 * len(output) - 8


@given(output=TOKENS, predicted=TOKENS, pieces=st.lists(st.integers(1, 5), max_size=30))
def test_accounts_add_up_and_do_not_depend_on_the_rounds(
    output: list[int], predicted: list[int], pieces: list[int]
) -> None:
    """Every predicted token is accepted or rejected, and none accepted that the output does not have."""
    whole, bits = Prediction(predicted, 3), Prediction(predicted, 3)
    whole.read(PROMPT + output, 3 + len(output))
    for end in np.minimum(np.cumsum(pieces), len(output)).tolist():
        bits.read(PROMPT + output, 3 + end)
    bits.read(PROMPT + output, 3 + len(output))
    assert (whole.accepted, whole.rejected) == (bits.accepted, bits.rejected)
    assert whole.continuation(9) == bits.continuation(9)
    assert whole.accepted + whole.rejected == len(predicted)
    for token in set(predicted) - set(output):
        assert whole.rejected >= predicted.count(token)
    alike = Prediction(output, 3)
    alike.read(PROMPT + output, 3 + len(output))
    assert alike.rejected == 0


@given(output=TOKENS, predicted=TOKENS, cut=st.integers(0, 30))
def test_an_output_that_was_cut_is_read_again(output: list[int], predicted: list[int], cut: int) -> None:
    """A stop string removes tokens that have been read: what only they had is not accepted."""
    kept = output[:cut]
    once, twice = Prediction(predicted, 3), Prediction(predicted, 3)
    twice.read(PROMPT + output, 3 + len(output))
    for prediction in (once, twice):
        prediction.read(PROMPT + kept, 3 + len(kept))
    assert (once.accepted, once.rejected) == (twice.accepted, twice.rejected)
    assert once.continuation(9) == twice.continuation(9)


def test_a_prediction_goes_before_the_text_and_is_forgotten_with_the_row() -> None:
    """An end of text ends a draft; without a prediction, prompt and output are looked up as ever."""
    drafter = LookupDrafter(10, (9,))
    row = RowSampling(SamplingParams(temperature=0.0), 0, [], 3, ())
    drafter.start(0, RowStart(row, Prediction([5, 6, 9, 6], 3)))
    assert propose(drafter, [1, 2, 1], 4) == [5, 6, 9]
    assert len(drafter.look_up(0, [1, 2, 1, 5], 4)) == 2
    drafter.leave(0)
    assert propose(drafter, [1, 2, 1], 1) == [2]


def test_the_lookups_of_a_request_share_its_prediction() -> None:
    """It is followed once, whichever of them is asked, and in whatever order."""
    prediction = Prediction(TEXT, 3)
    first, second = LookupDrafter(200), LookupDrafter(200)
    for drafter in (first, second):
        drafter.start(0, RowStart(RowSampling(SamplingParams(temperature=0.0), 0, [], 3, ()), prediction))
    text = PROMPT + TEXT[:4]
    assert len(first.look_up(0, text, 3)) == 3
    assert propose(second, text, 3) == TEXT[4:7] == propose(first, text, 3)
    text += [*TEXT[4:6], 7]
    assert second.score(0, text, 7) == (3, 2)
    assert propose(second, [*text, TEXT[7]], 2) == TEXT[8:10] == propose(first, [*text, TEXT[7]], 2)
    prediction.read([*text, TEXT[7]], len(text) + 1)
    assert prediction.accepted == 7
