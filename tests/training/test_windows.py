"""The batch order: resumable, and every epoch sees every window once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import CorpusError
from adaptspec.training.windows import Windows


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 200), st.integers(0, 3))
def test_an_epoch_visits_every_window_once(batch: int, window: int, extra: int, seed: int) -> None:
    """No text is dropped or doubled by the shuffling."""
    tokens = np.arange(window * (batch + 2) + 1 + extra, dtype=np.uint16)
    windows = Windows(tokens, 1, window, seed)
    count = (len(tokens) - 1) // window - 1
    starts = sorted(int(windows.at(step)[0, 0]) for step in range(count))
    assert starts == list(range(starts[0], starts[0] + count * window, window))


PINNED = {0: [502, 270, 38], 70: [908, 828, 748]}


def test_a_batch_depends_on_its_step_alone() -> None:
    """What makes resuming exact; the numbers pin the order, since checkpoints in the field rely on it."""
    tokens = np.arange(1000, dtype=np.uint16)
    windows = Windows(tokens, 3, 8)
    again = Windows(tokens, 3, 8)
    assert windows.at(70).tolist() == again.at(70).tolist()
    assert windows.at(0)[:, 0].tolist() == PINNED[0]
    assert windows.at(70)[:, 0].tolist() == PINNED[70]
    assert windows.at(0).shape == (3, 9)


def test_too_little_text_is_a_corpus_error() -> None:
    """A tiny corpus must not end in an index error."""
    with pytest.raises(CorpusError, match="one batch needs"):
        Windows(np.arange(30, dtype=np.uint16), 4, 8)
