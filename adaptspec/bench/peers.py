"""Servers of OpenAI's API side by side: the same chat prompts to each in turn, greedy and streamed, by several clients.

A peer is the URL of a server that runs already, or a command that starts one: README.md has commands for some. All
should compute with the same number of threads. Every prompt begins with a random word of the run and with how often it
was sent before, so that no answer comes from a cache.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError

import aiohttp

from adaptspec.bench.core import Answers, CompareSettings, Group, compare, comparison_table
from adaptspec.bench.openai_server import SHOWN, error_text, first_model, opened, server_root
from adaptspec.bench.setup import processor
from adaptspec.bench.workloads import Workloads
from adaptspec.errors import ConfigError
from adaptspec.quantity import quantity
from adaptspec.tables import Table
from adaptspec.training.corpus import Prompt

PORT = "{port}"
_START_SECONDS, _STOP_SECONDS, _ANSWER_SECONDS = 300.0, 15.0, 600.0
_LOADING = 503  # the status of a server that is not ready yet


@dataclass(frozen=True)
class Peer:
    """A server at `url`, or one that `command` starts at a port."""

    name: str
    url: str | None = None
    command: Sequence[str] = ()

    @classmethod
    def parse(cls, text: str) -> Peer:
        """NAME=URL or NAME=COMMAND. Raises ConfigError."""
        name, _, server = text.partition("=")
        if name and server.startswith(("http://", "https://")):
            return cls(name, server_root(server))
        if not name or PORT not in server:
            raise ConfigError(f"--peer {text!r}; give NAME=URL, or NAME=COMMAND with {PORT} where the port belongs")
        try:
            return cls(name, command=shlex.split(server))
        except ValueError as error:
            raise ConfigError(f"--peer {text!r}; quote the command as a shell reads it ({error})") from error


@dataclass(frozen=True)
class PeerSettings:
    """`clients` are numbers of requests at once; each is a comparison of its own."""

    tokens: int = 128
    clients: Sequence[int] = (1, 4, 16)
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.repeats < 1:
            raise ConfigError("a timing needs at least 2 tokens (--tokens) and 1 repeat (--repeats)")


def peer_groups(workloads: Workloads, clients: int) -> list[Group]:
    """All prompts, the tasks in turn, so many at once; the last group is filled up from the first prompts."""
    mixed = [one for turn in itertools.zip_longest(*workloads.values()) for one in turn if one is not None]
    count = -(-len(mixed) // clients)
    prompts = list(itertools.islice(itertools.cycle(mixed), count * clients))
    return [Group(i, "all", prompts[i * clients : (i + 1) * clients]) for i in range(count)]


def run_peers(
    peers: Sequence[Peer],
    workloads: Workloads,
    settings: PeerSettings,
    tick: Callable[[], None],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Start the peers that are commands, compare all by each number of clients, and stop them.

    `tick` is called after each group of prompts, `progress` with what is started. SIGTERM and SIGHUP end it as Ctrl-C
    does, with a KeyboardInterrupt.

    Raises:
        ConfigError: a peer does not start or does not answer; its output is kept then.
    """
    word = secrets.token_hex(4)
    with _interrupting(signal.SIGTERM, signal.SIGHUP), ExitStack() as running:
        contenders = []
        for peer in peers:
            progress(f"starting {peer.name}")
            url = running.enter_context(_started(peer)) if peer.url is None else peer.url
            contenders.append(ServerContender(peer.name, url, settings.tokens, word))
        runs = []
        for clients in settings.clients:
            groups = peer_groups(workloads, clients)
            found = compare(contenders, groups, CompareSettings(settings.repeats), tick)
            runs.append({"clients": clients, "peers": found.to_json()})
    return {
        "benchmark": "peers",
        "processor": processor(),
        "settings": {"tokens": settings.tokens, "repeats": settings.repeats, "word": word},
        "peers": [
            {
                "name": peer.name,
                "url": contender.url,
                "command": list(peer.command),
                "model": contender.model["id"],
                "described": contender.model,
                "tokens_counted_by": "chunks" if contender.counts_chunks else "usage",
            }
            for peer, contender in zip(peers, contenders, strict=True)
        ],
        "runs": runs,
    }


