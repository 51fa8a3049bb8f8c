"""Where a training run stands, and keeping it on disk so that an interrupted run goes on.

Knows nothing of what is trained: a model and an optimizer are their state dicts here.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from adaptspec.errors import ConfigError
from adaptspec.files import write_file
from adaptspec.training.optimizer import Optimizer


@dataclass
class Progress:
    """Steps taken and seconds spent training, over all resumed parts."""

    step: int = 0
    seconds: float = 0.0


def save(path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, origin: str = "") -> None:
    """Write a checkpoint so that `path` always holds a whole one, even if the machine stops half-way.

    `origin` names what the model learns from besides its data (a teacher), or is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": progress.step,
        "seconds": progress.seconds,
        "origin": origin,
    }
    packed = io.BytesIO()
    torch.save(state, packed)
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
