"""What the engine needs of a model on a device that works while the host goes on."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.models.runner import Runner
from adaptspec.models.sampling import Chooser


def to_device(array: IntArray, device: torch.device) -> torch.Tensor:
    """The array on `device`, without waiting for what runs there."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def drawn_tokens(tokens: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """`drawn[k]` for each token -1 - k [N] of a draft step (see `AsyncRunner`)."""
    return drawn.index_select(0, -1 - tokens)


@runtime_checkable
class AsyncRunner(Runner, Protocol):
    """A runner on a device, whose `forward` returns before the pass has run.

    The tokens of a draft step may be unknown to the host. Then all of `Packed.tokens` are negative, and -1 - k stands
    for `drawn[k]`. Set `drawn`, int64 [n] on the device, before the pass.
    """

    drawn: torch.Tensor


class Mark(Protocol):
    """A point in the work of a device."""

    def seconds_since(self, earlier: Any) -> float:
        """Wait for this point; returns the seconds between both."""


@runtime_checkable
class AsyncTarget(AsyncRunner, Protocol):
    """An `AsyncRunner` that can be a target: tokens are chosen on its device.

    `widest`: tokens of the widest pass of a graph, beyond which passes are slower; None if there are no graphs.
    """

    @property
    def widest(self) -> int | None: ...

    def make_chooser(self, rows: int) -> Chooser:
        """A chooser for up to `rows` requests at a time."""

    def mark(self) -> Mark:
        """The point after all work that was launched so far."""
