"""Values of the command line."""

from __future__ import annotations

import argparse

import pytest

from adaptspec.commands.values import positive, seconds, share


def test_positive_numbers_are_positive() -> None:
    """And the message says so."""
    assert positive("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        positive("0")


def test_times_are_times() -> None:
    """None that never ends, and none that ended before it began."""
    assert seconds("0") == 0.0
    for text in ("-1", "nan", "inf"):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 0"):
            seconds(text)


def test_shares_are_shares() -> None:
    """Percentages are asked for as 0.05, not 5."""
    assert (share("0"), share("1")) == (0.0, 1.0)
    for text in ("-0.1", "5", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="between 0 and 1"):
            share(text)
