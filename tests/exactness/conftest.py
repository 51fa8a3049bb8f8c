"""What the cases run on, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.exactness.harness")  # so that a failure shows both answers

from tests.exactness.drafters import Models  # noqa: E402
from tests.exactness.worlds import Worlds  # noqa: E402


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    found = Worlds(Models(tmp_path_factory.mktemp("models")))
    yield found
    found.close()
