"""Methods are found by the name policies use, with the parameters they give; a wrong name says which there are."""

from __future__ import annotations

import pytest

from adaptspec.errors import ConfigError
from adaptspec.verification.registry import METHODS, method
from adaptspec.verification.threshold import Threshold


def test_every_method_is_found_by_its_own_name_and_says_whether_it_is_lossy() -> None:
    lossy = {name: method(name).lossy for name in METHODS}
    assert lossy == {"coupled": False, "rejection": False, "block": False, "threshold": True, "typical": True}
    assert all(method(name).name == name for name in METHODS)


def test_a_method_that_shares_the_noise_needs_no_distribution() -> None:
    """A draft must meet the noise of the target (coupled) or be verified against what it was drawn from."""
    for name in METHODS:
        assert method(name).shares_noise is not method(name).needs_distribution


def test_parameters_reach_the_method() -> None:
    assert method("threshold", {"high": 0.5, "top": 2}) == Threshold(high=0.5, top=2)


def test_equal_parameters_make_equal_methods() -> None:
    """The engine keeps one of each: policies with the same method share a verify pass."""
    assert method("coupled") == method("coupled")
    assert method("typical") != method("typical", {"epsilon": 0.2})
    assert len({method("threshold"), method("threshold"), method("threshold", {"high": 0.9})}) == 2


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'copuled'; use one of: block, coupled, rejection, threshold, typical"):
        method("copuled")


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="'coupled' cannot be built with high"):
        method("coupled", {"high": 0.5})
