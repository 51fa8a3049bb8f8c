"""A real server process on the bundled pair, shared by the tests here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Server:
    """A running `adaptspec serve`: its URL, its process, and what it printed to standard error."""

    url: str
    process: subprocess.Popen[str]
    printed: list[str] = field(default_factory=list)

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=40)


def start_server(*arguments: str) -> Server:
    """Start a server on a free port and wait until it listens."""
    command = [sys.executable, "-m", "adaptspec", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    printed: list[str] = []
    for line in process.stderr:
        printed.append(line)
        found = re.search(r"listens on (http://\S+)", line)
        if found:
            server = Server(found[1], process, printed)
            threading.Thread(target=lambda: printed.extend(process.stderr or ()), daemon=True).start()
            return server
    raise AssertionError(f"the server did not start: {''.join(printed)}")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of the session, stopped gently afterwards."""
    running = start_server()
    yield running
    if running.process.poll() is None:
        assert running.terminate() == 0