@contextmanager
def _interrupting(*signals: signal.Signals) -> Iterator[None]:
    """These signals raise KeyboardInterrupt meanwhile, unless they are ignored (`nohup`) or handled already."""
    ours = [one for one in signals if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


class ServerContender:
    """A server as a contender. `model` is what /v1/models says of its first one.

    `counts_chunks`: an answer came without `usage`, so that its chunks were counted in place of its tokens.
    """

    def __init__(self, name: str, url: str, tokens: int, word: str) -> None:
        """Asks for the model, and one answer. Prompts begin with `word`. Raises ConfigError: it does not answer."""
        self.name, self.url, self._tokens, self._word = name, url, tokens, word
        self._sent: Counter[str] = Counter()
        self.counts_chunks = False
        try:
            self.model = first_model(url, seconds=_ANSWER_SECONDS)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{name}: {url}/v1/models names no model ({error})") from error
        self.run(Group(0, "all", [Prompt("all", "warm-up", "Say hello.")]))

    def run(self, group: Group) -> Answers:
        return asyncio.run(self._answered([self._marked(prompt.text) for prompt in group.prompts]))

    def _marked(self, text: str) -> str:
        """The text behind the word of this run and how often it was sent in it."""
        count = self._sent[text]
        self._sent[text] += 1
        return f"({self._word} {count}) {text}"

    async def _answered(self, texts: Sequence[str]) -> Answers:
        timeout, connector = aiohttp.ClientTimeout(total=_ANSWER_SECONDS), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            began = time.perf_counter()
            done = await asyncio.gather(*(self._asked(session, text) for text in texts))
            seconds = time.perf_counter() - began
        self.counts_chunks |= any(not one.tokens for one in done)
        return Answers(
            seconds,
            ["".join(one.pieces) for one in done],
            sum(one.tokens or len(one.pieces) for one in done),
            [one.first_token for one in done],
        )

    async def _asked(self, session: aiohttp.ClientSession, text: str) -> _Chat:
        body = {
            "model": self.model["id"],
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        chat, began = _Chat(), time.perf_counter()
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    raise ConfigError(f"{self.name} answers {response.status}: {(await response.text())[:SHOWN]}")
                async for line in response.content:
                    field, _, data = line.decode().strip().partition(":")
                    if field == "data":
                        self._read(data.strip(), chat, began)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ConfigError(f"{self.name} at {self.url} breaks off: {type(error).__name__}: {error}") from error
        if not chat.pieces or not chat.finished:
            lacks = "ends before its finish_reason" if chat.pieces else "holds no text"
            raise ConfigError(f"{self.name} at {self.url}: its answer {lacks}; see its own log")
        return chat

    def _read(self, data: str, chat: _Chat, began: float) -> None:
        """Add an event of the stream to the answer. Raises ConfigError: it is an error, or no chunk of a chat."""
        if data == "[DONE]":
            chat.finished = True
            return
        try:
            chunk = json.loads(data)
            failed = chunk.get("error") is not None
            if usage := chunk.get("usage"):
                chat.tokens = int(usage["completion_tokens"])
            for choice in chunk.get("choices", ()):
                if piece := choice["delta"].get("content"):
                    chat.first_token = chat.first_token or time.perf_counter() - began
                    chat.pieces.append(str(piece))
                chat.finished |= choice.get("finish_reason") is not None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.name} at {self.url} sends no chunk of a chat: {data[:SHOWN]}") from error
        if failed:
            raise ConfigError(f"{self.name} at {self.url} answers with an error: {data[:SHOWN]}")


@dataclass
class _Chat:
    """An answer as it comes; `tokens` are those of its usage, None without. `first_token` in seconds."""

    pieces: list[str] = field(default_factory=list)
    tokens: int | None = None
    first_token: float = 0.0
    finished: bool = False


@contextmanager
def _started(peer: Peer) -> Iterator[str]:
    """The URL of a server that its command starts; at the end it is stopped with all processes that it started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command, url = [word.replace(PORT, str(port)) for word in peer.command], f"http://127.0.0.1:{port}"
    prefix = re.sub(r"\W", "-", peer.name)
    with tempfile.NamedTemporaryFile("wb", prefix=f"{prefix}-", suffix=".log", delete=False) as log:
        path, named = Path(log.name), False
        try:
            with _running(peer.name, command, log) as process:
                _wait(peer.name, process, url)
                yield url
        except ConfigError as error:
            named = path.stat().st_size > 0
            if not named:
                raise
            raise ConfigError(f"{error}\nthe output of {peer.name} is in {path}") from error
        finally:
            if not named:
                path.unlink()


@contextmanager
def _running(name: str, command: Sequence[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which a wrapper's children belong to; the whole group is ended."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise ConfigError(f"{name} cannot be started ({error})") from error
    try:
        yield process
    finally:
        ends = time.monotonic() + _STOP_SECONDS
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < ends:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(name: str, process: subprocess.Popen[bytes], url: str) -> None:
    """Until the server answers a chat of one token: some list their models while they load them.

    Raises ConfigError: it ends before, refuses the chat, or takes too long.
    """
    ends, reason = time.monotonic() + _START_SECONDS, ""
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise ConfigError(f"{name} ended with status {process.returncode} before it answered at {url}")
        try:
            model = first_model(url, seconds=5.0)["id"]
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            with opened(f"{url}/v1/chat/completions", body, seconds=_START_SECONDS):
                return
        except HTTPError as error:
            if error.code != _LOADING:
                raise ConfigError(f"{name} answers {error.code} at {error.url}: {error_text(error)}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:  # it does not listen yet, or has no model yet
            reason = f" ({error})"
        time.sleep(0.2)
    raise ConfigError(f"{name} does not answer a chat at {url} within {_START_SECONDS:.0f} s{reason}")


def peers_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    models = {one["name"]: one["model"] for one in result["peers"]}
    same = len(set(models.values())) == 1
    model = f", {next(iter(models.values()))}" if same else ""
    chunks = [one["name"] for one in result["peers"] if one["tokens_counted_by"] == "chunks"]
    return [
        *(
            comparison_table(run["peers"], f"{quantity(run['clients'], 'client')}{model} on {result['processor']}")
            for run in result["runs"]
        ),
        *([] if same else [f"Models: {'; '.join(f'{name}: {served}' for name, served in models.items())}."]),
        *([f"No usage from {', '.join(chunks)}: chunks are counted in place of tokens there."] if chunks else []),
    ]
