"""The training loop: an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.training.checkpoint import Progress
from adaptspec.training.loop import Clock, LoopSettings, Loss, train
from adaptspec.training.optimizer import Optimizer
from adaptspec.training.windows import Windows

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


def test_the_warm_up_takes_no_time_and_teaches_nothing(tmp_path: Path, console: Console) -> None:
    """Compiling takes a minute, which must not come off the training time; one call more, the same weights."""
    model, calls, now = _model(), itertools.count(), [0.0]

    def slow_at_first(ids: torch.Tensor) -> torch.Tensor:
        now[0] += 60.0 if next(calls) == 0 else 1.0
        return _loss(model)(ids)

    path = tmp_path / "a.ckpt"
    assert train(model, slow_at_first, WINDOWS, SETTINGS, path, console=console, clock=lambda: now[0]).step == 60
    assert next(calls) == 61
    plain = _model()
    optimizer, progress = Optimizer(plain, SETTINGS.learning_rate), Progress()
    for step in range(60):
        _loss(plain)(WINDOWS.at(step)).backward()
        optimizer.step(SETTINGS.schedule(progress))
        progress = Progress(step + 1, step + 1.0)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


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


def test_the_log_counts_tokens_and_speed(tmp_path: Path, console: Console) -> None:
    """One line per `log_steps`, read by whoever watches a background run."""
    model = _model()
    train(model, _loss(model), WINDOWS, SETTINGS, tmp_path / "a.ckpt", console=console, clock=_clock())
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("a step 60 tokens 0.00M loss ")
    assert lines[-1].endswith(" 32 tok/s")


def test_a_console_nobody_watches_gets_lines(tmp_path: Path) -> None:
    """A run in the background shows that it is alive."""
    model, out = _model(), (tmp_path / "out.txt").open("w+")
    with out:
        train(model, _loss(model), WINDOWS, SETTINGS, tmp_path / "a.ckpt", console=Console(file=out), clock=_clock())
        out.seek(0)
        assert "checkpoint saved" in out.read()


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


@pytest.mark.parametrize(("step", "seconds", "share"), [(0, 0.0, 1 / 3), (2, 0.0, 1.0), (9, 30.0, 0.5), (9, 60.0, 0.0)])
def test_the_schedule_warms_up_by_steps_and_decays_by_time(step: int, seconds: float, share: float) -> None:
    """The shape that the recipe's figures belong to."""
    assert SETTINGS.schedule(Progress(step, seconds)) == pytest.approx(share)
