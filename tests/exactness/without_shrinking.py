"""A pytest plugin for runs of mutants: hypothesis looks for an example that fails, and not for the smallest one."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Replace the profile that `tests/conftest.py` registers."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("without-shrinking", settings.get_profile("same"), phases=phases)
    settings.load_profile("without-shrinking")
