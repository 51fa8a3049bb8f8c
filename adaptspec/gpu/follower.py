"""The ranks beside rank 0: processes without an engine, which do as they are told; and their start and end."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import DeviceDecoder, device_decoder
from adaptspec.gpu.ranks import Group, end_process, join
from adaptspec.gpu.round import DeviceRounds
from adaptspec.models.config import Part
from adaptspec.models.kv_cache import CachePlan, bytes_for_cache
from adaptspec.models.loading import load_model
from adaptspec.models.runner import ModelInfo

PATIENCE = 5.0  # seconds, for a rank to end in order


class Follower:
    """A rank that is told what to do: its methods are what can be told, `load`, `start` and `prepare` first."""

    def __init__(self, group: Group, device: torch.device, leader: Connection) -> None:
        self._group, self._device, self._leader = group, device, leader

    def load(self, place: str, dtype: str) -> None:
        """Read its part of the target, and tell how much room that leaves for a cache."""
        make, part = partial(device_decoder, group=self._group), self._group.part
        self._loaded = load_model(place, device=str(self._device), dtype=dtype, make=make, part=part)
        self._leader.send(bytes_for_cache(self._device))

    def start(self, info: ModelInfo, plan: CachePlan) -> None:
        """Give it its cache."""
        self._target = self._loaded.start(info, plan)

    def call(self, method: str, *values: Any) -> None:
        """Have it do something."""
        getattr(self._target, method)(*values)

    def prepare(self, rows: int, steps: int) -> None:
        """Make ready for rounds."""
        assert isinstance(self._target, DeviceDecoder)
        self._rounds = DeviceRounds(self._target, None, rows, steps, ())

    def round(self, method: str, *values: Any) -> None:
        """Run one, or capture their parts."""
        getattr(self._rounds, method)(*values)


def follow(part: Part, store: str, device: str, leader: Connection) -> None:
    """Do what rank 0 tells until it is gone. The main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, whose end is the end of all
    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # Triton works where this is
    torch.set_num_threads(max(1, torch.get_num_threads() // part.size))
    try:
        group = join(part, store, place)
        follower = Follower(group, place, leader)
        with torch.inference_mode():
            while True:
                method, *values = leader.recv()
                getattr(follower, method)(*values)
    except EOFError:
        # What is under way on a device may wait for a rank that has gone.
        late = f"rank {part.rank} could not leave the others within {PATIENCE:.0f} s, and ends as it is", ""
        threading.Timer(PATIENCE, end_process, late).start()
        group.leave()
        os._exit(0)
    except BaseException:  # noqa: BLE001
        end_process(f"rank {part.rank} failed")


def lead(size: int, device: torch.device) -> Group:
    """Start the other ranks, on the devices after this one. Raises ConfigError: there are not so many."""
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
    context, folder = multiprocessing.get_context("spawn"), tempfile.TemporaryDirectory(prefix="adaptspec-ranks-")
    store = str(Path(folder.name) / "store")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    for rank in range(1, size):
        mine, its = context.Pipe()
        one = context.Process(
            target=follow, args=(Part(rank, size), store, str(devices[rank]), its), name=f"rank-{rank}", daemon=True
        )
        one.start()
        its.close()
        connections.append(mine)
        processes.append(one)
    ending, ended = threading.Event(), threading.Event()
    # Both from the start: where the interpreter ends, it starts no thread any more.
    for watch, told in ((_watch, (ending,)), (_hurry, (ending, ended))):
        threading.Thread(target=watch, args=(processes, *told), name="adaptspec-ranks", daemon=True).start()

    group = join(Part(0, size), store, devices[0], connections)

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
    atexit.register(close)  # before multiprocessing ends the processes, which would look like their own doing
    return group


def _watch(processes: Sequence[BaseProcess], ending: threading.Event) -> None:
    """End with a rank that ends: what the others wait for would not come."""
    gone = wait([process.sentinel for process in processes])
    if not ending.is_set():
        names = ", ".join(process.name for process in processes if process.sentinel in gone)
        end_process(f"{names} of tensor parallel has ended (why stands above, if it could say)")


def _hurry(processes: Sequence[BaseProcess], ending: threading.Event, ended: threading.Event) -> None:
    """Leave when the end takes too long: a rank may wait for ever for what is on its device."""
    ending.wait()
    if not ended.wait(2 * PATIENCE):
        names = ", ".join(process.name for process in processes if process.is_alive()) or "rank-0"
        for process in processes:
            process.kill()
        end_process(f"{names} of tensor parallel did not end within {2 * PATIENCE:.0f} s, and is killed", "")
