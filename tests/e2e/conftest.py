"""A real server process on the bundled pair, shared by the tests here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest


@dataclass
class Server:
    """A running `adaptspec serve`: its URL, its process, and what it printed to standard error."""

    url: str
    process: subprocess.Popen[str]
    printed: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=40)
        if self.reader is not None and self.process.stderr is not None:
            self.reader.join(timeout=10)
            self.process.stderr.close()
        return status


def start_server(*arguments: str, under: Sequence[str] = (), **environment: str) -> Server:
    """Start a server on a free port and wait until it listens; `environment` is added to this process's own.

    `under` is the beginning of a command line that runs the rest of it in some other way.
    """
    command = [*under, sys.executable, "-m", "adaptspec", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
    assert process.stderr is not None
    printed: list[str] = []
    for line in process.stderr:
        printed.append(line)
        if line.startswith("    -d"):  # the last line of the curl to try
            break
    found = re.search(r"listens on (http://\S+)", "".join(printed))
    assert found is not None, f"the server did not start: {''.join(printed)}"
    server = Server(found[1], process, printed)
    server.reader = threading.Thread(target=lambda: printed.extend(process.stderr or ()))
    server.reader.start()
    return server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of the session, stopped gently afterwards."""
    running = start_server()
    yield running
    if running.process.poll() is None:
        assert running.terminate() == 0
