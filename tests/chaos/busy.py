"""A server on a full machine, under its heaviest requests: every request is answered, and no round is taken for a hang.

    python -m tests.chaos.busy --minutes 30 --load 10
    python -m tests.chaos.busy --minutes 30 --load 10 --model DIR [--draft DIR]

Busy processes compete for the processors. Clients send sixteen choices at once, drafts of 64 tokens, drafts that
branch, sampling from all of the vocabulary, and long prompts. The exit status is 1 if a request failed or the
log speaks of a hang.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.harness import COMPLETIONS
from tests.e2e.conftest import Server, start_server

DEPTH = 64
ANSWER_SECONDS = 1200.0  # for a client to wait: slowness is no failure here, but no answer at all is
LAST_SECONDS = 300.0  # for answers that are still on their way at the end; what comes later is not counted
HANG = "the engine hangs"
# Ends by itself, should the process that started it be killed.
_BUSY = "import os, time\nparent, ends = os.getppid(), time.time() + {seconds}\n"
_BUSY += "while time.time() < ends and os.getppid() == parent: sum(range(100_000))"
_HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: {name}}}\nspec:\n"
_POLICIES = {
    "deep": f"  choose: {{{{algorithm: static, depth: {DEPTH}}}}}\n  drafters: [{{drafter}}]\n",
    "deep-trees": f"  choose: {{{{algorithm: static, depth: {DEPTH}}}}}\n  max-width: 8\n  max-nodes: {DEPTH}\n"
    "  drafters: [{drafter}]\n",
}
_WORDS = ("fox", "boat", "rain", "Tom", "and", "ran", "red", "the", "sea")


@dataclass
class Outcome:
    """What clients got, by HTTP status (0: no answer), and the lines of the log that speak of a hang."""

    minutes: float
    statuses: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    slowest: float = 0.0  # seconds of an answer
    errors: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    status: int = 0  # of the server's process

    @property
    def failed(self) -> int:
        """Requests without a proper answer."""
        return sum(count for status, count in self.statuses.items() if status != 200)

    @property
    def good(self) -> bool:
        return not self.failed and not self.hangs and not self.status and bool(self.statuses)


def busy(minutes: float, load: int, clients: int = 3, model: str | None = None, draft: str | None = None) -> Outcome:
    """Start a server next to `load` busy processes, and send it requests for so long."""
    with tempfile.TemporaryDirectory() as folder, competing(load, 60.0 * minutes + 1800.0):
        arguments = [] if model is None else ["--model", model]
        arguments += [] if draft is None else ["--draft", draft]
        has_draft = model is None or draft is not None
        for name, text in _POLICIES.items():
            file = Path(folder) / f"{name}.yaml"
            drafter = "draft-model" if has_draft else "ngram"
            file.write_text((_HEAD + text).format(name=name, drafter=drafter), encoding="utf-8")
            arguments += ["--policy", str(file)]
        server = start_server(*arguments)
        clients_of = Clients(server, clients, has_draft=has_draft)
        try:
            outcome = clients_of.run(minutes)
        finally:
            status = ended(server)
            clients_of.join()
    outcome.status = status
    outcome.hangs = [line.strip() for line in server.printed if HANG in line]
    return outcome


def ended(server: Server) -> int:
    """Stop the server, with as much patience as a full machine asks for; its exit status."""
    server.process.send_signal(signal.SIGTERM)
    try:
        status = server.process.wait(timeout=600.0)
    finally:
        server.process.kill()
    if server.reader is not None and server.process.stderr is not None:
        server.reader.join(timeout=60.0)
        server.process.stderr.close()
    return status


@contextmanager
def competing(count: int, seconds: float) -> Iterator[None]:
    """Processes that compute, for at most so long."""
    line = [sys.executable, "-c", _BUSY.format(seconds=seconds)]
    processes = [subprocess.Popen(line) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


class Clients:
    """Clients that send one request after another."""

    def __init__(self, server: Server, count: int, *, has_draft: bool) -> None:
        self._server = server
        self._policies: Sequence[str | None] = ("deep", "deep-trees", None) if has_draft else ("deep", None)
        self._context = int(self._get("/v1/models")["data"][0]["max_model_len"])
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]
        self._outcome = Outcome(0.0)
        self._counting = True

    def run(self, minutes: float) -> Outcome:
        """Send for so long, and wait for the last answers."""
        self._outcome.minutes = minutes
        for thread in self._threads:
            thread.start()
        ends = time.monotonic() + 60.0 * minutes
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(60.0, left))
            with self._lock:
                print(f"{minutes - max(0.0, ends - time.monotonic()) / 60:6.1f} min  {described(self._outcome)}")
            sys.stdout.flush()
        self._stop.set()
        ends = time.monotonic() + LAST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        with self._lock:
            self._counting = False
        return self._outcome

    def join(self) -> None:
        """Wait for the clients to end, once the server has."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, seed: int) -> None:
        luck = random.Random(seed)
        while not self._stop.is_set():
            body, began = self._body(luck), time.monotonic()
            status, answer = self._ask(body)
            with self._lock:
                if not self._counting:
                    return
                self._outcome.statuses[status] += 1
                self._outcome.slowest = max(self._outcome.slowest, time.monotonic() - began)
                if status == 200:
                    self._outcome.tokens += int(answer["usage"]["completion_tokens"])
                else:
                    self._outcome.errors.append(f"{status}: {answer}")

    def _body(self, luck: random.Random) -> dict[str, Any]:
        long = luck.random() < 0.3
        count = self._context // 3 if long else 12
        body: dict[str, Any] = {
            "prompt": " ".join(luck.choice(_WORDS) for _ in range(count)),
            "n": luck.choice((1, 4, 16, 16)),
            "max_tokens": luck.choice((2, 8, 24)),
            "seed": luck.randrange(1000),
        }
        body |= luck.choice(
            (
                {"temperature": 0},
                {"temperature": 1.0},
                {"temperature": 1.2, "top_p": 0.98},
                {"temperature": 0.8, "frequency_penalty": 0.3, "logprobs": 5},
            )
        )
        policy = luck.choice(self._policies)
        return body if policy is None else body | {"adaptspec": {"policy": policy}}

    def _ask(self, body: dict[str, Any]) -> tuple[int, Any]:
        request = urllib.request.Request(
            self._server.url + COMPLETIONS, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")[:300]
        except OSError as error:
            return 0, f"{type(error).__name__}: {error}"

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self._server.url + path, timeout=ANSWER_SECONDS) as response:
            return json.load(response)


def described(outcome: Outcome) -> str:
    """Counts in one line."""
    statuses = ", ".join(f"{count} x {status or 'none'}" for status, count in sorted(outcome.statuses.items()))
    return f"answers: {statuses or 'none yet'}; {outcome.tokens} tokens; slowest answer {outcome.slowest:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=int, default=10, help="busy processes")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--model", help="a directory (default: the bundled pair)")
    parser.add_argument("--draft", help="a draft for it (default: n-grams)")
    given = parser.parse_args()
    outcome = busy(given.minutes, given.load, given.clients, given.model, given.draft)
    print(described(outcome))
    fives = sum(count for status, count in outcome.statuses.items() if status >= 500)
    print(f"5xx: {fives}; without an answer: {outcome.statuses[0]}; hang lines: {len(outcome.hangs)}")
    for line in [*outcome.errors[:5], *outcome.hangs[:5]]:
        print(f"  {line}")
    print("good" if outcome.good else "NOT GOOD")
    return not outcome.good


if __name__ == "__main__":
    sys.exit(main())
