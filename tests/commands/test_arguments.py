"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.command_line import Parser
from adaptspec.commands.arguments import add_models, add_policy, engine_config, new_file, positive, seconds, share
from adaptspec.control.language.library import shipped_policies
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig


def test_policies_are_completed_by_name() -> None:
    """Those that ship; files are the shell's own."""
    parser = argparse.ArgumentParser()
    add_policy(parser, "policy")
    (action,) = (one for one in parser._actions if one.dest == "policy")
    assert {path.stem for path in shipped_policies()} <= set(action.completer("g"))  # type: ignore[attr-defined]


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
    base = EngineConfig(
        "/m", None, ("off",), "cpu", limits=EngineLimits(max_rows=3, prefill_tokens=7), detect_tasks=False
    )
    assert engine_config(_parser().parse_args([]), base) == base
    over = engine_config(_parser().parse_args(["--max-rows", "16", "--draft", "auto"]), base)
    assert (over.limits, over.draft, over.policies) == (EngineLimits(max_rows=16, prefill_tokens=7), "auto", ("off",))


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


@pytest.mark.parametrize(
    "line",
    [
        "doctor --write",
        "train counts --corpus c --out",
        "train tasks --corpus c --out",
        "bench record --out",
        "bench record --costs-out",
        "policy tune p --out",
        "policy simulate --plot",
    ],
)
def test_where_to_write_is_known_before_the_work(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder that is there; a folder is no file."""
    for place in (tmp_path, tmp_path / "no" / "file.yaml"):
        with pytest.raises(SystemExit, match="2"):
            main([*line.split(), str(place)])
        assert f"{place}: name a file, in a folder that is there" in capsys.readouterr().err
    assert new_file(str(tmp_path / "file")) == tmp_path / "file"
