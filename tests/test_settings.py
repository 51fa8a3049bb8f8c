"""Settings: declared once as fields, read from flags, variables and files, and described."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import Ge, Gt, Le

from adaptspec.errors import ConfigError
from adaptspec.settings import Setting, add_flags, argument_type, dump, load, reference, words_of
from tests.settings_reference import README, written


@dataclass(frozen=True, kw_only=True)
class Base:
    """What both have."""

    port: Annotated[int, Ge(0), Le(65535), Setting(group="Network", aliases=("tcp_port",), metavar="N")] = 8000
    """Where it listens."""


@dataclass(frozen=True, kw_only=True)
class Config(Base):
    """One of each kind."""

    level: Literal["off", "low", "high"] = "low"
    """How much.

    `off`: nothing.
    """
    loud: bool = False
    """Make noise."""
    watch: Annotated[bool, Setting(aliases=("looking",))] = True
    """Look at files."""
    pace: Annotated[float, Gt(0.0)] = 0.5
    """Seconds."""
    most: Annotated[int | None, Ge(1)] = None
    """At most."""
    draft: Annotated[str | None, Setting(none=True)] = "auto"
    """A draft, or none."""
    names: tuple[str, ...] = ()
    """Names."""
    tapes: Annotated[tuple[str, ...], Setting(several=True)] = ()
    """Tapes."""
    rules: Annotated[tuple[str, ...], Setting(is_file=lambda name: name.endswith(".yaml"))] = ()
    """Rules, or files of them."""
    folder: Path | None = None
    """A folder."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values."""
    url: Annotated[str | None, Setting(pattern="https?://.*", what="a URL such as http://x:1")] = None
    """An address."""
    key: Annotated[tuple[str, ...], Setting(group="Keys", secret=True, rival="key_file")] = ()
    """A key."""
    key_file: Annotated[Path | None, Setting(rival="key")] = None
    """A file of keys."""
    admin: Annotated[str | None, Setting(flag=False, secret=True, rival="admin_file")] = None
    """The other key."""
    admin_file: Annotated[Path | None, Setting(rival="admin")] = None
    """A file of it."""


def read(*flags: str, file: Path | None = None, **variables: str) -> Config:
    parser = argparse.ArgumentParser()
    add_flags(parser, Config)
    environ = {f"ADAPTSPEC_{name}": text for name, text in variables.items()}
    return load(Config, parser.parse_args(flags).settings, file, environ)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def test_every_kind_is_read_from_flags() -> None:
    line = "--port 9 --level off --loud --no-watch --pace 2 --most 3 --draft none --names a --names b --tapes x y"
    more = "--rules r.yaml --folder f --url http://c:1 --key k --admin-file a"
    assert read(*line.split(), *more.split(), "--values", '{"a": 1}') == Config(
        port=9,
        level="off",
        loud=True,
        watch=False,
        pace=2.0,
        most=3,
        draft=None,
        names=("a", "b"),
        tapes=("x", "y"),
        rules=("r.yaml",),
        folder=Path("f"),
        url="http://c:1",
        key=("k",),
        admin_file=Path("a"),
        values={"a": 1},
    )


def test_every_kind_is_read_from_variables() -> None:
    """Lists have commas; secrets a line each, since commas may be part of them."""
    found = read(
        PORT="9",
        LEVEL="high",
        LOUD="true",
        WATCH="0",
        NAMES="a, b",
        KEY="one, still one\ntwo\n",
        ADMIN="x",
        DRAFT="none",
    )
    assert found == Config(
        port=9,
        level="high",
        loud=True,
        watch=False,
        names=("a", "b"),
        key=("one, still one", "two"),
        admin="x",
        draft=None,
    )


def test_flags_win_over_variables_and_variables_over_the_file(file: Path) -> None:
    """Also a flag that says the default; lists are replaced, not made longer."""
    file.write_text("port: 1\nlevel: high\nnames: [x, y]\nmost: 5\nloud: true\n")
    found = read("--level", "low", "--names", "c", "--no-loud", file=file, PORT="2", NAMES="a,b")
    assert found == Config(port=2, level="low", names=("c",), most=5)


def test_an_empty_variable_sets_nothing() -> None:
    """That is how composition files leave one out."""
    assert read(PORT="", KEY="", ADMIN="") == Config()


def test_a_setting_without_a_flag_is_not_read_for_a_command_without_it() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, leave_out=["port"])
    environ = {"ADAPTSPEC_PORT": "9", "ADAPTSPEC_LEVEL": "high"}
    assert load(Config, parser.parse_args([]).settings, None, environ) == Config(level="high")
    assert load(Config, environ=environ) == Config(port=9, level="high")


