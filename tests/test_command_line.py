"""The parser: variables stand in for flags, in every command, and what was set can be told from defaults."""

from __future__ import annotations

import argparse

import pytest

from adaptspec.command_line import Lines, Parser, given_values


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="x")
    parser.add_argument("--port", "--tcp-port", type=int, default=8000, help="where (default: %(default)s)")
    parser.add_argument("--level", choices=["low", "high"], default="low")
    parser.add_argument("--name", action="append", default=[])
    parser.add_argument("--key", action=Lines, default=[])
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--watch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tape", nargs="+", default=["bundled"])
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--csv", dest="form", action="store_const", const="csv", default="text")
    forms.add_argument("--json", action="store_true")
    return parser


def test_variables_stand_in_for_flags_of_every_kind(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "PORT": "9",
        "LEVEL": "high",
        "NAME": "a, b",
        "KEY": "one, still one\ntwo",
        "LOUD": "true",
        "WATCH": "0",
        "TAPE": "x,y",
        "CSV": "1",
    }.items():
        monkeypatch.setenv(f"ADAPTSPEC_{name}", text)
    found = parser.parse_args([])
    assert (found.port, found.level, found.name, found.loud, found.watch) == (9, "high", ["a", "b"], True, False)
    assert (found.key, found.tape, found.form) == (["one, still one", "two"], ["x", "y"], "csv")
    assert found.given["port"] == "ADAPTSPEC_PORT"


def test_flags_win_even_where_they_say_the_default(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are replaced, not made longer; of flags that exclude each other the given one is alone."""
    for name, text in {"PORT": "9", "NAME": "a,b", "WATCH": "false", "JSON": "1"}.items():
        monkeypatch.setenv(f"ADAPTSPEC_{name}", text)
    found = parser.parse_args(["--port", "8000", "--name", "c", "--watch", "--csv"])
    assert (found.port, found.name, found.watch, found.form, found.json) == (8000, ["c"], True, "csv", False)
    assert given_values(found).keys() == {"port", "name", "watch", "form"}
    assert found.given["port"] == "--port"


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ({"PORT": "tcp://10.0.0.1"}, "ADAPTSPEC_PORT: invalid int value"),
        ({"LEVEL": "middle"}, "ADAPTSPEC_LEVEL: invalid choice: 'middle'"),
        ({"LOUD": "perhaps"}, "ADAPTSPEC_LOUD: 'perhaps' is neither true nor false"),
        ({"PORT": "1", "TCP_PORT": "2"}, "ADAPTSPEC_PORT and ADAPTSPEC_TCP_PORT are one setting"),
        ({"CSV": "1", "JSON": "1"}, "exclude each other"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    parser: Parser,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: dict[str, str],
    hint: str,
) -> None:
    for name, text in setting.items():
        monkeypatch.setenv(f"ADAPTSPEC_{name}", text)
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert hint in capsys.readouterr().err


def test_an_empty_variable_says_nothing(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how composition files leave one out."""
    monkeypatch.setenv("ADAPTSPEC_PORT", "")
    assert parser.parse_args([]).given == {}


def test_a_variable_is_as_good_as_a_flag_that_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser(prog="x")
    parser.add_argument("--corpus", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args([])
    monkeypatch.setenv("ADAPTSPEC_CORPUS", "c.jsonl")
    assert parser.parse_args([]).corpus == "c.jsonl"
