"""Methods are found by the name policies use, and a wrong name says which there are."""

from __future__ import annotations

import pytest

from adaptspec.errors import ConfigError
from adaptspec.verification.registry import METHODS, method


def test_every_method_is_found_by_its_own_name_and_is_lossless() -> None:
    assert set(METHODS) == {"coupled", "rejection"}
    for name in METHODS:
        assert method(name).name == name
        assert not method(name).lossy


def test_coupled_needs_the_noise_and_rejection_the_distribution() -> None:
    assert (method("coupled").shares_noise, method("coupled").needs_distribution) == (True, False)
    assert (method("rejection").shares_noise, method("rejection").needs_distribution) == (False, True)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'copuled'; use one of: coupled, rejection"):
        method("copuled")