def test_earlier_names_are_understood_and_the_current_one_is_said(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("tcp-port: 4\n")
    assert read("--tcp-port", "3", "--no-looking") == Config(port=3, watch=False)
    assert read(TCP_PORT="5").port == 5
    assert read(NO_LOOKING="1") == Config(watch=False)
    assert read(file=file).port == 4
    assert caplog.messages == [
        "--tcp-port is called --port now; the next release no longer knows the earlier name",
        "--no-looking is called --no-watch now; the next release no longer knows the earlier name",
        "ADAPTSPEC_TCP_PORT is called ADAPTSPEC_PORT now; the next release no longer knows the earlier name",
        "ADAPTSPEC_NO_LOOKING is called ADAPTSPEC_WATCH now; the next release no longer knows the earlier name",
        f"{file}:1:1: tcp-port is called port now; the next release no longer knows the earlier name",
    ]


HUGE = "9" * 5000
WRONG = {
    "port": (
        "a whole number of at least 0 and at most 65535",
        ["http", "-1", "65536", "1.5", "", " ", HUGE, "1_0", "٣"],
    ),
    "pace": ("a number above 0", ["0", "nan", "inf", "-1", "1e999", "fast", HUGE]),
    "level": ("off, low or high", ["medium", "OFF"]),
    "most": ("a whole number of at least 1", ["0", "none", "9" * 20]),
    "url": ("a URL such as http://x:1", ["ftp://x", "x"]),
    "values": ("a JSON object", ["[]", "{", "1", "[" * 100_000, '{"a": ' + HUGE + "}"]),
}
CASES = [(name, what, text) for name, (what, texts) in WRONG.items() for text in texts]


@pytest.mark.parametrize(("name", "what", "text"), CASES, ids=[f"{name}-{text[:10]}" for name, _, text in CASES])
def test_a_value_that_cannot_be_used_is_one_line_in_users_words(name: str, what: str, text: str) -> None:
    """With the flag or the variable; no type of Python's, and never more than a bit of the value."""
    for given, where in ((read, f"ADAPTSPEC_{name.upper()}"), (None, f"--{name}")):
        if given and not text:
            continue  # an empty variable sets nothing
        with pytest.raises(ConfigError) as error:
            read(**{name.upper(): text}) if given else read(f"--{name}={text}")
        message = str(error.value)
        expected = f"{where}: it is empty" if not text.strip() and name == "url" else f"{where}: give {what}, not "
        assert message.startswith(expected)
        assert len(message.splitlines()) == 1
        assert len(message) < 200


@pytest.mark.parametrize("value", ["1", "on", "TRUE", "yes"])
def test_words_for_true_and_false(value: str) -> None:
    assert read(LOUD=value).loud
    with pytest.raises(ConfigError, match="ADAPTSPEC_LOUD: give true or false, not 'perhaps'"):
        read(LOUD="perhaps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1\n", ":1:1: prot: unknown key (did you mean 'port'?)"),
        ("level: low\nxyzzy: 1\n", ":2:1: xyzzy: unknown key; there are: port, level, "),
        ("port: http\n", ":1:7: port: give a whole number of at least 0 and at most 65535, not 'http'"),
        ("port:\n", ":1:6: port: give a whole number of at least 0 and at most 65535, not None"),
        ("port: true\n", ":1:7: port: give a whole number"),
        ("port: 0x" + "f" * 5000 + "\n", "cannot be read; write it another way"),
        ("pace: .inf\n", ":1:7: pace: give a number above 0, not inf"),
        ("pace: .nan\n", ":1:7: pace: give a number above 0, not nan"),
        ("loud: 3\n", ":1:7: loud: give true or false, not 3"),
        ("names: [1]\n", ":1:8: names: give a text or a list of texts, not [1]"),
        ("folder: 1\n", ":1:9: folder: give a path, not 1"),
        ("values: [a]\n", ":1:9: values: give a JSON object, not ['a']"),
        ("- 1\n", ":1:1: settings are needed here"),
        ("port: 1\ntcp_port: 2\n", ":2:1: tcp_port: it is one setting with port; write port only"),
        ("engine: {model: x}\n", ":1:1: engine: settings are no longer nested"),
        ("journal_files: 4\n", ":1:1: journal_files: there is no journal_files any more; leave it out"),
        ("key: 2\n", ":1:1: key: keys are not kept in this file; give them by ADAPTSPEC_KEY or --key-file"),
        ("port: 1\nadmin: true\n", ":2:1: admin: keys are not kept in this file; give them by ADAPTSPEC_ADMIN or"),
        ("key: 2\nkey_file: null\n", ":1:1: key: keys are not kept in this file"),
        ("key: sesame\n", ":1:1: key: keys are not kept in this file; give them by ADAPTSPEC_KEY or --key-file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read(file=file)
    assert message in str(error.value)
    assert "sesame" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_all_that_is_wrong_is_said_at_once(file: Path) -> None:
    file.write_text("prot: 1\npace: 0\n")
    with pytest.raises(ConfigError) as error:
        read("--most", "0", file=file, LEVEL="x")
    assert len(str(error.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("flags", "variables", "message"),
    [
        (["--key", "a", "--key-file", "f"], {}, "--key and --key-file exclude each other"),
        ([], {"KEY": "a", "KEY_FILE": "f"}, "ADAPTSPEC_KEY and ADAPTSPEC_KEY_FILE exclude each other"),
        ([], {"PORT": "1", "TCP_PORT": "2"}, "ADAPTSPEC_PORT and ADAPTSPEC_TCP_PORT are one setting"),
    ],
)
def test_what_excludes_each_other_is_refused(flags: list[str], variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*flags, **variables)


def test_a_flag_replaces_the_variable_that_it_excludes(file: Path) -> None:
    file.write_text("key: 2\nkey_file: keys\nadmin_file: admin\n")
    assert read("--key", "a", KEY_FILE="f").key_file is None
    found = read(file=file, KEY="a", ADMIN="b")
    assert found == Config(key=("a",), admin="b")
    assert read(file=file) == Config(key_file=file.parent / "keys", admin_file=file.parent / "admin")


def test_a_variable_of_kubernetes_is_explained() -> None:
    """A service called adaptspec puts this into every pod of its namespace."""
    with pytest.raises(ConfigError) as error:
        read(PORT="tcp://10.0.0.1:8000")
    assert "is what Kubernetes sets for a service of this name" in str(error.value)
    assert "enableServiceLinks: false" in str(error.value)
    assert read("--port", "1", PORT="tcp://10.0.0.1:8000").port == 1


def test_secrets_are_never_quoted(file: Path) -> None:
    file.write_text("key: [sesame]\nadmin: sesame\n")
    with pytest.raises(ConfigError) as error:
        read("--key", "", "--url", "ftp://me:sesame@host/path", file=file, ADMIN=" ")
    assert "sesame" not in str(error.value)
    with pytest.raises(ConfigError, match="not 'host'"):
        read("--url", "me:sesame@host")
    assert "sesame" not in str(dump(Config(key=("sesame",), admin="sesame", url="http://me:sesame@host/p@th")))


def test_what_is_shown_is_read_back_from_anywhere(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Paths of flags start at the working directory, paths of a file at its folder; a home may be `~`."""
    monkeypatch.setenv("HOME", "/home/fox")
    monkeypatch.chdir(tmp_path)
    given = read("--rules=a.yaml", "--rules=off", "--folder=sub", "--names=n", "--level=off", "--values={}", KEY="k")
    shown = dump(given)
    assert shown["rules"] == [str(tmp_path / "a.yaml"), "off"]
    assert shown["folder"] == str(tmp_path / "sub")
    assert shown["key"] == 1
    file.parent.joinpath("elsewhere").mkdir()
    other = file.parent / "elsewhere" / "c.yaml"
    other.write_text(yaml.safe_dump(shown))
    assert dump(read(file=other, KEY="k")) == shown
    other.write_text("rules: [~/a.yaml, b.yaml, off]\nfolder: ~/x\n")
    found = read(file=other)
    assert found.rules == ("/home/fox/a.yaml", str(other.parent / "b.yaml"), "off")
    assert found.folder == Path("/home/fox/x")


def test_flags_of_a_configuration_give_it_again() -> None:
    """Those of what is not as by default; keys stay secret."""
    config = Config(
        port=1,
        level="high",
        loud=True,
        watch=False,
        draft=None,
        names=("a", "b c"),
        tapes=("d", "e"),
        folder=Path("f"),
        values={"g": [1]},
    )
    assert read(*words_of(config)) == config
    assert words_of(Config(key=("k",), admin="k")) == []


def test_help_has_a_line_of_each_docstring_and_the_reference_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="x")
    add_flags(parser, Config)
    parser.print_help()
    shown = capsys.readouterr().out
    for text in ("Network:", "--port N", "Where it listens (default: 8000)", "--no-watch", "do not look at files"):
        assert text in shown
    for text in ("--tcp-port", "--no-loud", "--admin ", "nothing"):
        assert text not in shown
    written = reference(Config)
    assert "| `port` | a whole number of at least 0 and at most 65535 | `8000` | Where it listens. |" in written
    assert "| `level` | off, low or high | `low` | How much. `off`: nothing. |" in written
    assert written.index("**Network**") < written.index("**Keys**")
    assert "| `admin` | a text |  | The other key. It has no flag. |" in written


@pytest.mark.parametrize(
    ("hint", "text", "value"), [(Annotated[int, Ge(1)], "3", 3), (Annotated[float, Ge(0.0)], "2", 2.0)]
)
def test_other_arguments_are_checked_alike(hint: Any, text: str, value: float) -> None:
    kind = argument_type(hint)
    assert kind(text) == value
    with pytest.raises(argparse.ArgumentTypeError, match=r"^give a .*number of at least .*, not 'x'$"):
        kind("x")


def test_any_mapping_of_variables_is_read() -> None:
    """Hosts read what their engine hands on."""
    environ: Mapping[str, str] = {"ADAPTSPEC_MOST": "7"}
    assert load(Config, environ=environ).most == 7


def test_the_table_of_settings_is_up_to_date() -> None:
    page = README.read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m tests.settings_reference"
