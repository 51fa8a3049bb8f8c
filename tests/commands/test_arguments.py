"""Arguments that several commands share."""

from __future__ import annotations

import argparse

import pytest

from adaptspec.commands.arguments import add_models, engine_config, positive, seconds


def test_they_reach_the_engine() -> None:
    """Under the names the engine knows; no draft is said in so many words."""
    parser = argparse.ArgumentParser()
    add_models(parser)
    given = parser.parse_args(["--draft", "none", "--policy", "off", "--policy", "ucb", "--max-rows", "3"])
    config = engine_config(given)
    assert (config.draft, config.policies, config.limits.max_rows) == (None, ("off", "ucb"), 3)
    assert engine_config(parser.parse_args([])).draft == "auto"


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
