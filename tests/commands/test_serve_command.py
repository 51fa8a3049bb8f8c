"""`adaptspec serve`: what is asked for reaches the server, what cannot be is refused with what to do instead."""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from adaptspec.cli import main
from adaptspec.command_line import REMOVED_FLAGS, variable
from adaptspec.commands.serve_command import add_arguments, serve_config
from adaptspec.config import ServeConfig
from adaptspec.server.auth import named_key

EVERYTHING = (
    "--model /m --draft none --counts none --policy off --policy mine.yaml --device cpu --dtype float32 "
    "--max-model-len 512 --cache-tokens 9 --tensor-parallel-size 2 --prefix-cache off --prefill-seconds 0.5 "
    "--prefill-tokens 8 --enforce-eager --max-num-seqs 3 --no-detect-tasks --gpu-layers 1 --host 127.0.0.2 --port 0 "
    "--served-model-name fox * cub --max-waiting 7 --shutdown-timeout 2.5 --reasoning-format think --state-dir s "
    "--keep-history --journal j --otlp-traces-endpoint http://c:4318 --trace-level round --trace-slow-seconds 2 "
    "--task-detector t.npz --trace-content --insecure --allowed-hosts fox.local --allowed-origins http://fox.local "
    "--allow-pickle --threads 3 --runner torch --chat-template t.jinja "
    '--default-chat-template-kwargs {"enable_thinking":false} --sanitize-control-tokens'
)
SECRET = {"api_key", "api_key_file", "admin_key", "admin_key_file"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ADAPTSPEC_")]:
        monkeypatch.delenv(name)


def asked(*arguments: str) -> ServeConfig:
    """The configuration that a command line asks for."""
    parser = ArgumentParser()
    add_arguments(parser)
    return serve_config(parser.parse_args(arguments))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", "--show-config", *arguments]) == 0
    return capsys.readouterr().out


def test_every_flag_reaches_its_setting() -> None:
    """None is left at its default here, so one that is forgotten in this test is seen."""
    found = asked(*EVERYTHING.split())
    assert {one.name for one in fields(found) if getattr(found, one.name) == getattr(ServeConfig(), one.name)} == SECRET
    assert (found.policy, found.served_model_name) == (("off", "mine.yaml"), ("fox", "*", "cub"))
    assert (found.draft, found.counts, found.detect_tasks) == (None, None, False)


@pytest.mark.parametrize("arguments", ["", EVERYTHING])
def test_what_is_shown_is_read_back(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(shown(capsys, *arguments.split()))
    assert shown(capsys, "--config", str(file)) == file.read_text()


def test_the_file_may_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("port: 9\nmax-model-len: 64\n")  # keys may have dashes, as in files of vLLM
    monkeypatch.setenv("ADAPTSPEC_CONFIG", str(file))
    assert (asked().port, asked().max_model_len) == (9, 64)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("--max-rows 3", "max_num_seqs", 3),
        ("--context 64", "max_model_len", 64),
        ("--eager", "enforce_eager", True),
        ("--drain-seconds 2", "shutdown_timeout", 2.0),
        ("--no-task-detection", "detect_tasks", False),
        ("--allow-host fox", "allowed_hosts", ("fox",)),
        ("--allow-origin http://fox", "allowed_origins", ("http://fox",)),
        ("--otlp-endpoint http://fox", "otlp_traces_endpoint", "http://fox"),
        ("--chat-template-kwargs {}", "default_chat_template_kwargs", {}),
    ],
)
def test_flags_of_the_last_release_are_understood(old: str, new: str, value: object) -> None:
    assert getattr(asked(*old.split()), new) == value


