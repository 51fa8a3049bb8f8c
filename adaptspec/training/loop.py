"""One training loop for every stage of the recipe: time-boxed, with progress, checkpoints, resume.

Knows nothing of what is learned: the caller gives a model, the windows and a loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.training import checkpoint
from adaptspec.training.optimizer import Optimizer
from adaptspec.training.windows import Windows

Loss = Callable[[torch.Tensor], torch.Tensor]
Clock = Callable[[], float]


@dataclass(frozen=True)
class LoopSettings:
    """How long and how fast to learn. `minutes` is training time, over all resumed parts."""

    minutes: float
    learning_rate: float
    warmup_steps: int = 100
    checkpoint_minutes: float = 5.0
    log_steps: int = 20

    def schedule(self, progress: checkpoint.Progress) -> float:
        """Share (0..1) of the peak learning rate: linear warm-up by steps, linear decay to zero by time."""
        warm = min(1.0, (progress.step + 1) / self.warmup_steps)
        return warm * max(0.0, 1 - progress.seconds / (self.minutes * 60))


class _Monitor:
    """What the run tells the outside: a progress bar, or lines where nobody watches, and the log file."""

    def __init__(self, name: str, log: Path, settings: LoopSettings, windows: Windows, console: Console) -> None:
        self._name, self._log, self._settings, self._windows = name, log, settings, windows
        self._console = console
        self._sum, self._steps = 0.0, 0
        columns = (
            TextColumn("{task.description:>7}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %  {task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self.bar = Progress(*columns, console=console)
        self._task = self.bar.add_task(name, total=settings.minutes * 60, figures="starting")

    def stepped(self, loss: float, progress: checkpoint.Progress) -> None:
        """Take note of one step."""
        self._sum, self._steps = self._sum + loss, self._steps + 1
        self.bar.update(self._task, completed=progress.seconds)
        if self._steps == self._settings.log_steps:
            seen = self._windows.tokens_after(progress.step)
            figures = f"{seen / 1e6:.2f}M loss {self._sum / self._steps:.4f} {seen / progress.seconds:.0f} tok/s"
            self.bar.update(self._task, figures=figures)
            with self._log.open("a") as out:
                out.write(f"{self._name} step {progress.step} tokens {figures}\n")
            self._sum, self._steps = 0.0, 0

    def saved(self, progress: checkpoint.Progress) -> None:
        """Say so where there is no progress bar to look at."""
        if not self._console.is_terminal:
            figures = self.bar.tasks[self._task].fields["figures"]
            self._console.print(f"{self._name}: {progress.seconds / 60:.1f} min, {figures}, checkpoint saved")


def train(
    model: nn.Module,
    loss: Loss,
    windows: Windows,
    settings: LoopSettings,
    path: Path,
    *,
    console: Console,
    clock: Clock = time.perf_counter,
) -> checkpoint.Progress:
    """Train `model` in place until its time is up; return how far it came.

    `loss` maps token ids [batch, window + 1] to a scalar. `path` is the checkpoint: where it exists,
    training goes on from there, with the batches that come next. The log lies beside it.

    Raises:
        ConfigError: the checkpoint does not fit, or the loss stopped being a number.
    """
    optimizer = Optimizer(model, settings.learning_rate)
    progress = checkpoint.resume(path, model, optimizer)
    device = next(model.parameters()).device
    monitor = _Monitor(path.stem, path.with_suffix(".log"), settings, windows, console)
    last_save, budget = progress.seconds, settings.minutes * 60
    if progress.seconds >= budget:
        return progress
    with monitor.bar:
        while progress.seconds < budget:
            started = clock()
            value = loss(windows.at(progress.step).to(device))
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step(settings.schedule(progress))
            number = _finite(float(value.detach()), progress.step)
            progress.step += 1
            progress.seconds += clock() - started
            monitor.stepped(number, progress)
            if progress.seconds - last_save > settings.checkpoint_minutes * 60:
                checkpoint.save(path, model, optimizer, progress)
                monitor.saved(progress)
                last_save = progress.seconds
    checkpoint.save(path, model, optimizer, progress)
    return progress


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise ConfigError(f"the loss became {loss} at step {step}; lower the learning rate and start afresh")
    return loss
