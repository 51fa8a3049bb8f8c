"""One training loop for every stage of the recipe: time-boxed, with progress, checkpoints and resume."""

from __future__ import annotations

import ctypes
import io
import math
import pickle
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.files import open_file, write_file
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
        columns = (
            TextColumn("{task.description:>7}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %  {task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with ProgressBar(*columns, console=console) as bar:
            run = _Run(loss, windows, settings, optimizer, progress, next(model.parameters()).device, clock, path, bar)
            run.until_time_is_up(lambda: save(path, model, optimizer, progress, origin))
    if progress.step < settings.warmup_steps:
        few = f"{progress.step} steps, fewer than the {settings.warmup_steps} in which its learning rate rises"
        console.print(f"warning: the {path.stem} took {few}: it has hardly learned; give it more minutes")
    return progress


@dataclass(frozen=True)
class _Run:
    """What the steps of one call of `train` share. They are told by the bar, or by lines where nobody watches, and in
    the log beside the checkpoint's `path`.
    """

    loss: Loss
    windows: Windows
    settings: LoopSettings
    optimizer: Optimizer
    progress: Progress
    device: torch.device
    clock: Clock
    path: Path
    bar: ProgressBar
    losses: list[float] = field(default_factory=list)  # since the log's last line

    def until_time_is_up(self, save: Callable[[], None]) -> None:
        """Take steps, saving now and then, at the end and before a Ctrl-C is passed on."""
        progress, settings = self.progress, self.settings
        shown = self.bar.add_task(self.path.stem, total=settings.minutes * 60, figures="starting")
        last_save = progress.seconds
        try:
            # torch.compile's minute is not training time: one batch of which nothing is learned.
            float(self._backward())  # waits for a GPU
            self.optimizer.clear()
            while progress.seconds < settings.minutes * 60:
                self._step()
                self._tell(shown)
                if progress.seconds - last_save > settings.checkpoint_minutes * 60:
                    save()
                    last_save = progress.seconds
                    if not self.bar.console.is_terminal:
                        done = f"{progress.seconds / 60:.1f} min, {self.bar.tasks[shown].fields['figures']}"
                        self.bar.console.print(f"{self.path.stem}: {done}, checkpoint saved")
        except KeyboardInterrupt:
            if progress.seconds > last_save:
                save()
            raise
        save()

    def _step(self) -> None:
        started = self.clock()
        value = self._backward()
        with interrupts_held_back():  # half an update must not be saved
            self.optimizer.step(self.settings.schedule(self.progress))
            self.losses.append(_finite(float(value), self.progress.step))
            self.progress.step += 1
            self.progress.seconds += self.clock() - started

    def _backward(self) -> torch.Tensor:
        value = self.loss(self.windows.at(self.progress.step).to(self.device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def _tell(self, shown: TaskID) -> None:
        self.bar.update(shown, completed=self.progress.seconds)
        if len(self.losses) == self.settings.log_steps:
            seen = self.windows.tokens_after(self.progress.step)
            speed = f"{seen / self.progress.seconds:.0f} tok/s"
            figures = f"{seen / 1e6:.2f}M loss {statistics.fmean(self.losses):.4f} {speed}"
            self.bar.update(shown, figures=figures)
            with self.path.with_suffix(".log").open("a") as out:
                out.write(f"{self.path.stem} step {self.progress.step} tokens {figures}\n")
            self.losses.clear()


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
        with open(open_file(path), "rb") as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
        if state.get("origin", "") != origin:  # checkpoints of earlier versions do not say
            return Progress()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return Progress(int(state["step"]), float(state["seconds"]))
    except (OSError, RuntimeError, KeyError, ValueError, AttributeError, EOFError, pickle.UnpicklingError) as error:
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
            f"the loss became {loss} at step {step}; start afresh with a lower --target-learning-rate, "
            "--draft-learning-rate or --learning-rate, and another --out"
        )
    return loss


def keep_freed_pages() -> bool:
    """Ask malloc to hold on to freed memory, for the whole process; False where it has no such setting.

    glibc gives every large tensor back to the kernel when it is freed and faults its pages in again at the next step;
    at the recipe's sizes that is 10-15 % of the training time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
