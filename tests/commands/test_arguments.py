"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from adaptspec.commands.arguments import add_models, engine_config


def test_they_reach_the_engine() -> None:
    """Under the names the engine knows; no draft is said in so many words."""
    parser = argparse.ArgumentParser()
    add_models(parser)
    given = parser.parse_args(["--draft", "none", "--policy", "off", "--policy", "ucb", "--max-rows", "3"])
    config = engine_config(given)
    assert (config.draft, config.policies, config.limits.max_rows) == (None, ("off", "ucb"), 3)
    assert engine_config(parser.parse_args([])).draft == "auto"
