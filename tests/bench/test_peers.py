"""Peers: servers that are started, compared on the same prompts and stopped."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.bench.peers import Peer, PeerSettings, peer_groups, peers_report, run_peers
from adaptspec.bench.workloads import read_workloads
from adaptspec.cli import main
from adaptspec.errors import ConfigError
from tests.conftest import MakeModel
from tests.e2e.conftest import start_server

WORK = dict(list(read_workloads(None, 1).items())[:3])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def other(make_model: MakeModel) -> Iterator[str]:
    """A server with another model than the others have."""
    server = start_server("--model", str(make_model("llama", seed=7)))
    yield server.url
    assert server.terminate() == 0


def serving(*words: object) -> str:
    """The command of a server of ours, at a port to be chosen."""
    return shlex.join([sys.executable, "-m", "adaptspec", "serve", *map(str, words), "--port", "{port}"])


@pytest.mark.whole
def test_servers_are_compared_and_stopped(target_path: Path, other: str) -> None:
    """By each number of clients, with ratios to the first; equal models write equal texts, another one does not."""
    peers = [
        Peer.parse(f"first={serving('--model', target_path, '--policy', 'off')}"),
        Peer.parse(f"second={serving('--model', target_path)}"),
        Peer.parse(f"third={other}/v1"),
    ]
    ticks: list[None] = []
    settings = PeerSettings(tokens=8, clients=(1, 4), repeats=2)
    result = run_peers(peers, WORK, settings, lambda: ticks.append(None), lambda _: None)
    assert len(ticks) == (3 + 1) * 2
    assert [run["clients"] for run in result["runs"]] == [1, 4]
    for run in result["runs"]:
        first, second, third = run["peers"]
        assert [one["name"] for one in run["peers"]] == ["first", "second", "third"]
        assert first["over_first"]["mean"] == 1.0
        assert (first["same_text"], second["same_text"], third["same_text"]) == (True, True, False)
        assert first["tokens"] == second["tokens"]
        assert all(0.0 < one["first_token_seconds"] < 60.0 for one in run["peers"])
        ratio = second["over_first"]
        if run["clients"] == 1:
            assert ratio["low"] <= ratio["mean"] <= ratio["high"]
        else:  # all prompts are one group, which gives no interval
            assert (ratio["low"], ratio["high"]) == (None, None)
    assert len(peers_report(result)) == 2
    for one in result["peers"][:2]:
        port = re.findall(r"\d+", one["url"])[-1]
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
    with urllib.request.urlopen(f"{other}/health") as health:
        assert health.status == 200


@pytest.mark.whole
def test_the_command_runs_ours_beside_them(
    other: str, target_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain and with the default policy, of the model that is named."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"task": "chat", "source": "own", "prompt": "one two one two"}))
    line = ["bench", "peers", "--peer", f"other={other}", "--model", str(target_path), "--draft", "none"]
    line += ["--workloads", str(prompts), "--tokens", "4", "--clients", "2", "--json"]
    assert main(line) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in result["peers"]] == ["other", "adaptspec off", "adaptspec goodput-ngram"]
    (run,) = result["runs"]
    assert run["peers"][1]["tokens"] == run["peers"][2]["tokens"] > 0
    assert result["adaptspec"]["config"]["model"] == str(target_path)


def test_a_peer_that_ends_at_once_is_reported_with_its_output() -> None:
    program = shlex.join([sys.executable, "-c", "import sys; sys.exit('no such model')"])
    with pytest.raises(ConfigError, match="bad ended with status 1") as raised:
        run_peers([Peer.parse(f"bad={program} {{port}}")], WORK, PeerSettings(), lambda: None, lambda _: None)
    log = Path(str(raised.value).rpartition(" ")[2])
    assert log.read_text() == "no such model\n"
    log.unlink()


# A server that lists its model while it loads, refuses the first chat for that reason, and answers later ones with the
# lines of a file. Its prompts and its port are written next to that.
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder, port = Path(sys.argv[1]), int(sys.argv[2])
(folder / "port").write_text(str(port))
answers = iter([503, 200])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, [json.dumps({"data": [{"id": folder.name, "quantization": "q4_1"}]})])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body.get("stream"):
            self.answer(next(answers), ["{}"])
            return
        with (folder / "prompts").open("a") as prompts:
            print(body["messages"][0]["content"].splitlines()[0], file=prompts)
        self.answer(200, (folder / "stream").read_text().splitlines())

    def answer(self, status, lines):
        self.send_response(status)
        self.end_headers()
        for line in lines:
            self.wfile.write(line.encode() + b"\\n\\n")


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PIECE = 'data: {"choices": [{"delta": {"content": "one"}}]}'
END = 'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}'
USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 6}}'


def scripted(folder: Path, *lines: str, name: str = "scripted") -> Peer:
    """A server that answers chats with these lines, behind a shell as a wrapper; its model has the folder's name."""
    (folder / "server.py").write_text(SERVER)
    (folder / "stream").write_text("\n".join(lines))
    program = shlex.join([sys.executable, str(folder / "server.py"), str(folder)])
    return Peer.parse(f"{name}={shlex.join(['sh', '-c', program + ' {port}; true'])}")


