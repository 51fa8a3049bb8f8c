"""What one client's stream feels of others' hostile requests: its worst gap between two tokens, and the memory.

    python -m tests.chaos.stalls [--json] [--only WORDS] [--repeat 3]

A server on the bundled pair streams one answer after the other. Beside each of them another client sends one kind of
request again and again. A gap is that between two pieces of the stream; each figure is the median of several streams.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.harness import COMPLETIONS
from tests.chaos.hostile import Hostile, hostile
from tests.e2e.conftest import Server, start_server

KEY = "key"
TOKENS = 300
MOST_GAPS, MOST_MEGABYTES = 3.0, 50.0
PAUSE = 0.25  # seconds between two of the same requests: the server's machine sends them, too
_SLICE = 0.05  # seconds
_STREAM = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "seed": 1}


@dataclass
class Felt:
    """What a stream felt of one kind of request.

    `gap_ms`: its worst gap; `times`: that of a stream alone; `requests` were answered meanwhile with `status`;
    `megabytes` more were resident when all was over, `peak_megabytes` at most.
    """

    name: str
    gap_ms: float
    times: float
    requests: int
    status: str
    megabytes: float
    peak_megabytes: float

    @property
    def good(self) -> bool:
        """Whether it is little enough."""
        return self.times < MOST_GAPS and self.megabytes <= MOST_MEGABYTES


class Sender:
    """A client that sends one request again and again, on connections of their own, until it is stopped."""

    def __init__(self, port: int, request: Hostile) -> None:
        self._port = port
        self._request = request
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.statuses: list[str] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        sent = self._request.sent(KEY)
        while not self._stop.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=60.0) as connection:
                self._send(connection, sent)
                self.statuses.append(connection.recv(12)[9:].decode())
            self._stop.wait(PAUSE)

    def _send(self, connection: socket.socket, sent: bytes) -> None:
        """All of it, at its pace; a server may have closed before it has it all."""
        with suppress(BrokenPipeError, ConnectionResetError):
            if self._request.slow is None:
                connection.sendall(sent)
                return
            step = int(self._request.slow * _SLICE)
            for start in range(0, len(sent), step):
                connection.sendall(sent[start : start + step])
                if self._stop.wait(_SLICE):
                    return


def worst_gap(port: int, tokens: int = TOKENS) -> float:
    """Stream one answer of so many tokens; the longest time between two of its pieces, in seconds."""
    body = json.dumps(_STREAM | {"max_tokens": tokens}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    worst, before, last = 0.0, None, b""
    with socket.create_connection(("127.0.0.1", port), timeout=120.0) as connection:
        connection.sendall(head.encode() + body)
        while b"data: [DONE]" not in last:
            part = connection.recv(65536)
            assert part, "the stream ended early"
            now, last = time.monotonic(), last[-64:] + part
            worst, before = max(worst, 0.0 if before is None else now - before), now
    return worst


def measure(requests: Iterator[Hostile], repeat: int, tokens: int = TOKENS) -> tuple[float, list[Felt]]:
    """The worst gap of streams alone, in milliseconds, and what others felt of each kind of request.

    Streams of so many tokens run alone before each kind, so that what else the machine does is in both figures.
    """
    server = start_server("--max-num-seqs", "4", "--max-waiting", "64", ADAPTSPEC_API_KEY=KEY)
    try:
        port, found, gaps = int(server.url.rsplit(":", 1)[1]), [], []
        for _ in range(3):
            worst_gap(port, tokens)  # whatever is made once is made now
        for request in requests:
            gaps += [worst_gap(port, tokens) for _ in range(repeat)]
            found.append(felt(server, request, repeat, tokens))
    finally:
        server.terminate()
    alone = 1000 * statistics.median(gaps)
    return alone, [replace(one, times=round(one.gap_ms / alone, 2)) for one in found]


def felt(server: Server, request: Hostile, repeat: int, tokens: int) -> Felt:
    """What streams of so many tokens feel of one kind of request."""
    port, process = int(server.url.rsplit(":", 1)[1]), server.process.pid
    before, gaps, statuses = resident(process, "VmRSS"), [], []
    Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is that of what follows
    for _ in range(repeat):
        with Sender(port, request) as sender:
            gaps.append(1000 * worst_gap(port, tokens))
        statuses += sender.statuses
    time.sleep(0.5)
    return Felt(
        request.name,
        round(statistics.median(gaps), 1),
        0.0,
        len(statuses),
        "/".join(sorted(set(statuses))),
        round(resident(process, "VmRSS") - before, 1),
        round(resident(process, "VmHWM") - before, 1),
    )


def resident(process: int, name: str) -> float:
    """Megabytes, from a process's status."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


def _print_figures(alone: float, found: list[Felt]) -> None:
    table = Table("beside", "worst gap", "times alone", "requests", "answered", "MB more", "MB at most", "")
    for one in found:
        numbers = (f"{one.gap_ms} ms", str(one.times), str(one.requests), one.status)
        table.add_row(one.name, *numbers, str(one.megabytes), str(one.peak_megabytes), "" if one.good else "too much")
    console = Console(width=110 if not sys.stdout.isatty() else None)
    console.print(f"worst gap of a stream alone: {alone:.1f} ms")
    console.print(table)


def main() -> int:
    """Measure, and say what was found; 1 if it is too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--only", default="", metavar="WORDS", help="only requests whose names contain these")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="streams for each figure")
    arguments = parser.parse_args()
    requests = (request for request in hostile() if arguments.only in request.name)
    alone, found = measure(requests, arguments.repeat)
    if arguments.json:
        print(json.dumps({"alone_ms": round(alone, 1), "beside": [asdict(one) for one in found]}, indent=1))
    else:
        _print_figures(alone, found)
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
