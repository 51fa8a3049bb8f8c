"""What is refused at the start, and by which words: what vLLM is not, and what it is not set up for."""

from __future__ import annotations

import ast
import logging
import math
import re
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptspec.control.host import Host
from adaptspec.errors import ConfigError
from adaptspec.hosts.engine_contract import ANY_VERSION
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.rounds import Plan
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.vllm import contract
from adaptspec.hosts.vllm.contract import EXTENSION, check_config, check_skipping, check_version
from adaptspec.results import FinishReason
from tests.hosts.vllm.conftest import Program

# What is asked for otherwise: the version, and what a worker keeps for itself.
OWN_WAYS = {"__version__": "__init__.py", "AdaptiveScheduler": "__init__.py", "adaptspec_skips": "skip_draft.py"}


@pytest.mark.hosts
@pytest.mark.timeout(300)
def test_every_name_that_is_another_is_refused_by_its_name(program: Program) -> None:
    told = program("mutants")
    assert told["mutants"] > 50
    assert told["missed"] == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_copy_of_vllm_with_another_name_does_not_start(program: Program) -> None:
    """By that name, where the same copy without our scheduler serves."""
    told = program("renamed", timeout=850)
    assert told == {"refused": 8, "missed": [], "plain": ""}


HOSTS = Path(contract.__file__).parents[1]
OTHERS = (Pilot, Plan, PilotSettings, Host, FinishReason.STOP, logging.root, dict, list, set, deque, str)


def of_vllm(path: Path) -> set[str]:
    """Names of attributes in a file of ours that are none of our own objects', and none of Python's."""
    others = (*OTHERS, contract, logging, math, time)
    ours = {name for one in others for name in (*dir(one), *getattr(one, "__annotations__", ()))} - {"__version__"}
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    ours |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for source in (path, HOSTS / "pilot.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and "self" in ast.unparse(node):
                ours |= {node.attr} if source != path or node.attr.startswith("_") else set()
    read = [node for node in nodes if isinstance(node, ast.Attribute)]
    inherited = {node.attr for node in read if ast.unparse(node.value) == "super()"} - {"__init__"}
    return {node.attr for node in read if node.attr not in ours} | inherited


def test_every_attribute_of_vllms_that_is_used_is_in_the_contract() -> None:
    """Else it would be missed in the middle of serving, and not when the engine starts."""
    told = contract.SCHEDULING | contract.SKIPPING
    known = {word for place, (_, names) in told.items() for word in re.findall(r"\w+", f"{place} {names}")}
    files = [HOSTS / "vllm" / name for name in ("__init__.py", "adaptive_scheduler.py", "contract.py", "skip_draft.py")]
    used = {name: path.name for path in files for name in of_vllm(path)}
    assert {"extra_args", "model", "use_v2_model_runner", "_free_request"} <= used.keys()
    assert {name: file for name, file in used.items() if name not in known} == OWN_WAYS


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0", "0.32.1rc1", "0.33.0+cpu"])
def test_known_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.28.1", "0.30.0", "0.31.4", "0.34.0", "1.0.0", "0.3.2", "0.320.1", "dev"])
def test_other_versions_only_if_asked_for(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=ANY_VERSION):
        check_version(version)
    monkeypatch.setenv(ANY_VERSION, "1")
    check_version(version)


def config(**changes: Any) -> SimpleNamespace:
    """What is read of vLLM's configuration, with `section__field=value` in place of what can be served."""
    sections: dict[str, Any] = {
        "speculative_config": SimpleNamespace(
            method="draft_model", enable_adaptive_verification=False, parallel_drafting=False
        ),
        "parallel_config": SimpleNamespace(
            data_parallel_size=1, pipeline_parallel_size=1, worker_extension_cls=EXTENSION
        ),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "use_v2_model_runner": False,
    }
    for place, value in changes.items():
        section, _, field = place.partition("__")
        if field:
            setattr(sections[section], field, value)
        else:
            sections[section] = value
    return SimpleNamespace(**sections)


def test_what_can_be_served() -> None:
    check_config(config())
    check_skipping(config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": None}, "--speculative-config"),
        ({"parallel_config__data_parallel_size": 2}, "data-parallel"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"speculative_config__method": "custom_class"}, "custom_class"),
        ({"speculative_config__method": "suffix"}, "suffix"),
        ({"speculative_config__parallel_drafting": True}, "in parallel"),
        ({"speculative_config__enable_adaptive_verification": True}, "enable_adaptive_verification"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_config(config(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config__method": "eagle3"}, "draft models and MTP"),
        ({"use_v2_model_runner": True}, "V1 runner"),
        ({"cache_config__enable_prefix_caching": True}, "--no-enable-prefix-caching"),
        ({"parallel_config__worker_extension_cls": ""}, "--worker-extension-cls"),
    ],
)
def test_where_the_draft_cannot_be_skipped(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_skipping(config(**changes))
