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
from adaptspec.training.interrupts import held_back
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
    origin: str = "",
    clock: Clock = time.perf_counter,
) -> checkpoint.Progress:
    """Train `model` in place until its time is up; return how far it came.

    `loss` maps token ids [batch, window + 1] to a scalar. `path` is the checkpoint: where it exists and has the
    same `origin` (see `checkpoint.save`), training goes on from there, with the batches that come next; with
    another it starts anew. The log lies beside it. Ctrl-C is heeded after a checkpoint has been saved.

    Raises:
        ConfigError: the checkpoint does not fit, or the loss stopped being a number.
    """
    optimizer = Optimizer(model, settings.learning_rate)
    progress = checkpoint.resume(path, model, optimizer, origin)
    if path.exists() and not progress.step:
        console.print(f"{path.stem}: {path} was trained on another model's answers, so training starts anew")
    if progress.seconds < settings.minutes * 60:
        monitor = _Monitor(path.stem, path.with_suffix(".log"), settings, windows, console)
        run = _Run(loss, windows, settings, optimizer, progress, next(model.parameters()).device, clock)
        with monitor.bar:
            run.until_time_is_up(monitor, lambda: checkpoint.save(path, model, optimizer, progress, origin))
    return progress


@dataclass(frozen=True)
class _Run:
    """What the steps of one call of `train` share."""

    loss: Loss
    windows: Windows
    settings: LoopSettings
    optimizer: Optimizer
    progress: checkpoint.Progress
    device: torch.device
    clock: Clock

    def until_time_is_up(self, monitor: _Monitor, save: Callable[[], None]) -> None:
        """Take steps, saving now and then, at the end and before a Ctrl-C is passed on."""
        progress, settings = self.progress, self.settings
        last_save = progress.seconds
        try:
            self._warm_up()
            while progress.seconds < settings.minutes * 60:
                monitor.stepped(self._step(), progress)
                if progress.seconds - last_save > settings.checkpoint_minutes * 60:
                    save()
                    monitor.saved(progress)
                    last_save = progress.seconds
        except KeyboardInterrupt:
            if progress.seconds > last_save:
                save()
            raise
        save()

    def _warm_up(self) -> None:
        """Compute one batch and learn nothing from it: torch.compile's minute is not training time."""
        value = self._backward()
        float(value)  # waits for a GPU
        self.optimizer.clear()

    def _step(self) -> float:
        """Take one step; return its loss."""
        started = self.clock()
        value = self._backward()
        with held_back():  # half an update must not be saved
            self.optimizer.step(self.settings.schedule(self.progress))
            number = _finite(float(value), self.progress.step)
            self.progress.step += 1
            self.progress.seconds += self.clock() - started
        return number

    def _backward(self) -> torch.Tensor:
        value = self.loss(self.windows.at(self.progress.step).to(self.device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise ConfigError(
            f"the loss became {loss} at step {step}; start afresh with a lower --target-learning-rate "
            "or --draft-learning-rate and another --out"
        )
    return loss
