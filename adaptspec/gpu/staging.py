"""One block of memory on the host and one on the device, of one layout: a round sends, and brings back, one copy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNED = 16  # bytes: what any number may be read from


def at_work(device: torch.device) -> AbstractContextManager[object]:
    """Have torch's current device be this one, as Triton and graphs ask for."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Block:
    """Arrays of fixed shapes, side by side: `host[name]` of numpy and `device[name]` of torch are the same array."""

    def __init__(self, layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device) -> None:
        self._layout = layout
        places, size = {}, 0
        for name, (dtype, shape) in layout.items():
            count = int(np.prod(shape)) * dtype.itemsize
            places[name] = slice(size, size + count)
            size += -(-count // _ALIGNED) * _ALIGNED
        self.whole = torch.zeros(size, dtype=torch.uint8, device=device)
        # Pinned: the device copies by itself, and the host does not wait for it.
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.device = {n: self.whole[places[n]].view(dtype).view(shape) for n, (dtype, shape) in layout.items()}
        self.host: dict[str, npt.NDArray[Any]] = {
            n: self._host[places[n]].view(dtype).view(shape).numpy() for n, (dtype, shape) in layout.items()
        }

    def on(self, device: torch.device) -> Block:
        """It, or one like it where that is another device."""
        return self if device == self.whole.device else Block(self._layout, device)

    def take(self, other: Block) -> None:
        """Copy the other device's side to this one's; what both do next comes after that."""
        if other is not self:
            self.whole.copy_(other.whole, non_blocking=True)

    def send(self) -> None:
        """Copy all to the device. The host's side must not be written on before the device has come so far."""
        self.whole.copy_(self._host, non_blocking=True)

    def fetch(self) -> None:
        """Copy all to the host. It is there when the device has come so far."""
        self._host.copy_(self.whole, non_blocking=True)
