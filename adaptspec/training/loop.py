"""A training loop with a time budget: progress, checkpoints, resume.

Knows nothing of what is learned: the caller gives a model, the windows and a loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from tqdm import tqdm

from adaptspec.training.optimizer import Optimizer

Loss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LoopSettings:
    """How long and in what portions to train. `minutes` is training time, over all resumed parts."""

    minutes: float
    learning_rate: float
    batch: int = 8
    window: int = 512
    warmup_steps: int = 100
    checkpoint_minutes: float = 5.0
    log_steps: int = 20
    seed: int = 0


@dataclass
class _Progress:
    step: int = 0
    seconds: float = 0.0


def train(
    model: nn.Module,
    loss: Loss,
    tokens: npt.NDArray[np.uint16],
    settings: LoopSettings,
    checkpoint: Path,
    name: str,
) -> int:
    """Train `model` in place on windows of the flat `tokens`; return the number of tokens seen.

    `loss` maps token ids [batch, window + 1] to a scalar. Linear warm-up, then linear decay to zero
    by time. With `checkpoint` present training goes on from there.
    """
    optimizer = Optimizer(model, settings.learning_rate)
    progress = _resume(checkpoint, model, optimizer)
    device = next(model.parameters()).device
    budget = settings.minutes * 60
    log = checkpoint.with_suffix(".log")
    last_save, since_log, running = progress.seconds, 0, 0.0
    with tqdm(total=round(budget), initial=round(progress.seconds), desc=name, unit="s", mininterval=5) as bar:
        while progress.seconds < budget:
            started = time.perf_counter()
            schedule = min(1.0, (progress.step + 1) / settings.warmup_steps) * max(0.0, 1 - progress.seconds / budget)
            value = loss(_batch(tokens, progress.step, settings).to(device))
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step(schedule)
            running, since_log = running + float(value.detach()), since_log + 1
            progress.step += 1
            progress.seconds += time.perf_counter() - started
            bar.update(max(0, min(round(budget), round(progress.seconds)) - bar.n))
            if since_log == settings.log_steps:
                seen = progress.step * settings.batch * settings.window
                line = f"{name} step {progress.step} tokens {seen / 1e6:.2f}M loss {running / since_log:.4f} {seen / progress.seconds:.0f} tok/s"
                bar.set_postfix_str(line.split("tokens ")[1])
                with log.open("a") as out:
                    out.write(line + "\n")
                running, since_log = 0.0, 0
            if progress.seconds - last_save > settings.checkpoint_minutes * 60:
                _save(checkpoint, model, optimizer, progress)
                last_save = progress.seconds
    _save(checkpoint, model, optimizer, progress)
    return progress.step * settings.batch * settings.window


def _batch(tokens: npt.NDArray[np.uint16], step: int, settings: LoopSettings) -> torch.Tensor:
    """The windows of one step: each epoch is a fresh permutation with a fresh offset, known from the step alone."""
    count = (len(tokens) - 1) // settings.window - 1
    if count < settings.batch:
        raise ValueError(f"the corpus has {len(tokens)} tokens, fewer than one batch; give a larger corpus")
    first = step * settings.batch
    epoch = first // count
    rng = np.random.default_rng((settings.seed, epoch))
    offset = int(rng.integers(settings.window))
    order = _permutation(rng, count)
    picks = order[np.arange(first, first + settings.batch) % count]
    rows = [tokens[p * settings.window + offset :][: settings.window + 1] for p in picks]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _permutation(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """A cheap pseudo-random order: i -> a * i + b mod count with a coprime to count."""
    a = int(rng.integers(count // 3, count)) | 1
    while math.gcd(a, count) != 1:
        a += 1
    return (np.arange(count, dtype=np.int64) * a + int(rng.integers(count))) % count


def _save(path: Path, model: nn.Module, optimizer: Optimizer, progress: _Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": progress.step,
            "seconds": progress.seconds,
        },
        partial,
    )
    partial.replace(path)


def _resume(path: Path, model: nn.Module, optimizer: Optimizer) -> _Progress:
    if not path.exists():
        return _Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return _Progress(int(state["step"]), float(state["seconds"]))
