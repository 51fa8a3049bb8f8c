"""Engines as the command line asks for them."""

from __future__ import annotations

from adaptspec.command_line import Parser
from adaptspec.commands.arguments import add_models
from adaptspec.commands.engine_settings import engine_config
from adaptspec.engine.build import EngineConfig
from adaptspec.engine.core import Limits


def _parser() -> Parser:
    parser = Parser()
    add_models(parser)
    return parser


def test_they_reach_the_engine() -> None:
    """Under the names the engine knows; no draft is said in so many words."""
    given = _parser().parse_args(["--draft", "none", "--policy", "off", "--policy", "ucb", "--max-rows", "3"])
    config = engine_config(given)
    assert (config.draft, config.policies, config.limits.max_rows) == (None, ("off", "ucb"), 3)
    assert engine_config(_parser().parse_args([])) == EngineConfig()


def test_names_of_other_engines_are_understood() -> None:
    """Command lines made for vLLM go on working."""
    config = engine_config(_parser().parse_args(["--max-model-len", "512", "--max-num-seqs", "3"]))
    assert (config.context, config.limits.max_rows) == (512, 3)


def test_what_is_not_given_stays_as_it_was() -> None:
    base = EngineConfig("/m", None, ("off",), "cpu", limits=Limits(max_rows=3, prefill_tokens=7), detect_tasks=False)
    assert engine_config(_parser().parse_args([]), base) == base
    over = engine_config(_parser().parse_args(["--max-rows", "16", "--draft", "auto"]), base)
    assert (over.limits, over.draft, over.policies) == (Limits(max_rows=16, prefill_tokens=7), "auto", ("off",))


def test_defaults_are_told_as_they_are() -> None:
    """What help says is what engines do."""
    told, config = _parser().parse_args([]), EngineConfig()
    assert (told.model, told.draft, told.device, told.dtype) == (
        config.model,
        config.draft,
        config.device,
        config.dtype,
    )
    assert (told.context, told.max_rows) == (config.context, config.limits.max_rows)
