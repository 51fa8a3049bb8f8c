"""The training loop: boxed by time, with progress, checkpoints and exact resume. Muon and AdamW as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of each matrix; with
updates scaled to AdamW's root mean square (Liu et al. 2025, "Muon is scalable for LLM training") both share one
learning rate. It needs fewer tokens than AdamW, and tokens are scarce on a CPU.
"""

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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import nn

from adaptspec.errors import ConfigError, CorpusError
from adaptspec.files import open_file, write_file
from adaptspec.quantity import quantity
from adaptspec.training.status import Status

Loss = Callable[[torch.Tensor], torch.Tensor]  # of token ids [batch, window + 1], a scalar
WARMUP_STEPS, WARMUP_SHARE = 100, 0.05  # whichever ends first
CHECKPOINT_SECONDS = 300.0
LOG_STEPS = 20
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # names and numbers of malloc.h


@dataclass(frozen=True)
class LoopSettings:
    """`minutes` of training time, over all resumed parts, and the peak learning rate."""

    minutes: float
    learning_rate: float

    @property
    def seconds(self) -> float:
        return self.minutes * 60

    def schedule(self, progress: Progress) -> float:
        """Share (0..1) of the peak learning rate: linear warm-up by steps or time, linear decay to zero by time."""
        done = progress.seconds / self.seconds
        warm = min(1.0, max((progress.step + 1) / WARMUP_STEPS, done / WARMUP_SHARE))
        return warm * max(0.0, 1 - done)


