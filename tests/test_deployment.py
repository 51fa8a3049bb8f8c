"""Examples of deployment and what the repository's host reads: their options, files and versions exist."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import yaml

from adaptspec.commands.serve_command import add_arguments
from adaptspec.config import ServeConfig
from adaptspec.settings import load

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "examples" / "Dockerfile").read_text()
UNIT = (ROOT / "examples" / "adaptspec.service").read_text()
GITHUB = ROOT / ".github"


def _serve(command: list[str]) -> ServeConfig:
    """The settings of an `adaptspec serve` command; unknown options fail."""
    program, name, *options = command
    assert (Path(program).name, name) == ("adaptspec", "serve")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load(ServeConfig, parser.parse_args(options).settings, environ={})


def _instructions(name: str) -> list[str]:
    """The arguments of a Dockerfile's instructions of one name, in order."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE))
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def _of_unit(name: str) -> list[str]:
    return re.findall(rf"(?m)^{name}=(.*)$", UNIT)


def test_the_image_serves_whom_it_is_told_to_and_says_how_it_is() -> None:
    """A port that others reach, its own user, what it learned in the volume, and the route that needs no key."""
    (entry,), (volume,), (check,) = _instructions("ENTRYPOINT"), _instructions("VOLUME"), _instructions("HEALTHCHECK")
    served = _serve(json.loads(entry))
    assert served.host == "0.0.0.0"
    assert not served.insecure
    assert served.state_dir.is_relative_to(volume)
    assert f"http://127.0.0.1:{served.port}/health'" in check
    assert _instructions("EXPOSE") == [str(served.port)]
    (user,) = _instructions("USER")
    assert f"--uid {user} " in DOCKERFILE


def test_the_image_is_made_of_what_the_checkout_has() -> None:
    """Everything that is copied is there, and the versions are the tested ones."""
    copied = [word for line in _instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert ".ci/constraints.txt" in copied
    assert all((ROOT / path).exists() for path in copied)
    assert any("-c .ci/constraints.txt" in line for line in _instructions("RUN"))


def test_the_unit_starts_a_server_that_asks_for_keys() -> None:
    """Its options are ours, and it writes only where systemd lets it."""
    (start,) = _of_unit("ExecStart")
    served = _serve(shlex.split(start))
    (credential,) = _of_unit("LoadCredential")
    assert str(served.api_key_file) == f"%d/{credential.partition(':')[0]}"
    assert str(served.state_dir) == f"%S/{_of_unit('StateDirectory')[0]}"
    assert str(served.journal.parent) == f"%L/{_of_unit('LogsDirectory')[0]}"
    assert float(_of_unit("TimeoutStopSec")[0]) > served.shutdown_timeout
    assert _of_unit("DynamicUser") == ["yes"]
    assert (_of_unit("Type"), _of_unit("TimeoutStartSec")) == (["notify"], ["infinity"]), "models take minutes to load"
    assert "AF_UNIX" in _of_unit("RestrictAddressFamilies")[0], "by which it notifies"


def test_the_workflow_runs_everything_on_every_python() -> None:
    """The versions that pyproject.toml promises are those that are tried."""
    (job,) = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"].values()
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == promised
    assert any(step.get("run", "").startswith(".ci/run ") for step in job["steps"])
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
