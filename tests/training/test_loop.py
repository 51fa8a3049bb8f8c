"""The training loop: an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.training.loop import (
    Clock,
    LoopSettings,
    Loss,
    Progress,
    interrupts_held_back,
    resume,
    save,
    train,
)
from adaptspec.training.optimizer import Optimizer
from adaptspec.training.tokenizer_training import Windows

WINDOWS = Windows(np.random.default_rng(0).integers(0, 8, 400).astype(np.uint16), batch=4, window=8)
SETTINGS = LoopSettings(minutes=1.0, learning_rate=0.01, warmup_steps=3, checkpoint_minutes=0.15, log_steps=5)


def _clock() -> Clock:
    """Every step takes one second: the loop reads the clock twice per step."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 8))


def _loss(model: nn.Module) -> Loss:
    return lambda ids: nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_an_interrupted_run_ends_in_the_same_weights(tmp_path: Path, console: Console) -> None:
    """Resume takes up step, time, optimizer and batches exactly."""
    whole = _model()
    assert train(whole, _loss(whole), WINDOWS, SETTINGS, tmp_path / "whole.ckpt", console=console, clock=_clock()) == (
        Progress(60, 60.0)
    )
    parts, calls = _model(), itertools.count()

    def interrupted(ids: torch.Tensor) -> torch.Tensor:
        if next(calls) == 26:  # the first call is the warm-up
            raise KeyboardInterrupt
        return _loss(parts)(ids)

    path = tmp_path / "parts.ckpt"
    with pytest.raises(KeyboardInterrupt):
        train(parts, interrupted, WINDOWS, SETTINGS, path, console=console, clock=_clock())
    assert torch.load(path, weights_only=True)["step"] == 25  # saved by the interrupt itself
    again = _model()
    reached = train(again, _loss(again), WINDOWS, SETTINGS, path, console=console, clock=_clock())
    assert reached == Progress(60, 60.0)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_run_is_left_alone(tmp_path: Path, console: Console) -> None:
    """Running the recipe again loads the result and trains no more."""
    model, path = _model(), tmp_path / "a.ckpt"
    train(model, _loss(model), WINDOWS, SETTINGS, path, console=console, clock=_clock())
    again, written = _model(), path.read_bytes()

    def never(_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("trained on")

    assert train(again, never, WINDOWS, SETTINGS, path, console=console).step == 60
    assert path.read_bytes() == written
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(tmp_path: Path, console: Console) -> None:
    """A diverged run must not overwrite its last good checkpoint."""
    model = _model()
    with pytest.raises(ConfigError, match="lower --target-learning-rate"):
        train(
            model,
            lambda ids: _loss(model)(ids) * float("nan"),
            WINDOWS,
            SETTINGS,
            tmp_path / "a.ckpt",
            console=console,
            clock=_clock(),
        )
    assert not (tmp_path / "a.ckpt").exists()


def _linear(width: int = 4) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))


def test_another_origin_is_a_fresh_start_and_none_is_what_earlier_versions_wrote(tmp_path: Path) -> None:
    """A draft is not taken up with another teacher; a target's checkpoint without the key still is."""
    model, path = _linear(), tmp_path / "a.ckpt"
    optimizer = Optimizer(model, 0.1)
    save(path, model, optimizer, Progress(3, 4.0), "one")
    assert resume(path, model, optimizer, "one") == Progress(3, 4.0)
    assert resume(path, model, optimizer, "two") == Progress()
    state = torch.load(path, weights_only=True)
    del state["origin"]
    torch.save(state, path)
    assert resume(path, model, optimizer) == Progress(3, 4.0)
    assert resume(path, model, optimizer, "two") == Progress()


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    """Settings that changed the sizes must not be mixed up silently."""
    model, path = _linear(4), tmp_path / "a.ckpt"
    save(path, model, Optimizer(model, 0.1), Progress())
    other = _linear(6)
    with pytest.raises(ConfigError, match="does not fit these settings"):
        resume(path, other, Optimizer(other, 0.1))


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    """The message says what to do instead of showing a pickle error."""
    path, model = tmp_path / "a.ckpt", _linear()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="delete it"):
        resume(path, model, Optimizer(model, 0.1))


def test_ctrl_c_takes_effect_at_the_end_of_the_block() -> None:
    """Half an optimizer step must not be saved."""
    usual, done = signal.getsignal(signal.SIGINT), []

    def block() -> None:
        with interrupts_held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is usual
