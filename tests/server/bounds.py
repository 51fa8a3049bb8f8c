"""Other bounds of the server for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adaptspec.server import limits


@contextmanager
def bounds(**values: float) -> Iterator[None]:
    """Set constants of `adaptspec.server.limits`, by their names in lower case. Bounds of fields stay as they are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(limits, name.upper(), value)
        yield
