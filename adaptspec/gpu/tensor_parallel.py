"""Tensor parallelism: several processes (ranks) run one model, each with its part of the weights on its own device.

Rank 0 has the engine. Before it starts an operation that all ranks take part in, it sends a command; the others run the
same operations in the same order, so that collectives meet. Never run on two GPUs; tested with processes on a CPU.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from adaptspec.errors import ConfigError
from adaptspec.gpu.graphs import CudaGraphCache
from adaptspec.models.config import WHOLE, Part

_log = logging.getLogger(__name__)
KERNELS = "adaptspec.gpu.kernels"
PATIENCE = 5.0  # seconds that a rank may take to end
# The same function under two names: torch 2.13 warns of the second, which is the only one of older versions.
_ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


class RankGroup:
    """All ranks of a model, as one of them sees them; by default a single one."""

    def __init__(self, part: Part = WHOLE, followers: Sequence[Connection] = (), operators: str = KERNELS) -> None:
        """`followers` are the connections of rank 0 to the others; `operators` is the module with the kernels."""
        self.part = part
        self._followers = followers
        self._operators = operators
        self.close: Callable[[], object] = lambda: None  # ends the other ranks
        self.graphs: weakref.WeakSet[CudaGraphCache] = weakref.WeakSet()  # which contain collectives

    @property
    def operators(self) -> ModuleType:
        """The kernels of the ranks (see `kernels`). Raises ConfigError if Triton is missing."""
        try:
            return importlib.import_module(self._operators)
        except ImportError as error:
            raise ConfigError(
                f"models on a GPU need Triton, which CUDA builds of torch bring ({error}); install such a build, or "
                "use --device cpu"
            ) from error

    @property
    def alone(self) -> RankGroup:
        """A group of one with the same kernels."""
        return RankGroup(operators=self._operators)

    def send(self, *command: object) -> None:
        """Send the followers a method of the follower (see `start_ranks`) and its arguments."""
        for follower in self._followers:
            follower.send(command)

    @contextmanager
    def together(self, *command: object) -> Iterator[None]:
        """Send a command and run the same operations on rank 0 in the body.

        If the body fails on rank 0 alone, the ranks are at different operations, so the process ends.
        """
        try:
            self.send(*command)
            yield
        except BaseException:
            if self._followers:
                time.sleep(1.0)  # if the cause is that another rank died, the watcher says so first
                _end_process("rank 0 failed in the middle of an operation of all ranks")
            raise

    def answers(self) -> list[Any]:
        """One answer of each follower. Raises EOFError if one has ended."""
        return [follower.recv() for follower in self._followers]

    def leave(self) -> None:
        """Leave the process group. Graphs are deleted first: NCCL waits for those that contain its operations."""
        for graphs in self.graphs:
            graphs.clear()
        dist.destroy_process_group()

    def ordered_sum(self, own: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, with the same bits on each, rounded once.

        It is added in the order of ranks. An all-reduce of a library adds in an order that depends on the index in the
        tensor, so a token's bits would depend on where in the pass it is.
        """
        return own if self.part.size == 1 else self._all_gather(own).sum(0)

    def gather_vocab(self, own: torch.Tensor) -> torch.Tensor:
        """The parts [N, vocab / size] of all ranks side by side [N, vocab]."""
        return own if self.part.size == 1 else torch.cat(self._all_gather(own).unbind(0), -1)

    def minimum(self, number: int, device: torch.device) -> int:
        """The smallest of all ranks' numbers."""
        return number if self.part.size == 1 else int(self._all_gather(torch.tensor([number], device=device)).min())

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy rank 0's tensor to all others."""
        if self.part.size > 1:
            dist.broadcast(tensor, 0)

    def _all_gather(self, own: torch.Tensor) -> torch.Tensor:
        gathered = own.new_empty(self.part.size * own.numel())
        getattr(dist, _ALL_GATHER)(gathered, own.flatten())
        return gathered.view(self.part.size, *own.shape)


ALONE = RankGroup()


class _RankSetup(NamedTuple):
    """Where a rank runs. The ranks meet in the file `store`."""

    part: Part
    store: str
    device: torch.device


