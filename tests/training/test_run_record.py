"""The record beside the checkpoints: a run is only taken up with its own settings and corpus."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from adaptspec.errors import ConfigError
from adaptspec.training.run_record import RunRecord, Stage, load
from adaptspec.training.settings import PairSettings

RECORD = RunRecord(PairSettings().identity, "abc", {"svamp": 3}, "CPU (2 threads)", {"target": Stage(84.0, 12_000_000)})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """The model card is written from it."""
    RECORD.save(tmp_path)
    assert load(tmp_path) == RECORD
    RECORD.check(tmp_path)


def test_a_new_directory_and_one_without_a_record_are_accepted(tmp_path: Path) -> None:
    """Checkpoints made before there were records stay usable."""
    RECORD.check(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"identity": PairSettings(batch=4).identity}, "batch"), ({"corpus": "other"}, "corpus")],
)
def test_other_settings_or_another_corpus_are_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    """Mixing them would silently train something nobody asked for."""
    RECORD.save(tmp_path)
    with pytest.raises(ConfigError, match=rf"other settings \({named}\)"):
        dataclasses.replace(RECORD, **change).check(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "[]", '{"stages": {}}'])
def test_a_damaged_record_is_refused(tmp_path: Path, content: str) -> None:
    """The message says what to do."""
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(ConfigError, match="delete it"):
        RECORD.check(tmp_path)
