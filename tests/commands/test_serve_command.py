"""`adaptspec serve`: what is asked for reaches the server, what cannot be is refused with what to do instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from adaptspec.app import ServeConfig
from adaptspec.cli import main
from adaptspec.command_line import Parser
from adaptspec.commands.serve_command import add_arguments
from adaptspec.commands.serve_config import serve_config
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.server.auth import named_key


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ADAPTSPEC_")]:
        monkeypatch.delenv(name)


def asked(*arguments: str) -> ServeConfig:
    """The configuration that a command line asks for."""
    parser = Parser()
    add_arguments(parser)
    return serve_config(parser.parse_args(arguments))


def test_every_argument_reaches_its_setting(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open sesame\n")
    models = "--model /m --draft none --policy off --policy mine.yaml --device cpu --dtype float32 --context 512"
    server = "--host 0.0.0.0 --port 0 --served-model-name fox --max-waiting 7 --drain-seconds 2.5"
    files = f"--state-dir {tmp_path} --journal {tmp_path}/j --admin-key-file {key}"
    more = "--no-watch-policies --metrics-compat vllm --journal-megabytes 2 --journal-files 9"
    limits = EngineLimits(max_rows=3, prefix_cache="shared", prefill_seconds=0.5)
    engine = EngineConfig("/m", None, ("off", "mine.yaml"), "cpu", "float32", 512, limits=limits, detect_tasks=False)
    line = (
        f"--max-rows 3 --prefix-cache shared --prefill-seconds 0.5 --no-task-detection {models} {server} {files} {more}"
    )
    assert asked(*line.split()) == ServeConfig(
        engine,
        "0.0.0.0",
        0,
        ("fox",),
        7,
        2.5,
        compat_vllm=True,
        state_dir=tmp_path,
        journal=tmp_path / "j",
        journal_bytes=2 * 2**20,
        journal_files=9,
        admin_key="open sesame",
        watch_policies=False,
    )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--max-waiting", "0"], "must be at least 1"),
        (["--drain-seconds", "-1"], "must be at least 0"),
        (["--port", "http"], "invalid int value: 'http'"),
        (["--metrics-compat", "sglang"], "(choose from"),
        (["--prefix-cache", "on"], "(choose from"),
        (["--device", "gpu"], "must be auto, cpu, cuda or cuda:N"),
        (["--modle", "x"], "unrecognized arguments: --modle"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    with pytest.raises(SystemExit) as status:
        main(["serve", *arguments])
    assert status.value.code == 2
    assert hint in capsys.readouterr().err


def test_an_address_that_cannot_be_listened_on_says_what_to_choose(
    target_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole server, up to the point where it would listen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["serve", "--model", str(target_path), "--port", "70000", "--max-rows", "1"]) == 2
    assert "choose another --host or --port" in capsys.readouterr().err


def test_the_configuration_is_shown_without_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, as YAML that can be read again, and nothing is started."""
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    collector = "--otlp-endpoint http://me:third-secret@collector:4318/otlp"
    command_line = f"serve --show-config --api-key-file {keys} --limit choices=3 --policy off {collector}"
    assert main(command_line.split()) == 0
    told = capsys.readouterr().out
    shown = yaml.safe_load(told)
    assert "secret" not in told
    assert shown["api_keys"] == 2
    assert shown["admin_key"] is False
    assert shown["limits"]["choices"] == 3
    assert shown["engine"]["policies"] == ["off"]
    assert shown["traces"]["endpoint"] == "http://collector:4318/otlp"
    assert shown.keys() == ServeConfig.__dataclass_fields__.keys()


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a flag that says the default."""
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nhost: 127.0.0.2\nmax_waiting: 3\nengine: {limits: {max_rows: 5, prefill_tokens: 7}}\n")
    monkeypatch.setenv("ADAPTSPEC_PORT", "2")
    monkeypatch.setenv("ADAPTSPEC_HOST", "127.0.0.3")
    limits = EngineLimits(max_rows=5, prefill_tokens=7)
    found = asked("--config", str(file), "--host", "127.0.0.1")
    assert found == ServeConfig(EngineConfig(limits=limits), host="127.0.0.1", port=2, max_waiting=3)


def test_a_key_on_the_command_line_serves_and_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with vLLM; the variable means the same, and is nobody else's to read."""
    assert asked("--api-key", "one", "--api-key", "two").api_keys == ("one", "two")
    assert main(["serve", "--api-key", "one", "--host", "300.1.1.1"]) == 2
    assert "whoever may list this machine's processes" in capsys.readouterr().err
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "three, with a comma\nfour\n")
    assert asked().api_keys == ("three, with a comma", "four")
    assert asked("--api-key", "one").api_keys == ("one",)
    assert main(["serve", "--host", "300.1.1.1"]) == 2
    assert "whoever" not in capsys.readouterr().err


def test_an_empty_key_does_not_open_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """`--api-key "$KEY"` with nothing in it is a mistake, not a wish."""
    assert main(["serve", "--api-key", ""]) == 2
    assert "--api-key is empty" in capsys.readouterr().err


KEY_FILES = {
    "comments": "# keys of the team\nabc\n  # of guests\ndef # ann\n",
    "blank lines": "\n\nabc\n\n   \ndef # ann\n\n",
    "a byte order mark": "\ufeffabc\ndef # ann",
    "a byte order mark and a comment": "\ufeff# keys\nabc\ndef # ann",
    "CRLF": "# keys\r\nabc\r\n\r\ndef # ann\r\n",
    "CR": "abc\rdef # ann\r",
    "tabs and spaces": "\tabc  \n def\t# ann \n",
    "comments without a space": "#keys\nabc\ndef #ann\n#\n",
    "no last line end, and one twice": "abc\ndef # ann\nabc",
}


@pytest.mark.parametrize("text", KEY_FILES.values(), ids=KEY_FILES)
def test_files_of_keys_as_people_write_them(tmp_path: Path, text: str) -> None:
    """Two keys in each, one with a name; no comment is a key."""
    (tmp_path / "keys").write_bytes(text.encode())
    config = asked("--api-key-file", str(tmp_path / "keys"))
    assert [named_key(key) for key in config.api_keys] == [("abc", None), ("def", "ann")]


@pytest.mark.parametrize("option", ["--api-key-file", "--admin-key-file"])
@pytest.mark.parametrize("text", ["", "\n\r\n", "# keys of the team\n", "\ufeff", "\ufeff # a\n\t# b\n", "#", "  "])
def test_a_file_without_keys_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    """It neither opens the server nor makes a comment of a key."""
    (tmp_path / "keys").write_bytes(text.encode())
    assert main(["serve", option, str(tmp_path / "keys")]) == 2
    assert "it holds no key" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["abc", "\ufeffabc\r\n", "# of ann\nabc\n", "abc # of ann\n\n", "\n abc\t# x"])
def test_the_admin_key_may_have_comments_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_bytes(text.encode())
    assert asked("--admin-key-file", str(tmp_path / "key")).admin_key == "abc"


def test_two_admin_keys_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("abc\ndef\n")
    assert main(["serve", "--admin-key-file", str(tmp_path / "key")]) == 2
    assert "it holds 2 keys" in capsys.readouterr().err


def test_a_comment_in_the_variable_is_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "# keys\nabc")
    assert asked().api_keys == ("abc",)
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "# keys")
    assert main(["serve"]) == 2
