"""Two vLLM engines behind nginx, as examples/vllm-router has it: they are killed, and no request is lost.

`pytest -n0 -m nightly tests/hosts/scale` needs nginx (Debian: nginx-light), and vLLM as `pytest -m hosts` does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.hosts.scale.load import ask
from tests.hosts.vllm.served import free_port, served, wait_for

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "examples" / "vllm-router" / "nginx.conf"


@dataclass
class Engine:
    """A vLLM that may be killed and started again."""

    python: Path
    folder: Path
    log: Path
    port: int = field(default_factory=free_port)
    running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        ours = ["--policy", "goodput", "--state-dir", str(self.folder)]
        theirs = ["--shutdown-timeout", "20"]
        self.process = self.running.enter_context(served(self.python, self.port, self.log, ours, theirs))

    def wait(self) -> None:
        wait_for(f"http://127.0.0.1:{self.port}", self.process, self.log)

    def kill(self) -> None:
        """All of its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def kill_core(self) -> None:
        """The process that has the models; its HTTP server then answers with 500, and ends."""
        told = subprocess.check_output(["ps", "-o", "pid=,args=", "-g", str(self.process.pid)], text=True)
        (core,) = [line.split()[0] for line in told.splitlines() if "EngineCore" in line]
        os.kill(int(core), signal.SIGKILL)


@dataclass(frozen=True)
class Fleet:
    url: str
    engines: tuple[Engine, Engine]


@contextmanager
def routed(folder: Path, *engines: Engine) -> Iterator[str]:
    """The example's nginx in front of engines, none of which need be up."""
    port, config = free_port(), CONFIG.read_text()
    for told, real in zip((8000, 8001, 8002), (port, *(one.port for one in engines)), strict=True):
        assert config.count(f":{told}") == 1
        config = config.replace(f":{told}", f":{real}")
    (folder / "nginx.conf").write_text(config)
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx, "apt-get install nginx-light"
    with open(folder / "nginx.log", "w") as log:
        process = subprocess.Popen([nginx, "-p", str(folder), "-c", "nginx.conf"], stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def fleet(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("router")
    one, two = (Engine(vllm_python, folder / "state", folder / f"{name}.log") for name in ("one", "two"))
    with routed(folder, one, two) as url, one.running, two.running:
        for engine in (one, two):
            engine.start()
        for engine in (one, two):
            engine.wait()
        yield Fleet(url, (one, two))


def asked(fleet: Fleet, count: int, then: Callable[[], object] = lambda: None) -> None:
    """Requests that nobody sends again: all are answered, those of equal prompts alike."""
    outcome = ask(fleet.url, "m", count, then, repeats=0)
    assert not outcome.lost
    assert outcome.answered == count
    assert outcome.alike


def test_no_request_is_lost(fleet: Fleet) -> None:
    """The one's core dies, it is started again, the other is killed: nginx gives what was not answered to the other."""
    one, two = fleet.engines
    asked(fleet, 100)
    asked(fleet, 200, one.kill_core)
    one.start()
    one.wait()
    asked(fleet, 100)
    asked(fleet, 200, two.kill)
    one.running.close()