def start_ranks(size: int, device: torch.device, follower: str, operators: str = KERNELS) -> RankGroup:
    """Start the other ranks on the devices after `device`, and return the group of rank 0.

    `follower` is the class, as "module:name", whose methods rank 0's commands call. Raises ConfigError if there are too
    few devices, or this process runs another group.
    """
    if dist.is_initialized():
        raise ConfigError("this process runs one model on several devices already; end that engine first")
    devices = [device] * size
    if device.type == "cuda":
        first, count = device.index or 0, torch.cuda.device_count()
        if first + size > count:
            raise ConfigError(
                f"--tensor-parallel-size {size} from {device} on needs {first + size} CUDA devices, and there are "
                f"{count}; ask for fewer"
            )
        devices = [torch.device("cuda", first + rank) for rank in range(size)]
    elif operators == KERNELS:
        raise ConfigError(f"--tensor-parallel-size {size} needs CUDA devices; leave it out on {device}")
    context, folder = multiprocessing.get_context("spawn"), tempfile.TemporaryDirectory(prefix="adaptspec-ranks-")
    store = str(Path(folder.name) / "store")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    for rank in range(1, size):
        ours, theirs = context.Pipe()
        arguments = (_RankSetup(Part(rank, size), store, devices[rank]), theirs, follower, operators)
        process = context.Process(target=_run_follower, args=arguments, name=f"rank-{rank}", daemon=True)
        process.start()
        theirs.close()
        connections.append(ours)
        processes.append(process)
    ending, ended = threading.Event(), threading.Event()
    # Both start now, since an interpreter that ends starts no threads.
    for watch, events in ((_watch, (ending,)), (_limit_end, (ending, ended))):
        threading.Thread(target=watch, args=(processes, *events), name="adaptspec-ranks", daemon=True).start()
    group = _join(_RankSetup(Part(0, size), store, devices[0]), connections, operators)

    def close() -> None:
        atexit.unregister(close)
        ending.set()
        for connection in connections:
            connection.close()
        group.leave()
        for process in processes:
            process.join()
        folder.cleanup()
        ended.set()

    group.close = close
    atexit.register(close)  # runs before multiprocessing ends the processes, which would look as if they had failed
    return group


def _run_follower(setup: _RankSetup, leader: Connection, follower: str, operators: str) -> None:
    """Run the commands of rank 0 until it has ended; the main function of the other ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0; the others end with it
    if setup.device.type == "cuda":
        torch.cuda.set_device(setup.device)  # where Triton launches
    torch.set_num_threads(max(1, torch.get_num_threads() // setup.part.size))
    try:
        group = _join(setup, (), operators)
        module, _, name = follower.partition(":")
        rank = getattr(importlib.import_module(module), name)(group, setup.device, leader)
        with torch.inference_mode():
            while True:
                method, *values = leader.recv()
                getattr(rank, method)(*values)
    except EOFError:
        # An operation under way on the device may wait for a rank that has ended.
        reason = f"rank {setup.part.rank} could not leave the others within {PATIENCE:.0f} s, and ends"
        threading.Timer(PATIENCE, _end_process, (reason, "")).start()
        group.leave()
        os._exit(0)
    except BaseException:  # noqa: BLE001
        _end_process(f"rank {setup.part.rank} failed")


def _join(setup: _RankSetup, followers: Sequence[Connection], operators: str) -> RankGroup:
    """The group, once all ranks have called this. They meet in a file, on one machine."""
    part, store, device = setup
    for library in ("GLOO", "NCCL"):  # by default they listen on the network without authentication
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    backend, own = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=part.rank, world_size=part.size, device_id=own)
    return RankGroup(part, followers, operators)


def _end_process(reason: str, advice: str = "; the server ends, start it again") -> None:
    """End at once: a device may wait forever for a rank that has ended, and with it an orderly end."""
    _log.critical("%s%s", reason, advice, exc_info=sys.exc_info()[0] is not None)
    logging.shutdown()
    os._exit(1)


def _watch(processes: Sequence[BaseProcess], ending: threading.Event) -> None:
    """End this process if a rank ends: the others would wait for it forever."""
    gone = wait([process.sentinel for process in processes])
    if not ending.is_set():
        names = ", ".join(process.name for process in processes if process.sentinel in gone)
        _end_process(f"{names} of tensor parallel has ended (the reason is above, if it could be logged)")


def _limit_end(processes: Sequence[BaseProcess], ending: threading.Event, ended: threading.Event) -> None:
    """Kill all ranks if the end takes too long: one may wait forever for its device."""
    ending.wait()
    if not ended.wait(2 * PATIENCE):
        names = ", ".join(process.name for process in processes if process.is_alive()) or "rank-0"
        for process in processes:
            process.kill()
        _end_process(f"{names} of tensor parallel did not end within {2 * PATIENCE:.0f} s, and is killed", "")
