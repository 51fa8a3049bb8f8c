"""The recipe's settings: what a user may get wrong is refused before any work is done."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.errors import ConfigError
from adaptspec.training.pair_settings import MAX_VOCAB, PairSettings, RunRecord, Shape, Stage, preset


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vocab_size", 259),
        ("vocab_size", MAX_VOCAB + 1),
        ("window", 1025),
        ("window", 1),
        ("batch", 0),
        ("target_minutes", 0.0),
        ("draft_minutes", float("nan")),
        ("target_learning_rate", -1.0),
        ("draft_learning_rate", float("inf")),
        ("source_weights", {"synthetic": 1.5}),
        ("device", "toaster"),
    ],
)
def test_an_unusable_value_is_named(setting: str, value: Any) -> None:
    """Token ids are 16-bit, every byte needs a token, time and rates are positive."""
    changed: dict[str, Any] = {setting: value}
    flag = "--" + setting.removesuffix("s" if setting == "source_weights" else "").replace("_", "-")
    with pytest.raises(ConfigError, match=flag):
        PairSettings(**changed)


@pytest.mark.parametrize("shape", [(0, 1, 1, 8), (30, 1, 4, 8), (12, 1, 4, 8)])
def test_heads_must_divide_the_hidden_size_evenly(shape: tuple[int, int, int, int]) -> None:
    """Rotary positions need an even head size."""
    with pytest.raises(ConfigError):
        Shape(*shape)


def test_a_cuda_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, not after the corpus has been read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device cpu"):
        PairSettings(device="cuda")
    assert preset("auto") == preset("cpu") == PairSettings()


def test_source_weights_are_added_as_written_on_the_command_line() -> None:
    """The preset's others stay."""
    settings = PairSettings().with_source_weights(["asp=0.25", "a=b=1"])
    assert settings.source_weights == {"synthetic": 0.6, "asp": 0.25, "a=b": 1.0}
    for wrong in ("asp", "asp=", "asp=many", "=0.5", "asp=2"):
        with pytest.raises(ConfigError, match="--source-weight"):
            PairSettings().with_source_weights([wrong])


def test_the_identity_is_plain_json_and_leaves_time_and_device_out() -> None:
    """A run may be given more time, or go on elsewhere, but not become another model."""
    settings = PairSettings()
    assert json.loads(json.dumps(settings.identity)) == settings.identity
    assert PairSettings(target_minutes=200.0, compile=False, mixed_precision=True).identity == settings.identity
    assert PairSettings(batch=16).identity != settings.identity
    assert PairSettings(source_weights={}).identity != settings.identity


RECORD = RunRecord(PairSettings().identity, "abc", {"svamp": 3}, "CPU (2 threads)", {"target": Stage(84.0, 12_000_000)})


@pytest.mark.parametrize(
    ("change", "named"), [({"identity": PairSettings(batch=4).identity}, "batch"), ({"corpus": "other"}, "corpus")]
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
