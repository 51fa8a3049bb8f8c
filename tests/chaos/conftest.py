"""Chaos runs shortened with all other tests, and whole with `pytest -m chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.engine.build import Built, EngineConfig, build
from adaptspec.engine.core import Limits
from tests.chaos.harness import Server, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is chaos."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("chaos")


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether chaos was asked for by name."""
    asked = str(pytestconfig.getoption("markexpr", ""))
    return "chaos" in asked and "not chaos" not in asked


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The bundled pair, ready to serve eight rows."""
    return build(EngineConfig(limits=Limits(max_rows=8)))


@pytest.fixture
def server(built: Built) -> Iterator[Server]:
    """A server with short patience."""
    with running(built, hang_seconds=2.0) as server:
        yield server
