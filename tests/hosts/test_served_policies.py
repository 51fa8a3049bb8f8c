"""Policies inside another engine change as their files do, and never for the worse."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.host import Host
from adaptspec.hosts.rounds import costs_of_steps
from adaptspec.hosts.served_policies import ServedPolicies
from adaptspec.request import Request
from tests.hosts.test_pilot import STATIC
from tests.policies.hosted import VLLM, piloted, serve


def test_garbage_in_the_policy_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last good one stays, the log says so once, and a good one is taken again."""
    path = tmp_path / "mine.yaml"
    path.write_text(STATIC % 3)
    world = piloted(policy=str(path))
    assert world.pilot is not None
    caplog.set_level(logging.WARNING)
    rng = np.random.default_rng(0)
    for number in range(40):
        path.write_bytes(rng.bytes(64 + number))
        world.pilot.look()
        assert serve(world, (0.5,), 2, 10) > 0.0
        assert {one.drafted for one in world.running} <= {0, 1, 2, 3}
    assert len([one for one in caplog.records if "stays" in one.message]) == 1
    path.write_text(STATIC % 1)
    world.pilot.look()
    for _ in range(3):
        world.step()
    assert {one.drafted for one in world.running} <= {0, 1}
    assert not world.pilot.errors
    world.pilot.close()


def test_a_used_file_is_watched_next_to_the_file_that_names_it(tmp_path: Path) -> None:
    path, used = tmp_path / "mine.yaml", tmp_path / "used.yaml"
    used.write_text((STATIC % 1).replace("name: mine", "name: used"))
    when = "when: [{prompt-tokens: {at-least: 2}, use: used.yaml}]"
    path.write_text((STATIC % 3).replace("spec: {", f"spec: {{{when}, "))
    policies = ServedPolicies((str(path),), VLLM, 4)
    used.write_text((STATIC % 2).replace("name: mine", "name: used"))
    policies.look()
    cost = costs_of_steps()
    policies.adopt(policies.controller(cost), cost)
    assert policies.specs["used"].spec.choose.depth == 2  # type: ignore[union-attr]
    assert policies.reloads.applied == 1


USED = STATIC.replace("name: mine", "name: used")
WHEN = "spec: {when: [{prompt-tokens: {at-least: 1000}, use: %s}], "


def adopted(policies: ServedPolicies) -> Controller:
    """The controller after files were looked at."""
    cost = costs_of_steps()
    controller = policies.controller(cost)
    policies.look()
    policies.adopt(controller, cost)
    return controller


def test_a_used_policy_that_comes_with_a_reload_keeps_its_rollout(tmp_path: Path) -> None:
    """As at a start: a canary takes its share of the requests that match no `when`."""
    path = tmp_path / "mine.yaml"
    path.write_text(STATIC % 3)
    (tmp_path / "used.yaml").write_text((USED % 1).replace("spec: {", "spec: {rollout: {mode: canary, percent: 100}, "))
    policies = ServedPolicies((str(path),), VLLM, 4)
    path.write_text((STATIC % 3).replace("spec: {", WHEN % "used.yaml"))
    assert adopted(policies).assigned(Request("r", (1,))) == "used"
    again = ServedPolicies((str(path),), VLLM, 4)
    assert adopted(again).assigned(Request("r", (1,))) == "used"


def test_two_files_of_one_name_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A policy that is used does not replace that of another file, whether that is served or read at the same time."""
    for folder, depth in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "used.yaml").write_text(USED % depth)
    mine, yours = tmp_path / "mine.yaml", tmp_path / "yours.yaml"
    texts = {mine: STATIC % 3, yours: (STATIC % 3).replace("mine", "yours")}
    for path, text in texts.items():
        path.write_text(text)
    policies = ServedPolicies((str(mine), str(yours)), VLLM, 4)
    for path, folder in ((mine, "a"), (yours, "b")):
        path.write_text(texts[path].replace("spec: {", WHEN % f"{folder}/used.yaml"))
    adopted(policies)
    assert policies.reloads.refused == 1
    assert policies.specs["used"].spec.choose.depth == 1  # type: ignore[union-attr]
    yours.write_text(texts[yours].replace("spec: {", WHEN % "b/used.yaml") + "\n")
    adopted(policies)
    assert policies.reloads.refused == 2
    assert caplog.text.count("both hold a policy called used") == 1, "the log says it once"


def test_a_used_policy_uses_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, used = tmp_path / "mine.yaml", tmp_path / "used.yaml"
    used.write_text(USED % 1)
    path.write_text((STATIC % 3).replace("spec: {", WHEN % "used.yaml"))
    policies = ServedPolicies((str(path),), VLLM, 4)
    used.write_text((USED % 2).replace("spec: {", WHEN % "off"))
    adopted(policies)
    assert "mine uses this policy, so it cannot use others itself" in caplog.text
    assert policies.specs["used"].spec.choose.depth == 1  # type: ignore[union-attr]


def test_a_new_text_keeps_what_was_learned(tmp_path: Path) -> None:
    """Where its arms are the same: another guard changes no count."""
    path = tmp_path / "mine.yaml"
    text = STATIC.replace("algorithm: static, depth: %d", "algorithm: goodput")
    path.write_text(text)
    world = piloted(policy=str(path))
    serve(world, (0.75,), 4, 100)
    assert world.pilot is not None
    before = world.pilot.learned()["mine"].arrays["acceptance"].sum()
    path.write_text(text.replace("goodput}", "goodput}, guard: {max-batch-size: 99}"))
    world.pilot.look()
    world.step()
    assert world.pilot.learned()["mine"].arrays["acceptance"].sum() >= 0.9 * before > 0.0
    assert not world.pilot.errors
    world.pilot.close()


def test_a_file_may_not_change_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(STATIC % 3)
    policies = ServedPolicies((str(path),), VLLM, 4)
    path.write_text((STATIC % 3).replace("mine", "yours"))
    policies.look()
    assert list(policies.specs) == ["mine"]
    assert "give it its name back" in caplog.text


def test_a_file_that_could_not_be_read_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where that was the machine's fault: the log says it once, and others are read meanwhile."""
    short = list[str]()

    class Short(Host):
        @property
        def depths(self) -> tuple[int, ...]:
            if short and short.pop():
                raise MemoryError
            return super().depths

    names = ("mine", "yours")
    for name in names:
        (tmp_path / f"{name}.yaml").write_text((STATIC % 3).replace("mine", name))
    policies = ServedPolicies(tuple(str(tmp_path / f"{name}.yaml") for name in names), Short(**vars(VLLM)), 4)
    for name in names:
        (tmp_path / f"{name}.yaml").write_text((STATIC % 1).replace("mine", name))
    for _ in range(3):
        short[:] = ["mine"]  # of the first alone: the second has been read, or is as it was
        policies.look()
    assert len(caplog.records) == 1
    short.clear()
    policies.look()
    cost = costs_of_steps()
    policies.adopt(policies.controller(cost), cost)
    assert [policies.specs[name].spec.choose.depth for name in names] == [1, 1]  # type: ignore[union-attr]
    assert policies.reloads.applied == 2
