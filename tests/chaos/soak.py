"""Mixed load for as long as one likes, on a server process: memory stays flat, nothing is left over, latency steady.

    python -m tests.chaos.soak --minutes 10

Clients chat, stream, sample, send long prompts, several prompts at once and nonsense, and leave in the middle. Every
few seconds it notes the server's memory, descriptors and threads, and the time between the pieces of a stream.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.harness import CANARY, CHAT, COMPLETIONS, post
from tests.e2e.conftest import Server, start_server

MEGABYTE = 2.0**20
PATIENCE = 5.0  # minutes more, on a machine that has other things to do


@dataclass
class Sample:
    """The server at one moment. `gaps`: seconds between pieces of the streams since the last sample."""

    minutes: float
    megabytes: float
    descriptors: int
    threads: int
    gaps: list[float] = field(repr=False)

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps, in milliseconds."""
        return float(np.percentile(self.gaps, 99)) * 1000 if self.gaps else float("nan")


@dataclass
class VerifyResult:
    """What a soak came to. Growth is that of a line through the second half of it."""

    samples: list[Sample]
    requests: int
    failures: list[str]
    megabytes_per_10_minutes: float
    descriptors_more: int
    threads_more: int
    p99_halves: tuple[float, float]  # milliseconds, of the third and the last quarter


