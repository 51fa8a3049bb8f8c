"""What users say of a pilot is checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptspec.errors import ConfigError
from adaptspec.hosts.settings import PilotSettings


def test_as_another_engine_hands_it_on() -> None:
    told = {"policy": "a.yaml", "state-dir": "/x", "skip-draft": True, "journal": "j", "metrics-port": 9000}
    settings = PilotSettings.of(told)
    assert settings.policy == ("a.yaml",)
    assert (settings.state_dir, settings.journal, settings.skip_draft) == (Path("/x"), Path("j"), True)
    assert PilotSettings.of({"policy": ["a", "b"]}).policy == ("a", "b")
    assert PilotSettings.of({}) == PilotSettings()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"polcy": "a"}, "unknown setting 'polcy' (did you mean 'policy'?)"),
        ({"policy": []}, "policy"),
        ({"policy": 3}, "policy"),
        ({"metrics-port": 0}, "metrics-port"),
        ({"state-seconds": "soon"}, "state-seconds"),
        ({"skip-draft": "perhaps"}, "skip-draft"),
        ({"traces": {"slow-seconds": -1}}, "traces.slow-seconds"),
        ({"traces": {"slow_seconds": float("inf")}}, "traces.slow_seconds"),
        ({"traces": {"endpoint": "localhost:4318"}}, "traces.endpoint: string should match pattern '^https?://'"),
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PilotSettings.of(told)
    assert said in str(raised.value)
