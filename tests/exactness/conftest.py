"""What the cases run on, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exactness.drafters import Models
from tests.exactness.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    found = Worlds(Models(tmp_path_factory.mktemp("models")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # tokenizers of GGUF files are kept there
        yield found
    found.close()
