"""Every algorithm is built from its shortest file and chooses within limits; those of packages are checked."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import pytest

from adaptspec.control.algorithms.fixed_depths import StaticSpec
from adaptspec.control.algorithms.registry import GROUP, load
from tests.control.algorithms.makers import parts
from tests.control.helpers import record, signals

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_algorithm"


class WorksSpec(StaticSpec):
    algorithm: Literal["works"]  # type: ignore[assignment]


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


@pytest.fixture
def _example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.usefixtures("_example")
def test_the_example_drafts_one_more_than_was_accepted() -> None:
    spec = load([point("last-run", "last_run:LastRunSpec")]).specs["last-run"]
    built_from = replace(parts(rows=2, tasks=1), tiers=(1, 2, 3))
    algorithm = spec.model_validate({"algorithm": "last-run"}).build(built_from)
    algorithm.start(0)
    algorithm.start(1)
    assert algorithm.choose(signals([7, 2])).depths.tolist() == [3, 2]
    algorithm.learn(record([3, 2], [3, 0]))
    assert algorithm.choose(signals([7, 7])).depths.tolist() == [3, 1]
    assert algorithm.learned() == {}


@pytest.mark.usefixtures("_example")
def test_the_example_bandit_finds_the_fastest_depth_again_after_traffic_changes() -> None:
    depths = _EpsilonGreedyRun({1: 1, 2: 0, 3: 3})
    assert depths.most_frequent(rounds=400) == 3
    depths.accepted = {1: 1, 2: 0, 3: 0}
    assert depths.most_frequent(rounds=100) == 1


@pytest.mark.usefixtures("_example")
def test_the_example_bandit_ignores_rounds_that_read_prompts() -> None:
    depths = _EpsilonGreedyRun({1: 0, 2: 0, 3: 3}, prefill=500)
    assert depths.most_frequent(rounds=200) == 1  # the first of depths of which none is known
    depths.prefill = 0
    assert depths.most_frequent(rounds=200) == 3


class _EpsilonGreedyRun:
    """Rounds of one row by `epsilon-greedy`, in which `accepted` gives the accepted tokens by depth."""

    def __init__(self, accepted: dict[int, int], prefill: int = 0) -> None:
        spec = load([point("epsilon-greedy", "epsilon_greedy:EpsilonGreedySpec")]).specs["epsilon-greedy"]
        algorithm = spec.model_validate({"algorithm": "epsilon-greedy"}).build(replace(parts(), tiers=(1, 2, 3)))
        self._algorithm, self.accepted, self.prefill = algorithm, accepted, prefill

    def most_frequent(self, rounds: int) -> int:
        """The most frequent depth in the last half of the rounds."""
        depths = [self._round() for _ in range(rounds)]
        return max(set(depths), key=depths[rounds // 2 :].count)

    def _round(self) -> int:
        choice = self._algorithm.choose(signals([7]))
        depth = int(choice.depths[0])
        self._algorithm.learn(record([depth], [self.accepted[depth]], prefill=self.prefill), choice.memo)
        return depth


@pytest.mark.usefixtures("_example")
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gone", "no_such_module:Spec", "ModuleNotFoundError"),
        ("last-run", "last_run:LastRun", "no subclass of"),
        ("lastrun", "last_run:LastRunSpec", "must be Literal['lastrun']"),
    ],
)
def test_what_cannot_be_used_is_told_and_stops_nothing(
    name: str, value: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = load([point(name, value), point("works", "tests.control.algorithms.test_registry:WorksSpec")])
    assert [said in message for message in caplog.messages] == [True]
    assert list(found.specs) == ["works"]
    assert said in found.failed[name]


def test_an_algorithm_that_takes_no_memo_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As algorithms of packages were before. It would fail in each round, and never learn."""
    text = (EXAMPLE / "last_run.py").read_text(encoding="utf-8").replace(", memo: object = None)", ")")
    (tmp_path / "old_last_run.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = load([point("last-run", "old_last_run:LastRunSpec")])
    assert not found.specs
    assert "LastRun.learn must be learn(self, record, memo=None): too many" in found.failed["last-run"]


@pytest.mark.whole
def test_policies_name_what_is_installed_and_nothing_else(tmp_path: Path) -> None:
    """As `pip install` leaves it: with its metadata a policy may name the algorithm, without it nothing is imported."""
    policy, bandit = (str(EXAMPLE / name) for name in ("last_run.yaml", "epsilon_greedy.yaml"))
    absent = _validate(policy, [EXAMPLE])
    assert absent.returncode == 2
    assert "last_run.yaml:8:23: spec.choose.algorithm: there is no algorithm 'last-run'" in absent.stderr
    epsilon_greedy = "epsilon-greedy = epsilon_greedy:EpsilonGreedySpec\n"
    _install(tmp_path, "last-run = last_run:LastRunSpec\nbroken = last_run:Nothing\n" + epsilon_greedy)
    for path in (policy, bandit):
        present = _validate(path, [EXAMPLE, tmp_path])
        assert (present.returncode, present.stdout) == (0, f"{path}: ok\n"), present.stderr
    wrong = tmp_path / "wrong.yaml"
    text = (EXAMPLE / "last_run.yaml").read_text()
    wrong.write_text(text.replace("first: 2", "frist: 2"))
    said = _validate(str(wrong), [EXAMPLE, tmp_path]).stderr
    assert "wrong.yaml:8:33: spec.choose.frist: unknown key (did you mean 'first'?)" in said
    wrong.write_text(text.replace("last-run, first: 2", "broken"))
    said = _validate(str(wrong), [EXAMPLE, tmp_path]).stderr
    assert (
        "there is no algorithm 'broken' here: adaptspec-own-algorithms brings it, and it cannot be used (Attr" in said
    )


def _install(folder: Path, entries: str) -> None:
    metadata = folder / "adaptspec_own_algorithms-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptspec-own-algorithms\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")


def _validate(policy: str, places: list[Path]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "adaptspec", "policy", "validate", policy]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)


def test_no_package_takes_a_name_of_ours() -> None:
    """Two algorithms of one name would end every command."""
    found = load([point("goodput", "adaptspec.control.algorithms.goodput:GoodputSpec")])
    assert (found.specs, "another name" in found.failed["goodput"]) == ({}, True)