@dataclass
class Progress:
    """Steps taken and seconds spent training, over all resumed parts."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Windows:
    """A flat token array as batches of windows, in an order that is a function of the step alone, so runs can resume.

    Each epoch cuts the array at a fresh offset and visits the windows in a fresh order.

    Raises:
        CorpusError: the tokens do not fill one batch.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    batch: int
    window: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_fills_batch(len(self.tokens), self.batch, self.window)

    @property
    def _count(self) -> int:
        return _windows_of(len(self.tokens), self.window)

    def tokens_after(self, steps: int) -> int:
        return steps * self.batch * self.window

    def at(self, step: int) -> torch.Tensor:
        """Token ids [batch, window + 1] of step number `step`, int64."""
        first = step * self.batch
        rng = np.random.default_rng((self.seed, first // self._count))
        offset = int(rng.integers(self.window))
        picks = _permutation(rng, self._count)[np.arange(first, first + self.batch) % self._count]
        rows = [self.tokens[p * self.window + offset :][: self.window + 1] for p in picks]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def check_fills_batch(tokens: int, batch: int, window: int) -> None:
    """Raises CorpusError: so many tokens do not fill one batch."""
    if _windows_of(tokens, window) < batch:
        raise CorpusError(
            f"{quantity(tokens, 'token', form=',')} to train on are too few, for one batch needs "
            f"{(batch + 2) * window:,}; give more text, or a smaller --batch or --window"
        )


def _windows_of(tokens: int, window: int) -> int:
    """One less than fit, so that the epoch's offset never runs over the end."""
    return (tokens - 1) // window - 1


def check_torch() -> None:
    """Raises ConfigError: torch is too old to train with."""
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"training needs torch >= 2.9 (found {torch.__version__}): pip install -U 'torch>=2.9'")


def _permutation(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """A cheap pseudo-random order: i -> a * i + b mod count with a coprime to count."""
    a = int(rng.integers(count // 3, count)) | 1
    while math.gcd(a, count) != 1:
        a += 1
    return (np.arange(count, dtype=np.int64) * a + int(rng.integers(count))) % count


class Optimizer:
    """Muon for the weight matrices, AdamW for embeddings and norms, with a learning rate set from outside."""

    def __init__(self, module: nn.Module, learning_rate: float, weight_decay: float = 0.1) -> None:
        check_torch()
        matrices = [p for n, p in module.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        chosen = {id(p) for p in matrices}
        others = [p for p in module.parameters() if id(p) not in chosen]
        self._module = module
        self._peak = learning_rate
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=learning_rate, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )

    def step(self, schedule: float) -> None:
        """Apply the gathered gradients at `schedule` (0..1) times the peak learning rate, then clear them."""
        nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._peak * schedule
            part.step()
        self.clear()

    def clear(self) -> None:
        """Set all gradients to zero."""
        for part in self._parts:
            part.zero_grad(set_to_none=False)

    def state_dict(self) -> dict[str, Any]:
        return {str(i): part.state_dict() for i, part in enumerate(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for i, part in enumerate(self._parts):
            part.load_state_dict(state[str(i)])


def train(
    module: nn.Module,
    loss: Loss,
    windows: Windows,
    settings: LoopSettings,
    path: Path,
    *,
    console: Console,
    clock: Callable[[], float] = time.perf_counter,
) -> Progress:
    """Train `module` in place until its time is up; return the progress.

    `path` is the checkpoint: if it exists, training continues from there with the batches that come next. A log is
    written next to it. A Ctrl-C is passed on after a checkpoint has been saved.

    Raises:
        ConfigError: the checkpoint does not fit, or the loss stopped being a number.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    optimizer = Optimizer(module, settings.learning_rate)
    progress = resume(path, module, optimizer)
    if progress.seconds < settings.seconds:
        device = next(module.parameters()).device

        def backward() -> torch.Tensor:
            value = loss(windows.at(progress.step).to(device))
            value.backward()  # type: ignore[no-untyped-call]
            return value.detach()

        with Status(console, "training", settings.seconds, progress.seconds) as status:
            report = _Report(status, windows, path.with_suffix(".log"))
            saved = progress.seconds
            try:
                while progress.seconds < settings.seconds:
                    started = clock()
                    value = backward()
                    with interrupts_held_back():  # half an update must not be saved
                        optimizer.step(settings.schedule(progress))
                        report.losses.append(_finite(float(value), progress.step))
                        progress.step += 1
                        progress.seconds += clock() - started
                    report.update(progress)
                    if progress.seconds - saved > CHECKPOINT_SECONDS:
                        save(path, module, optimizer, progress)
                        saved = progress.seconds
            except KeyboardInterrupt:
                if progress.seconds > saved:
                    save(path, module, optimizer, progress)
                raise
            save(path, module, optimizer, progress)
    if progress.step < WARMUP_STEPS:
        console.print(
            f"warning: training took {progress.step} steps, which is hardly enough to learn; give more --minutes, or a "
            "smaller --batch",
            soft_wrap=True,
        )
    return progress


class _Report:
    """Losses and speed of a run, on the status line and in a log."""

    def __init__(self, status: Status, windows: Windows, log: Path) -> None:
        self.losses: deque[float] = deque(maxlen=LOG_STEPS)
        self._status, self._windows, self._log = status, windows, log

    def update(self, progress: Progress) -> None:
        """Show the progress; every `LOG_STEPS` steps a line is added to the log."""
        tokens = self._windows.tokens_after(progress.step)
        speed, loss = tokens / max(progress.seconds, 1e-9), statistics.fmean(self.losses)
        figures = f"loss {loss:.3f}, {tokens / 1e6:.2f} million tokens at {speed:.0f} tokens/s"
        self._status.update(progress.seconds, figures)
        if progress.step % LOG_STEPS == 0:
            with self._log.open("a") as out:
                out.write(f"step {progress.step}: {figures}\n")


def save(path: Path, module: nn.Module, optimizer: Optimizer, progress: Progress) -> None:
    """Write a checkpoint; `path` always holds a whole one, even if the machine stops half-way."""
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    packed = io.BytesIO()
    torch.save({**state, "step": progress.step, "seconds": progress.seconds}, packed)
    write_file(path, packed.getbuffer())


def resume(path: Path, module: nn.Module, optimizer: Optimizer) -> Progress:
    """Load `path` into module and optimizer; a fresh start if there is none.

    Raises:
        ConfigError: the file is damaged or belongs to a module of other sizes.
    """
    if not path.exists():
        return Progress()
    with _checkpoint(path) as state:
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return Progress(int(state["step"]), float(state["seconds"]))


def trained_seconds(path: Path) -> float:
    """The training time of a checkpoint; 0 if there is none. Raises ConfigError: the file is damaged."""
    if not path.exists():
        return 0.0
    with _checkpoint(path) as state:
        return float(state["seconds"])


@contextmanager
def _checkpoint(path: Path) -> Iterator[dict[str, Any]]:
    """The content of a checkpoint; errors in reading and using it become ConfigError."""
    try:
        with open(open_file(path), "rb") as file:
            yield torch.load(file, map_location="cpu", weights_only=True)
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
            f"the loss became {loss} at step {step}; start afresh with a lower --learning-rate and another --out"
        )
    return loss


def keep_freed_pages() -> bool:
    """Ask malloc to hold on to freed memory, for the whole process; False where it has no such setting.

    glibc gives every large tensor back to the kernel when it is freed and faults its pages in again at the next step;
    at the sizes of small drafts that is 10-15 % of the training time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
