"""vLLM's own server on the bundled pair, started by the command that we print."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hosts.vllm.conftest import QUIET, ROOT

MODELS = ROOT / "adaptspec" / "models" / "bundled"
_VLLMS = ("--host", "127.0.0.1", "--served-model-name", "m", "--max-model-len", "512", "--enforce-eager")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def served(python: Path, port: int, log: Path, ours: list[str], theirs: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server that starts, in a group of processes of its own, with flags of `adaptspec host vllm` and of vLLM."""
    line = [sys.executable, "-m", "adaptspec", "host", "vllm", "--model", str(MODELS / "target")]
    line += ["--draft", str(MODELS / "draft"), "--max-num-seqs", "16", *ours]
    line += ["--", "--port", str(port), *_VLLMS, "--dtype", "float32", *theirs]
    words = shlex.split(subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    settings = QUIET | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with open(log, "w") as told:
        process = subprocess.Popen(
            [str(python), *words[1:]], env=clean | settings, stdout=told, stderr=told, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers."""
    for _ in range(1200):
        with suppress(OSError):
            urllib.request.urlopen(url + "/health", timeout=5)
            return
        assert process.poll() is None, log.read_text()[-4000:]
        time.sleep(0.5)
    raise AssertionError(f"it does not answer: {log.read_text()[-4000:]}")
