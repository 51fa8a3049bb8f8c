"""Two of our servers under Ray Serve: one is killed, clients lose nothing, and what it had learned is there.

`pytest -n0 -m nightly tests/hosts/scale`, three minutes on two cores once Ray is there (0.4 GB, as clients are: see
tests/clients).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from adaptspec.arrays import FloatArray
from adaptspec.cli import main
from adaptspec.control.learned_state import FILE, read_state
from tests.clients.conftest import environment
from tests.hosts.scale.load import AT_ONCE, ask
from tests.hosts.vllm.served import free_port

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "under_ray.py"


@dataclass(frozen=True)
class Replica:
    """An actor of Ray's, its server, and where that keeps what it learns."""

    actor: int
    server: int
    port: int
    place: Path

    @property
    def answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


@dataclass(frozen=True)
class Cluster:
    url: str
    state: Path
    log: Path
    process: subprocess.Popen[str]

    def replicas(self) -> list[Replica]:
        """Those whose server runs, by place."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                if "--state-dir" in words and Path(words[words.index("--state-dir") + 1]).parent == self.state:
                    place, port = (words[words.index(name) + 1] for name in ("--state-dir", "--port"))
                    parent = (folder / "stat").read_text().rpartition(") ")[2].split()[1]
                    found.append(Replica(int(parent), int(folder.name), int(port), Path(place)))
        return sorted(found, key=lambda one: one.place)

    def ready(self) -> list[Replica]:
        """Both, as soon as they answer."""
        for _ in range(600):
            there = self.replicas()
            if len(there) == 2 and all(one.answers for one in there):
                return there
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            time.sleep(0.2)
        raise AssertionError(f"no two replicas: {self.log.read_text()[-4000:]}")

    def counted(self, place: Path) -> float:
        """What a place's policy has seen of first tokens of drafts; 0: nothing was saved yet."""
        return float(acceptance(place)[0, 0, 0]) if (place / FILE).exists() else 0.0


def acceptance(state: Path) -> FloatArray:
    return read_state(state / FILE if state.is_dir() else state).policies["goodput"].arrays["acceptance"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, port = tmp_path_factory.mktemp("ray"), free_port()
    python = environment("ray", "ray[serve]==2.60.0") / "python"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean |= {"PYTHONPATH": str(ROOT), "STATE": str(folder / "state"), "RAY_USAGE_STATS_ENABLED": "0"}
    clean |= {"ADAPTSPEC": str(Path(sys.executable).parent / "adaptspec")}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [python, PROGRAM, str(port)],
            env=clean,
            text=True,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    made = Cluster(f"http://127.0.0.1:{port}", folder / "state", folder / "log", process)
    try:
        while "ready" not in made.log.read_text().splitlines():
            assert process.poll() is None, made.log.read_text()[-4000:]
            time.sleep(0.5)
        yield made
    finally:
        if process.poll() is None:
            process.communicate(timeout=100)


@pytest.mark.parametrize("what", ["actor", "server"])
def test_no_request_is_lost_that_clients_repeat(cluster: Cluster, what: str) -> None:
    """What runs in a replica as it dies is answered with 500; OpenAI's package sends it again, to another."""
    victim = cluster.ready()[0]
    outcome = ask(cluster.url, "bundled", 200, lambda: os.kill(getattr(victim, what), signal.SIGKILL))
    assert not outcome.lost
    assert outcome.answered == 200
    assert outcome.alike
    assert outcome.repeated <= 2 * AT_ONCE


def test_what_replicas_learned_outlives_them_and_adds(cluster: Cluster, tmp_path: Path) -> None:
    """A replica that takes a dead one's place goes on from what that had saved; in the end the states are added."""
    victim, other = cluster.ready()
    ask(cluster.url, "bundled", 100, lambda: None)
    for _ in range(900):  # servers save every minute
        if cluster.counted(victim.place) and cluster.counted(other.place):
            break
        time.sleep(0.1)
    saved = cluster.counted(victim.place)
    assert saved > 0.0
    os.kill(victim.actor, signal.SIGKILL)
    while victim in cluster.replicas():
        time.sleep(0.1)
    again = next(one for one in cluster.ready() if one.place == victim.place)
    assert again.server != victim.server
    cluster.process.communicate(timeout=100)
    assert not cluster.replicas()
    assert cluster.counted(victim.place) >= saved
    places = [victim.place, other.place]
    assert main(["state", "merge", *map(str, places), "-o", str(tmp_path / FILE)]) == 0
    np.testing.assert_allclose(acceptance(tmp_path / FILE), sum(map(acceptance, places)))
