"""What another engine has otherwise than we know it is named: parameters, names that a function goes by, fields."""

from __future__ import annotations

import pytest

from adaptspec.hosts.engine_contract import ANY_VERSION, broken, strange_version

GUESTS = "adaptspec.hosts.guests:Guests"


@pytest.mark.parametrize(
    ("place", "parameters", "names", "said"),
    [
        (f"{GUESTS}.leave", "self name", "_free rows", ""),
        (f"{GUESTS}.leave", "self ...", "", ""),
        ("adaptspec.hosts.guests:StepOutcome.of", "cls guests ids ...", "", ""),
        ("adaptspec.control.host:Host.depths", "self", "deepest", ""),
        ("adaptspec.hosts.guests:StepOutcome", "", "ids rows", ""),
        (f"{GUESTS}.leave", "self", "", "Guests.leave takes (self, name), not (self)"),
        (f"{GUESTS}.leave", "self request ...", "", "Guests.leave takes (self, name), not (self, request)"),
        (f"{GUESTS}.leave", "self name", "elsewhere", "Guests.leave does not use elsewhere"),
        (f"{GUESTS}.arrive", "self name", "", "Guests.arrive cannot be used (KeyError"),
        ("adaptspec.hosts.nowhere:Guests.leave", "...", "", "nowhere:Guests.leave cannot be used (ModuleNotFoundError"),
        ("adaptspec.hosts.guests:StepOutcome", "", "ids names", "StepOutcome.names is missing"),
    ],
)
def test_what_is_otherwise_is_named(place: str, parameters: str, names: str, said: str) -> None:
    found = "; ".join(broken({place: (parameters, names)}))
    assert said in found
    assert bool(found) == bool(said)


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release all, of a whole version its builds; any if that is asked for."""
    assert not strange_version("E", "0.32.1rc1", ("0.31", "0.32"))
    assert not strange_version("E", "0.5.23", ("0.5.23",))
    assert ANY_VERSION in strange_version("E", "0.5.230", ("0.5.23",))
    monkeypatch.setenv(ANY_VERSION, "1")
    assert not strange_version("E", "9", ("0.32",))
