"""The training loop: an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import dataclasses
import io
import itertools
import signal
import subprocess
import sys
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
    keep_freed_pages,
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


def _linear(width: int = 4) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))


def test_a_checkpoint_brings_back_weights_optimizer_and_progress(tmp_path: Path) -> None:
    """Everything that decides the next step is kept."""
    model = _linear()
    optimizer = Optimizer(model, 0.1)
    model(torch.ones(4)).sum().backward()
    optimizer.step(1.0)
    save(tmp_path / "a.ckpt", model, optimizer, Progress(7, 12.5))
    fresh = _linear()
    other = Optimizer(fresh, 0.1)
    assert resume(tmp_path / "a.ckpt", fresh, other) == Progress(7, 12.5)
    for one, two in ((model, optimizer), (fresh, other)):
        one(torch.ones(4)).sum().backward()
        two.step(0.5)
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_keys_on_disk_stay(tmp_path: Path) -> None:
    """Runs begun with an earlier version must be resumable."""
    model = _linear()
    save(tmp_path / "a.ckpt", model, Optimizer(model, 0.1), Progress())
    keys = {"model", "optimizer", "step", "seconds", "origin"}
    assert torch.load(tmp_path / "a.ckpt", weights_only=True).keys() == keys


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


def test_who_hardly_learned_is_told_so(tmp_path: Path) -> None:
    """Fewer steps than those in which the learning rate rises, say."""
    model, console = _model(), Console(record=True, file=io.StringIO(), width=200)
    for warmup, told in ((3, False), (100, True)):
        settings = dataclasses.replace(SETTINGS, warmup_steps=warmup)
        train(model, _loss(model), WINDOWS, settings, tmp_path / f"{warmup}.ckpt", console=console, clock=_clock())
        assert (f"fewer than the {warmup} in which" in console.export_text()) == told


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """A directory, say."""
    model = _linear()
    with pytest.raises(ConfigError, match="delete it"):
        resume(tmp_path, model, Optimizer(model, 0.1))


def test_no_checkpoint_is_a_fresh_start(tmp_path: Path) -> None:
    """The first run."""
    model = _linear()
    assert resume(tmp_path / "a.ckpt", model, Optimizer(model, 0.1)) == Progress()


def test_a_failed_save_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a power cut half-way must not cost the run."""
    model, path = _linear(), tmp_path / "a.ckpt"
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


COUNT_FAULTS = """
import resource
from adaptspec.training.loop import keep_freed_pages

def faults(size=64 * 2**20):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for byte in (b"a", b"b", b"c", b"d"):
        byte * size
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

before, kept = faults(), keep_freed_pages()
faults()
print(before, kept, faults())
"""


def test_large_blocks_are_not_faulted_in_again_where_it_says_so() -> None:
    """Counts page faults, in a process of its own since the setting cannot be undone."""
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True)
    before, kept, after = run.stdout.split()
    assert kept == "False" or int(after) < int(before) / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such setting the recipe just runs slower."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_pages() is False
