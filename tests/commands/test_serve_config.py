"""`serve --config` reads what `--show-config` prints, and says where a file is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands.serve_config import read_config

EVERYTHING = (
    "--model /m --draft none --counts none --policy off --policy mine.yaml --device cpu --dtype float32 --context 512 "
    "--tensor-parallel-size 2 --prefix-cache off --prefill-seconds 0.5 "
    "--eager --max-rows 3 --no-task-detection --host 127.0.0.2 --port 0 --served-model-name fox * cub --max-waiting 7 "
    "--drain-seconds 2.5 --state-dir s --keep-history --journal j --journal-megabytes 2 --journal-files 9 "
    "--no-watch-policies --metrics-compat vllm --otlp-endpoint http://c:4318 --trace-level round --trace-slow-seconds "
    "2 --trace-round-share 0.5 --trace-content --otlp-metrics --insecure --allow-host fox.local "
    "--allow-origin http://fox.local --pad-stream --limit choices=3 --limit body-seconds=1.5 "
    "--allow-pickle --threads 3 --runner torch "
    '--chat-template t.jinja --chat-template-kwargs {"enable_thinking":false} --sanitize-control-tokens'
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ADAPTSPEC_")]:
        monkeypatch.delenv(name)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", "--show-config", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["", EVERYTHING])
def test_what_is_shown_is_read_back(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting there is, with its default and with another value."""
    file = tmp_path / "config.yaml"
    file.write_text(shown(capsys, *arguments.split()))
    assert shown(capsys, "--config", str(file)) == file.read_text()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("host: h\nprot: 1\n", ":2:1: prot: unknown key (did you mean 'port'?)"),
        ("engine:\n  limits:\n    rows: 1\n", ":3:5: engine.limits.rows: unknown key"),
        ("port: http\n", ":1:7: port: input should be a valid integer"),
        ("max_waiting: 0\n", ":1:14: max_waiting: input should be greater than or equal to 1"),
        ("drain_seconds: .inf\n", ":1:16: drain_seconds: "),
        ("traces: {round_share: 2}\n", ":1:23: traces.round_share: "),
        ("traces: {level: much}\n", ":1:17: traces.level: "),
        ("engine: {context: 0}\n", ":1:19: engine.context: "),
        ("engine:\n  exact: depths\n", ":2:3: engine.exact: there is no exact any more; leave it out"),
        ("engine: {draft_device: null}\n", ":1:10: engine.draft_device: there is no draft_device any more; leave it"),
        ("engine: {limits: {prefix_cache: on}}\n", ":1:33: engine.limits.prefix_cache: "),
        ("engine: {limits: {prefill_seconds: 0}}\n", ":1:36: engine.limits.prefill_seconds: "),
        ("engine: {chat_template_kwargs: {tools: 1}}\n", "engine.chat_template_kwargs: its key tools is set by"),
        ("limits: {choices: -1}\n", "the limit choices is -1; it must be above 0"),
        ("- 1\n", ":1:1: a mapping is needed here"),
        ("api_keys: 2\n", ":1:1: api_keys: keys are not kept in this file; give them by ADAPTSPEC_API_KEY"),
        ("port: 1\nadmin_key: true\n", ":2:1: admin_key: keys are not kept in this file"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    text: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, no traceback; a server that was closed is not opened because its keys are elsewhere."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("adaptspec: ")
    assert hint in told


def test_policy_files_are_found_next_to_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is shown names them by their whole paths, so that it may be saved anywhere."""
    file = tmp_path / "c.yaml"
    file.write_text("engine: {policies: [mine.yaml, /etc/yours.yaml, off]}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in (file, Path("../c.yaml")):
        policies = read_config(name).config.engine.policies
        assert [Path(one).resolve() for one in policies[:2]] == [tmp_path / "mine.yaml", Path("/etc/yours.yaml")]
        assert policies[2] == "off"
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
    file.write_text(f"engine: {{chat_template: {name}}}\n")
    meant = {"~/x.jinja": home / "x.jinja", "none": Path("none")}
    for config in (file, Path("../etc/c.yaml")):
        found = read_config(config).config.engine.chat_template
        assert found is not None
        assert os.path.normpath(found if name == "none" else Path.cwd() / found) == str(
            meant.get(name, Path(os.path.normpath(folder / name)))
        )
    for arguments in (["--config", str(file)], ["--chat-template", name]):
        text = shown(capsys, *arguments)
        saved = folder / "saved.yaml"
        saved.write_text(text)
        assert shown(capsys, "--config", str(saved)) == text


def test_keys_come_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "secret-1\nsecret-2")
    monkeypatch.setenv("ADAPTSPEC_ADMIN_KEY", "secret-3")
    file = tmp_path / "c.yaml"
    file.write_text(shown(capsys))
    assert "secret" not in file.read_text()
    assert shown(capsys, "--config", str(file)) == file.read_text()
    assert read_config(file).secrets == {"api_keys": 2, "admin_key": True}
