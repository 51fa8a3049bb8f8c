"""One training loop for every stage of the recipe: time-boxed, with progress, checkpoints and resume."""

from __future__ import annotations

import ctypes
import io
import math
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.files import write_file
from adaptspec.training.optimizer import Loss, Optimizer
from adaptspec.training.tokenizer_training import Windows

Clock = Callable[[], float]
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # names and numbers of malloc.h


@dataclass
class Progress:
    """Steps taken and seconds spent training, over all resumed parts."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class LoopSettings:
    """How long and how fast to learn. `minutes` is training time, over all resumed parts."""

    minutes: float
    learning_rate: float
    warmup_steps: int = 100
    checkpoint_minutes: float = 5.0
    log_steps: int = 20

    def schedule(self, progress: Progress) -> float:
        """Share (0..1) of the peak learning rate: linear warm-up by steps, linear decay to zero by time."""
        warm = min(1.0, (progress.step + 1) / self.warmup_steps)
        return warm * max(0.0, 1 - progress.seconds / (self.minutes * 60))


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
) -> Progress:
    """Train `model` in place until its time is up; return how far it came.

    `path` is the checkpoint: where it exists and has the same `origin`, training goes on from there, with the batches
    that come next; with another it starts anew. The log lies beside it. Ctrl-C is heeded after a checkpoint has been
    saved.

    Raises:
        ConfigError: the checkpoint does not fit, or the loss stopped being a number.
    """
    optimizer = Optimizer(model, settings.learning_rate)
    progress = resume(path, model, optimizer, origin)
    if path.exists() and not progress.step:
        console.print(f"{path.stem}: {path} was trained on another model's answers, so training starts anew")
    if progress.seconds < settings.minutes * 60:
        monitor = _Monitor(path.stem, path.with_suffix(".log"), settings, windows, console)
        run = _Run(loss, windows, settings, optimizer, progress, next(model.parameters()).device, clock)
        with monitor.bar:
            run.until_time_is_up(monitor, lambda: save(path, model, optimizer, progress, origin))
    return progress


@dataclass(frozen=True)
class _Run:
    """What the steps of one call of `train` share."""

    loss: Loss
    windows: Windows
    settings: LoopSettings
    optimizer: Optimizer
    progress: Progress
    device: torch.device
    clock: Clock

    def until_time_is_up(self, monitor: _Monitor, save: Callable[[], None]) -> None:
        """Take steps, saving now and then, at the end and before a Ctrl-C is passed on."""
        progress, settings = self.progress, self.settings
        last_save = progress.seconds
        try:
            # torch.compile's minute is not training time: one batch of which nothing is learned.
            float(self._backward())  # waits for a GPU
            self.optimizer.clear()
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

    def _step(self) -> float:
        """Take one step; return its loss."""
        started = self.clock()
        value = self._backward()
        with interrupts_held_back():  # half an update must not be saved
            self.optimizer.step(self.settings.schedule(self.progress))
            number = _finite(float(value), self.progress.step)
            self.progress.step += 1
            self.progress.seconds += self.clock() - started
        return number

    def _backward(self) -> torch.Tensor:
        value = self.loss(self.windows.at(self.progress.step).to(self.device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()


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
        self.bar = ProgressBar(*columns, console=console)
        self._task = self.bar.add_task(name, total=settings.minutes * 60, figures="starting")

    def stepped(self, loss: float, progress: Progress) -> None:
        self._sum, self._steps = self._sum + loss, self._steps + 1
        self.bar.update(self._task, completed=progress.seconds)
        if self._steps == self._settings.log_steps:
            seen = self._windows.tokens_after(progress.step)
            figures = f"{seen / 1e6:.2f}M loss {self._sum / self._steps:.4f} {seen / progress.seconds:.0f} tok/s"
            self.bar.update(self._task, figures=figures)
            with self._log.open("a") as out:
                out.write(f"{self._name} step {progress.step} tokens {figures}\n")
            self._sum, self._steps = 0.0, 0

    def saved(self, progress: Progress) -> None:
        if not self._console.is_terminal:
            figures = self.bar.tasks[self._task].fields["figures"]
            self._console.print(f"{self._name}: {progress.seconds / 60:.1f} min, {figures}, checkpoint saved")


def save(path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, origin: str = "") -> None:
    """Write a checkpoint so that `path` always holds a whole one, even if the machine stops half-way.

    `origin` names what the model learns from besides its data (a teacher), or is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    packed = io.BytesIO()
    torch.save({**weights, "step": progress.step, "seconds": progress.seconds, "origin": origin}, packed)
    write_file(path, packed.getbuffer())


def resume(path: Path, model: nn.Module, optimizer: Optimizer, origin: str = "") -> Progress:
    """Load `path` into model and optimizer; a fresh start if there is none, or it has another `origin`.

    Raises:
        ConfigError: the file is damaged or belongs to a model of other sizes.
    """
    if not path.exists():
        return Progress()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state.get("origin", "") != origin:  # checkpoints of earlier versions do not say
            return Progress()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return Progress(int(state["step"]), float(state["seconds"]))
    except (RuntimeError, KeyError, ValueError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{path}: this checkpoint does not fit these settings ({reason}); "
            "train into another directory, use the settings it was made with, or delete it"
        ) from error


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let a Ctrl-C that comes inside the block take effect at its end. Only the main thread gets any."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    arrived: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: arrived.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if arrived:
        usual(signal.SIGINT, arrived[0])


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise ConfigError(
            f"the loss became {loss} at step {step}; start afresh with a lower --target-learning-rate "
            "or --draft-learning-rate and another --out"
        )
    return loss


def keep_freed_pages() -> bool:
    """Ask malloc to hold on to freed memory, for the whole process; False where it has no such setting.

    glibc gives every large tensor back to the kernel when it is freed and faults its pages in again at the next step;
    at the recipe's sizes that is 10-15 % of the training time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
