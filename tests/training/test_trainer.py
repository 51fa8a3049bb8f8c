"""The training loop: an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import io
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from adaptspec.errors import ConfigError, CorpusError
from adaptspec.training.trainer import (
    LoopSettings,
    Loss,
    Optimizer,
    Progress,
    Windows,
    interrupts_held_back,
    resume,
    save,
    train,
    trained_seconds,
)

WINDOWS = Windows(np.random.default_rng(0).integers(0, 8, 400).astype(np.uint16), batch=4, window=8)
SETTINGS = LoopSettings(minutes=1.0, learning_rate=0.01)


def _clock() -> Callable[[], float]:
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
        if next(calls) == 25:
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
    assert trained_seconds(path) == 60.0
    again, written = _model(), path.read_bytes()

    def never(_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("trained on")

    assert train(again, never, WINDOWS, SETTINGS, path, console=console).step == 60
    assert path.read_bytes() == written
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(tmp_path: Path, console: Console) -> None:
    """A diverged run must not overwrite its last good checkpoint."""
    model = _model()
    with pytest.raises(ConfigError, match="lower --learning-rate"):
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
    with pytest.raises(ConfigError, match="delete it"):
        trained_seconds(path)


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


def test_progress_is_reported_in_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    """With the loss, the speed and the end; a run that is too short to learn is reported as such."""
    output, model = io.StringIO(), _model()
    train(model, _loss(model), WINDOWS, SETTINGS, tmp_path / "a.ckpt", console=Console(file=output), clock=_clock())
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("training: 100%, loss ")
    assert "tokens/s, done in" in lines[0]
    assert "training took 60 steps, which is hardly enough to learn" in lines[1]
    assert len((tmp_path / "a.log").read_text().splitlines()) == 3  # every 20 steps


def test_the_learning_rate_rises_by_steps_or_time_and_falls_to_zero() -> None:
    schedule = LoopSettings(minutes=10.0, learning_rate=1.0).schedule
    assert schedule(Progress(0, 0.0)) == 0.01
    assert schedule(Progress(99, 0.0)) == 1.0
    assert schedule(Progress(2, 15.0)) == pytest.approx(0.5 * (1 - 15 / 600))  # few steps, half of the warm-up time
    assert schedule(Progress(500, 300.0)) == 0.5
    assert schedule(Progress(500, 601.0)) == 0.0


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 200), st.integers(0, 3))
def test_an_epoch_visits_every_window_once(batch: int, window: int, extra: int, seed: int) -> None:
    """No text is dropped or doubled by the shuffling."""
    tokens = np.arange(window * (batch + 2) + 1 + extra, dtype=np.uint16)
    windows = Windows(tokens, 1, window, seed)
    count = (len(tokens) - 1) // window - 1
    starts = sorted(int(windows.at(step)[0, 0]) for step in range(count))
    assert starts == list(range(starts[0], starts[0] + count * window, window))


def test_too_little_text_is_a_corpus_error() -> None:
    """A tiny corpus must not end in an index error."""
    with pytest.raises(CorpusError, match="one batch needs"):
        Windows(np.arange(30, dtype=np.uint16), 4, 8)
