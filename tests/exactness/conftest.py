"""What the cases run on, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exactness.drafters import Models
from tests.exactness.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    found = Worlds(Models(tmp_path_factory.mktemp("models")))
    yield found
    found.close()