def soak(minutes: float, clients: int = 4, every: float = 2.0, least: int = 0) -> VerifyResult:
    """Start a server, load it for so long and until `least` requests have been answered, and stop it."""
    # One arena: the allocator's own habit of growing with threads is not what is looked for.
    os.environ["MALLOC_ARENA_MAX"] = "1"
    server = start_server("--max-num-seqs", "4", "--max-waiting", "64")
    load = Load(server, clients)
    try:
        usual = load.canary()
        if minutes > 1:
            load.warm_up(rows=4)
        load.start()
        samples = []
        began = time.monotonic()
        while (passed := (time.monotonic() - began) / 60) < minutes or load.requests < least:
            assert passed < minutes + PATIENCE, f"{load.requests} requests in {passed:.1f} minutes"
            time.sleep(every)
            samples.append(measure(server.process.pid, passed, load.take_gaps()))
        load.stop()
        if load.canary() != usual:
            load.failures.append("the canary says something else now")
        time.sleep(1.0)
        left = json.loads(load.get("/health"))
        if left["running"] or left["waiting"]:
            load.failures.append(f"requests are left over: {left}")
        last = measure(server.process.pid, minutes, [])
    finally:
        load.stop()
        status = server.terminate()
    if status:
        load.failures.append(f"the server ended with {status}")
    half = samples[len(samples) // 2 :]
    slope = np.polyfit([s.minutes for s in half], [s.megabytes for s in half], 1)[0] if len(half) > 2 else 0.0
    quarters = half[: len(half) // 2], half[len(half) // 2 :]
    p99 = [float(np.percentile([g for s in part for g in s.gaps] or [0.0], 99)) * 1000 for part in quarters]
    first = samples[0]
    return VerifyResult(
        samples,
        load.requests,
        load.failures,
        float(slope) * 10,
        last.descriptors - first.descriptors,
        last.threads - first.threads,
        (p99[0], p99[1]),
    )


def measure(process: int, minutes: float, gaps: list[float]) -> Sample:
    """Private memory, descriptors and threads of a process."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return Sample(
        minutes,
        private / 1024,
        len(os.listdir(f"/proc/{process}/fd")),
        len(os.listdir(f"/proc/{process}/task")),
        gaps,
    )


class Load:
    """Clients that come and go until they are stopped."""

    def __init__(self, server: Server, clients: int) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._gaps: list[float] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(clients)]
        self.requests = 0
        self.failures: list[str] = []

    def start(self) -> None:
        """Let them come."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until all have gone."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(60.0)

    def take_gaps(self) -> list[float]:
        """Those noted since the last call."""
        with self._lock:
            gaps, self._gaps = self._gaps, []
        return gaps

    def warm_up(self, rows: int) -> None:
        """Have every row's cache written to its end, and every size of pass run: what is used first grows then."""
        for tokens in (900, 500, 100):
            body = CANARY | {"prompt": [[5] * tokens] * rows, "ignore_eos": True, "max_tokens": 1010 - tokens}
            for more in ({}, {"temperature": 0.8, "top_p": 0.9}, {"adaptspec": {"policy": "static-3"}}):
                assert b'"choices"' in self._ask(post(COMPLETIONS, body | more))

    def canary(self) -> str:
        """The text that must never change."""
        return str(json.loads(self._ask(post(COMPLETIONS, CANARY)))["choices"][0]["text"])

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        return self._ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def _run(self, seed: int) -> None:
        luck = random.Random(seed)
        while not self._stop.is_set():
            kind = luck.choice((self._whole, self._whole, self._stream, self._stream, self._leave, self._nonsense))
            try:
                kind(luck)
            except (OSError, ValueError, AssertionError) as error:
                self.failures.append(f"{kind.__name__}: {type(error).__name__}: {error}")
            self.requests += 1

    def _body(self, luck: random.Random) -> dict[str, Any]:
        words = " ".join(luck.choice(("fox", "boat", "rain", "Tom", "and", "ran", "red")) for _ in range(4))
        body: dict[str, Any] = CANARY | {
            "prompt": words * luck.choice((1, 1, 1, 30)),
            "max_tokens": luck.randint(1, 64),
        }
        body |= {"temperature": luck.choice((0, 0.8)), "seed": luck.randrange(1000)}
        body |= luck.choice(({}, {"top_p": 0.9}, {"adaptspec": {"policy": luck.choice(("ucb", "static-3"))}}))
        return body | {"prompt": [words, "The sea"]} if luck.random() < 0.1 else body

    def _whole(self, luck: random.Random) -> None:
        if luck.random() < 0.5:
            talk = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": luck.randint(1, 64)}
            assert b'"choices"' in self._ask(post(CHAT, talk))
        else:
            assert b'"choices"' in self._ask(post(COMPLETIONS, self._body(luck)))

    def _stream(self, luck: random.Random) -> None:
        with self._connect(post(COMPLETIONS, self._body(luck) | {"stream": True})) as connection:
            received, last = b"", None
            while b"data: [DONE]" not in received:
                part = connection.recv(65536)
                assert part, "the stream broke off"
                now = time.monotonic()
                if last is not None:
                    with self._lock:
                        self._gaps.append(now - last)
                last, received = now, received[-64:] + part

    def _leave(self, luck: random.Random) -> None:
        with self._connect(post(COMPLETIONS, self._body(luck) | {"max_tokens": 500, "stream": True})) as connection:
            connection.recv(1 + int(2000 * luck.random()))

    def _nonsense(self, luck: random.Random) -> None:
        wrong = luck.choice(({"prompt": -1}, {"max_tokens": 0}, {"temperature": "hot"}, {"colour": "red"}))
        assert b'"error"' in self._ask(post(COMPLETIONS, CANARY | wrong))

    def _connect(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=60.0)
        connection.sendall(sent)
        return connection

    def _ask(self, sent: bytes) -> bytes:
        head, _, rest = sent.partition(b"\r\n")
        with self._connect(head + b"\r\nConnection: close\r\n" + rest) as connection:
            received = b""
            while part := connection.recv(65536):
                received += part
        return received.partition(b"\r\n\r\n")[2]


def main() -> None:
    """Say how it went, minute by minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    verdict = soak(arguments.minutes, arguments.clients)
    step = max(1, len(verdict.samples) // 15)
    for sample in verdict.samples[::step]:
        open_things = f"{sample.descriptors} fds  {sample.threads} threads"
        print(f"{sample.minutes:6.1f} min  {sample.megabytes:7.1f} MB  {open_things}  p99 {sample.p99:.1f} ms")
    print(f"{verdict.requests} requests, {len(verdict.failures)} failures {verdict.failures[:3]}")
    print(f"memory: {verdict.megabytes_per_10_minutes:+.2f} MB per 10 minutes over the second half")
    print(f"descriptors {verdict.descriptors_more:+d}, threads {verdict.threads_more:+d}")
    print("p99 between pieces: {:.1f} ms, then {:.1f} ms".format(*verdict.p99_halves))


if __name__ == "__main__":
    main()