@pytest.mark.parametrize("flag", REMOVED_FLAGS)
def test_a_removed_flag_is_refused_with_what_to_do(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a flag, as its variable and as a key of a file."""
    file = tmp_path / "c.yaml"
    file.write_text(f"{flag.removeprefix('--').replace('-', '_')}: 1\n")
    for arguments in ([flag, "1"], [f"{flag}=1"], ["--config", str(file)]):
        assert main(["serve", *arguments]) == 2
        error = capsys.readouterr().err
        assert REMOVED_FLAGS[flag] in error
        assert len(error.splitlines()) == 1
    monkeypatch.setenv(variable(flag), "1")
    assert main(["serve"]) == 2
    assert f"{variable(flag)} was removed; {REMOVED_FLAGS[flag]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--max-waiting", "0"], "adaptspec: --max-waiting: give a whole number of at least 1, not '0'"),
        (["--shutdown-timeout", "-1"], "adaptspec: --shutdown-timeout: give a number of at least 0, not '-1'"),
        (["--port", "http"], "adaptspec: --port: give a whole number"),
        (["--port", "70000"], "adaptspec: --port: give a whole number of at least 0 and at most 65535"),
        (["--prefix-cache", "on"], "adaptspec: --prefix-cache: give off, key or shared, not 'on'"),
        (["--device", "gpu"], "adaptspec: --device: give auto, cpu, cuda or cuda:N, not 'gpu'"),
        (["--modle", "x"], "unrecognized arguments: --modle"),
        (["--default-chat-template-kwargs", '{"tools": 1}'], "its key tools is set by the server; leave it out"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    try:
        status = main(["serve", *arguments])
    except SystemExit as left:
        status = left.code  # type: ignore[assignment]
    assert status == 2
    assert hint in capsys.readouterr().err


def test_an_old_file_is_refused_with_the_new_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("engine:\n  limits: {max_rows: 3}\ntraces: {level: off}\nlimits: {choices: 2}\nport: 1\n")
    assert main(["serve", "--config", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(" ")[0] for line in lines] == [
        f"{file}:{place}:" for place in ("1:1", "3:1", "4:1")
    ]
    assert "max_rows is max_num_seqs now" in lines[0]


def test_help_fits_two_screens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 80 or lines[0].startswith("usage")


def test_policy_files_are_found_next_to_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is shown names them by their whole paths, so that it may be saved anywhere."""
    file = tmp_path / "c.yaml"
    file.write_text("policy: [mine.yaml, /etc/yours.yaml, off]\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in (str(file), "../c.yaml"):
        first, second, third = asked("--config", name).policy
        assert [Path(first).resolve(), second, third] == [tmp_path / "mine.yaml", "/etc/yours.yaml", "off"]
    assert f"- {elsewhere / 'mine.yaml'}\n" in shown(capsys, "--policy", "mine.yaml")


@pytest.mark.parametrize("name", ["x.jinja", "sub/x.jinja", "../x.jinja", "~/x.jinja", "/etc/x.jinja", "none"])
def test_a_chat_template_is_found_from_the_folder_of_the_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or from the home; and what is shown, of a file or of flags, may be saved anywhere and read back."""
    home, elsewhere, folder = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "etc"
    for one in (home, elsewhere, folder):
        one.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    file = folder / "c.yaml"
    file.write_text(f"chat_template: {name}\n")
    meant = {"~/x.jinja": str(home / "x.jinja"), "none": "none"}.get(name, os.path.normpath(folder / name))
    for config in (str(file), "../etc/c.yaml"):
        found = asked("--config", config).chat_template
        assert found is not None
        assert os.path.normpath(found if found == "none" else Path.cwd() / found) == meant
    for arguments in (["--config", str(file)], ["--chat-template", name]):
        text = shown(capsys, *arguments)
        saved = folder / "saved.yaml"
        saved.write_text(text)
        assert shown(capsys, "--config", str(saved)) == text


def test_keys_come_next_to_the_file_or_from_files_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that was closed is not opened because its keys are elsewhere."""
    file = tmp_path / "c.yaml"
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "secret-1\nsecret-2")
    monkeypatch.setenv("ADAPTSPEC_ADMIN_KEY", "secret-3")
    file.write_text(shown(capsys))
    assert "secret" not in file.read_text()
    assert shown(capsys, "--config", str(file)) == file.read_text()
    monkeypatch.delenv("ADAPTSPEC_API_KEY")
    assert main(["serve", "--config", str(file)]) == 2
    assert "api_key: keys are not kept in this file" in capsys.readouterr().err
    (tmp_path / "keys").write_text("secret-4\n")
    file.write_text("api_key_file: keys\n")
    assert asked("--config", str(file)).api_key == ("secret-4",)


def test_an_address_that_cannot_be_listened_on_says_what_to_choose(
    target_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole server, up to the point where it would listen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", str(target_path), "--port", port, "--max-num-seqs", "1"]) == 2
    assert "choose another --host or --port" in capsys.readouterr().err


def test_the_configuration_is_shown_without_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, as YAML that can be read again, and nothing is started."""
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    text = shown(
        capsys,
        *f"--api-key-file {keys} --policy off --otlp-endpoint http://me:third-secret@collector:4318/otlp".split(),
    )
    found = yaml.safe_load(text)
    assert "secret" not in text
    assert (found["api_key"], found["api_key_file"], found["admin_key"]) == (2, str(keys), False)
    assert found["policy"] == ["off"]
    assert found["otlp_traces_endpoint"] == "http://collector:4318/otlp"
    assert list(found) == [one.name for one in fields(ServeConfig)]


def test_a_key_on_the_command_line_serves_and_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with vLLM; the variable means the same, and other users cannot read it."""
    assert asked("--api-key", "one", "--api-key", "two").api_key == ("one", "two")
    assert main(["serve", "--api-key", "one", "--host", "300.1.1.1"]) == 2
    assert "other users of this machine can see --api-key" in capsys.readouterr().err
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "three, with a comma\nfour\n")
    assert asked().api_key == ("three, with a comma", "four")
    assert asked("--api-key", "one").api_key == ("one",)
    assert main(["serve", "--host", "300.1.1.1"]) == 2
    assert "other users" not in capsys.readouterr().err


def test_an_empty_key_does_not_open_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """`--api-key "$KEY"` with nothing in it is a mistake."""
    assert main(["serve", "--api-key", ""]) == 2
    assert "--api-key: it is empty; give a value, or leave it out" in capsys.readouterr().err


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
    assert [named_key(key) for key in config.api_key] == [("abc", None), ("def", "ann")]


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
    assert asked().api_key == ("abc",)
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "# keys")
    assert main(["serve"]) == 2
