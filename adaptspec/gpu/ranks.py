"""Ranks: processes that run one model together, each a part of it on a device of its own (tensor parallel).

Rank 0 has the engine. What it has its device do that takes all parts, it tells the others first; they do the same in
the same order (`follower`), so that sums and gathers meet.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from adaptspec.gpu.graphs import Captured
from adaptspec.models.config import WHOLE, Part

_log = logging.getLogger(__name__)
# Of the same signature; torch 2.13 calls it by the first name, and warns of the second, which older ones know.
_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


class Group:
    """The ranks as one of them sees them; without `followers` none is told anything."""

    def __init__(self, part: Part = WHOLE, followers: Sequence[Connection] = ()) -> None:
        self.part = part
        self._followers = followers
        self.close: Callable[[], object] = bool  # ends the others
        self.graphs: weakref.WeakSet[Captured] = weakref.WeakSet()  # in which ranks meet

    def tell(self, *words: object) -> None:
        """Have the others do this: a method of `Follower`, and what it is given."""
        for one in self._followers:
            one.send(words)

    @contextmanager
    def together(self, *words: object) -> Iterator[None]:
        """What rank 0 does within, all others are told to do by these words.

        If it fails here alone, the ranks are no longer where each other is: the process ends.
        """
        try:
            self.tell(*words)
            yield
        except BaseException:
            if self._followers:
                time.sleep(1.0)  # if it is because another rank has died, whoever watches says so
                end_process("rank 0 failed in the middle of what all ranks do")
            raise

    def answers(self) -> list[Any]:
        """What each of the others makes of what it was told; EOFError if one has ended."""
        return [one.recv() for one in self._followers]

    def leave(self) -> None:
        """Be a rank no more. Graphs go first: NCCL waits for those that hold its operations."""
        for one in self.graphs:
            one.drop()
        dist.destroy_process_group()

    def total(self, own: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, in the same bits on each.

        Added up in the order of the ranks: a library's all-reduce adds in an order that depends on the place, and so
        would a token's text on its place in the pass. 16 bits are rounded once.
        """
        return own if self.part.size == 1 else self._every(own).sum(0)

    def joined(self, own: torch.Tensor) -> torch.Tensor:
        """[..., N] of all ranks side by side: [..., size * N]."""
        return own if self.part.size == 1 else torch.cat(self._every(own).unbind(0), -1)

    def share(self, tensor: torch.Tensor) -> None:
        """Give all ranks rank 0's."""
        if self.part.size > 1:
            dist.broadcast(tensor, 0)

    def _every(self, own: torch.Tensor) -> torch.Tensor:
        every = own.new_empty(self.part.size * own.numel())
        getattr(dist, _GATHER)(every, own.flatten())
        return every.view(self.part.size, *own.shape)


ALONE = Group()


def join(part: Part, store: str, device: torch.device, followers: Sequence[Connection] = ()) -> Group:
    """The group of all ranks, when each has called this; they meet in the file `store`, and are all of this machine."""
    for library in ("GLOO", "NCCL"):  # they would listen on the network, and ask nobody who it is
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    kind, own = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(kind, init_method=f"file://{store}", rank=part.rank, world_size=part.size, device_id=own)
    return Group(part, followers)


def end_process(reason: str, advice: str = "; the server ends, start it again") -> None:
    """At once: a device may wait for ever for one that does not come, and with it whatever would end in order."""
    _log.critical("%s%s", reason, advice, exc_info=sys.exc_info()[0] is not None)
    logging.shutdown()
    os._exit(1)
