"""Checkpoints: whole or not at all, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.training.checkpoint import Progress, resume, save
from adaptspec.training.optimizer import Optimizer


def _model(width: int = 4) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))


def test_a_checkpoint_brings_back_weights_optimizer_and_progress(tmp_path: Path) -> None:
    """Everything that decides the next step is kept."""
    model = _model()
    optimizer = Optimizer(model, 0.1)
    model(torch.ones(4)).sum().backward()
    optimizer.step(1.0)
    save(tmp_path / "a.ckpt", model, optimizer, Progress(7, 12.5))
    fresh = _model()
    other = Optimizer(fresh, 0.1)
    assert resume(tmp_path / "a.ckpt", fresh, other) == Progress(7, 12.5)
    for one, two in ((model, optimizer), (fresh, other)):
        one(torch.ones(4)).sum().backward()
        two.step(0.5)
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_keys_on_disk_stay(tmp_path: Path) -> None:
    """Runs begun with an earlier version must be resumable."""
    model = _model()
    save(tmp_path / "a.ckpt", model, Optimizer(model, 0.1), Progress())
    keys = {"model", "optimizer", "step", "seconds", "origin"}
    assert torch.load(tmp_path / "a.ckpt", weights_only=True).keys() == keys


def test_another_origin_is_a_fresh_start_and_none_is_what_earlier_versions_wrote(tmp_path: Path) -> None:
    """A draft is not taken up with another teacher; a target's checkpoint without the key still is."""
    model, path = _model(), tmp_path / "a.ckpt"
    optimizer = Optimizer(model, 0.1)
    save(path, model, optimizer, Progress(3, 4.0), "one")
    assert resume(path, model, optimizer, "one") == Progress(3, 4.0)
    assert resume(path, model, optimizer, "two") == Progress()
    state = torch.load(path, weights_only=True)
    del state["origin"]
    torch.save(state, path)
    assert resume(path, model, optimizer) == Progress(3, 4.0)
    assert resume(path, model, optimizer, "two") == Progress()


def test_no_checkpoint_is_a_fresh_start(tmp_path: Path) -> None:
    """The first run."""
    model = _model()
    assert resume(tmp_path / "a.ckpt", model, Optimizer(model, 0.1)) == Progress()


def test_a_failed_save_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a power cut half-way must not cost the run."""
    model, path = _model(), tmp_path / "a.ckpt"
    optimizer = Optimizer(model, 0.1)
    save(path, model, optimizer, Progress(1, 1.0))

    def half_way(_state: object, out: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half_way)
    with pytest.raises(OSError, match="disk full"):
        save(path, model, optimizer, Progress(2, 2.0))
    assert resume(path, model, optimizer) == Progress(1, 1.0)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    """Settings that changed the sizes must not be mixed up silently."""
    model, path = _model(4), tmp_path / "a.ckpt"
    save(path, model, Optimizer(model, 0.1), Progress())
    other = _model(6)
    with pytest.raises(ConfigError, match="does not fit these settings"):
        resume(path, other, Optimizer(other, 0.1))


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    """The message says what to do instead of showing a pickle error."""
    path, model = tmp_path / "a.ckpt", _model()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="delete it"):
        resume(path, model, Optimizer(model, 0.1))
