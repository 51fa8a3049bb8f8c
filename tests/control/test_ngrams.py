"""Hashed n-grams: what was trained on one machine must mean the same on every other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.ngrams import HEAD, SIZE, TAIL, ngrams

TEXT = st.text(st.characters(), max_size=300)  # lone surrogates included


def test_known_values_never_change() -> None:
    """The stored weights are worth nothing under any other hash."""
    found, longer = ngrams("Hi"), ngrams("Grüße, 4 Äpfel!")
    assert (len(found), found[:6].tolist(), int(found.sum())) == (18, [1148, 1388, 3350, 3397, 3823, 6354], 221403)
    assert (len(longer), longer[:4].tolist(), int(longer.sum())) == (210, [216, 221, 249, 269], 3372296)


@settings(max_examples=100, deadline=None)
@given(text=TEXT)
def test_any_text_has_ascending_indices_within_bounds(text: str) -> None:
    """Each index once, in range, and the same every time."""
    found = ngrams(text)
    assert found.dtype == np.int64
    assert (np.diff(found) > 0).all()
    assert not len(found) or (found[0] >= 0 and found[-1] < SIZE)
    assert np.array_equal(found, ngrams(text))


def test_only_blank_texts_have_none() -> None:
    """A single character has n-grams with what surrounds it."""
    assert not len(ngrams(""))
    assert not len(ngrams(" \n\t"))
    assert len(ngrams("x"))


def test_case_digits_and_what_chat_templates_leave_behind_do_not_matter() -> None:
    """`user` and `assistant` on lines of their own come from a template, not from the one who asks."""
    plain = ngrams("add 12 and 30\nquickly")
    assert np.array_equal(plain, ngrams("ADD 77 and 81\nQuickly"))
    assert np.array_equal(plain, ngrams("user\nadd 12 and 30\nquickly\nassistant\n"))
    assert not np.array_equal(plain, ngrams("the user\nadd 12 and 30\nquickly"))


def test_the_middle_of_a_long_text_is_not_looked_at() -> None:
    """The cost of a prompt is bounded, and so is what its length can change."""
    head, tail = "a few words " * 50, " and then the end" * 30
    assert len(head) > HEAD
    assert len(tail) > TAIL
    assert np.array_equal(ngrams(head + "x" * 50 + tail), ngrams(head + "yz" * 9000 + tail))
