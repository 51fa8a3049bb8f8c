"""Chaos runs shortened with all other tests, and whole with `pytest -m chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built, build
from tests.chaos.harness import Server, running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything in this folder is chaos, and may take an hour where it is asked for by name."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("chaos")
            if _asked_for(config):
                item.add_marker(pytest.mark.timeout(3600))


def _asked_for(config: pytest.Config) -> bool:
    asked = str(config.getoption("markexpr", ""))
    return "chaos" in asked and "not chaos" not in asked


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether chaos was asked for by name."""
    return _asked_for(pytestconfig)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The bundled pair, ready to serve eight rows."""
    return build(EngineConfig(max_num_seqs=8))


@pytest.fixture
def server(built: Built) -> Iterator[Server]:
    """A server with short patience."""
    with running(built, hang_seconds=2.0) as server:
        yield server