def assert_has_ended(folder: Path) -> None:
    """The server behind the wrapper does not listen any more."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int((folder / "port").read_text())))


@pytest.mark.parametrize(("usage", "counted_by", "tokens"), [([USAGE], "usage", 6), ([], "chunks", 2)])
def test_tokens_are_counted_by_chunks_only_without_usage(
    tmp_path: Path, usage: list[str], counted_by: str, tokens: int
) -> None:
    """The report says where. What the server says of its model, and its command, are in the result."""
    peer = scripted(tmp_path, PIECE, PIECE, END, *usage, "data: [DONE]")
    result = run_peers([peer], WORK, PeerSettings(clients=(1,)), lambda: None, lambda _: None)
    assert result["runs"][0]["peers"][0]["tokens"] == tokens * len(WORK)
    (one,) = result["peers"]
    assert one["tokens_counted_by"] == counted_by
    assert (one["command"], one["described"]["quantization"]) == (list(peer.command), "q4_1")
    notes = [part for part in peers_report(result) if isinstance(part, str)]
    assert notes == ([] if usage else ["No usage from scripted: chunks are counted in place of tokens there."])
    prompts = (tmp_path / "prompts").read_text().splitlines()
    assert all(line.startswith(f"({result['settings']['word']} ") for line in prompts)
    assert len(set(prompts)) == len(prompts) == 1 + len(WORK)
    assert_has_ended(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([PIECE, 'data: {"error": {"message": "out of memory"}}', "data: [DONE]"], "an error: .*out of memory"),
        ([END, USAGE, "data: [DONE]"], "holds no text"),
        ([PIECE, PIECE], "ends before its finish_reason"),
        ([PIECE, 'data: {"choices": [{"delta": null}]}', END], "sends no chunk of a chat: .*null"),
        (["data: [1]", END], r"sends no chunk of a chat: \[1\]"),
        (["data: {", END], "sends no chunk of a chat: {"),
    ],
)
def test_an_answer_that_fails_is_no_fast_answer(tmp_path: Path, lines: list[str], message: str) -> None:
    """It is an error that shows what the server sent; nothing of the server is left behind."""
    with pytest.raises(ConfigError, match=message):
        run_peers([scripted(tmp_path, *lines)], WORK, PeerSettings(), lambda: None, lambda _: None)
    assert_has_ended(tmp_path)


def test_models_of_different_names_are_listed(tmp_path: Path) -> None:
    peers = []
    for name in ("first", "second"):
        folder = tmp_path / f"model-{name}"
        folder.mkdir()
        peers.append(scripted(folder, PIECE, END, USAGE, name=name))
    *tables, models = peers_report(run_peers(peers, WORK, PeerSettings(clients=(2,)), lambda: None, lambda _: None))
    assert (len(tables), models) == (1, "Models: first: model-first; second: model-second.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """As Ctrl-C does: no process and no log stays behind, and later signals do what they did before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(number)
    peer = scripted(tmp_path, PIECE, END)
    with pytest.raises(KeyboardInterrupt):
        run_peers([peer], WORK, PeerSettings(), lambda: signal.raise_signal(number), lambda _: None)
    assert_has_ended(tmp_path)
    assert not list(tmp_path.glob("*.log"))
    assert signal.getsignal(number) is before


def test_a_command_that_is_not_found_leaves_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="absent cannot be started"):
        run_peers([Peer.parse("absent=no-such-program {port}")], WORK, PeerSettings(), lambda: None, lambda _: None)
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://127.0.0.1:8000", "NAME=URL, or NAME=COMMAND"),
        ("llama=llama-server --port 8080", "NAME=URL, or NAME=COMMAND"),
        ("=http://127.0.0.1:80", "NAME=URL, or NAME=COMMAND"),
        ("llama=llama-server 'a b --port {port}", "quote the command as a shell reads it"),
    ],
)
def test_peers_that_cannot_be_started_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Peer.parse(text)


def test_groups_hold_all_prompts_with_tasks_in_turn() -> None:
    """As many at once as there are clients; the last group is filled up."""
    work = {task: prompts * 2 for task, prompts in WORK.items()}
    groups = peer_groups(work, 4)
    assert [len(group.prompts) for group in groups] == [4, 4]
    assert [prompt.task for prompt in groups[0].prompts] == [*WORK, next(iter(WORK))]
    assert {prompt.text for group in groups for prompt in group.prompts} == {
        prompt.text for prompts in WORK.values() for prompt in prompts
    }
