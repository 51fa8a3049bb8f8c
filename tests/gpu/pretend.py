"""Pretended CUDA: tensors of real numbers on the CPU whose `device` says cuda:0, for tests where there is no GPU.

    with PretendCuda() as cuda:  # on the thread that works with the device
        ...
        assert cuda.syncs.total() == 1

What a device refuses raises `DeviceError`: operands on two devices, `numpy()`. What makes the host wait, and each copy
between the two, is counted by the line of the package that asks for it. `pretend_queue` is about what does not block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.gpu.pretend_queue import DeviceError, Queue, line

CUDA = torch.device("cuda:0")
ANSWERS = {"device": CUDA, "is_cuda": True, "is_cpu": False}
READS = {"item", "tolist", "equal", "allclose", "is_nonzero", "__contains__", "__format__", "__repr__"}
READS |= {f"__{kind}__" for kind in ("bool", "int", "float", "complex", "index")}
SIZED_BY_DATA = {"nonzero", "argwhere", "masked_select", "bincount", "unique", "_return_output"}
INDEXING = {"__getitem__", "__setitem__", "index_put", "index_put_"}
MOVES, PINS = {"to", "cuda", "cpu"}, {"pin_memory", "is_pinned"}


class OnDevice(torch.Tensor):
    """A tensor that says it is on cuda:0."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return PretendCuda.active.call(func, args, kwargs or {})


def is_cuda(device: object) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda"


class HostGenerator:
    """Makes generators on the CPU, where all numbers are made."""

    _made = torch.Generator

    def __new__(cls, *_: object) -> torch.Generator:  # type: ignore[misc]
        return cls._made()


def plain(part: Any) -> Any:
    return part.as_subclass(torch.Tensor) if isinstance(part, OnDevice) else part


def on_device(part: Any) -> Any:
    return part.as_subclass(OnDevice) if type(part) is torch.Tensor else part


class PretendCuda(Queue, TorchFunctionMode):
    """The device at work, and its counts; one at a time."""

    active: PretendCuda

    def __init__(self) -> None:
        Queue.__init__(self)
        TorchFunctionMode.__init__(self)
        self._pinned: dict[int, torch.UntypedStorage] = {}  # kept, so that no other memory gets their addresses
        self._patches = ExitStack()

    def __enter__(self) -> PretendCuda:
        Queue.active = PretendCuda.active = self
        self._patches.enter_context(mock.patch.multiple(torch.cuda, **self.stubs()))
        self._patches.enter_context(mock.patch.object(Thread, "run", self._in_thread(Thread.run)))
        self._patches.enter_context(mock.patch.object(torch, "Generator", HostGenerator))
        self._patches.enter_context(mock.patch.object(torch.backends.cuda, "preferred_blas_library"))
        self.enter_thread()
        return self

    def _in_thread(self, run: Callable[[Thread], None]) -> Callable[[Thread], None]:
        """What a thread runs, with the device there: modes of torch are a thread's own."""

        def entered(thread: Thread) -> None:
            self.enter_thread()
            run(thread)

        return entered

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def enter_thread(self) -> None:
        """Have the device there on this thread until it ends."""
        TorchFunctionMode.__enter__(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if OnDevice not in types and name not in PINS and name != "cuda" and "pin_memory" not in kwargs:
            leaves = () if name == "__get__" else tree_leaves((args, kwargs))
            if not any(isinstance(leaf, OnDevice) or is_cuda(leaf) for leaf in leaves):
                return func(*args, **kwargs)
        return self.call(func, args, kwargs)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What torch does with arguments that are on the device, or are to be."""
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name == "__get__" and func.__self__.__name__ in ANSWERS and isinstance(args[0], OnDevice):
                return ANSWERS[func.__self__.__name__]
            if name in PINS:
                return self._pin(args[0].clone()) if name == "pin_memory" else self._is_pinned(args[0])
            if name in MOVES:
                return self._move(name, args, kwargs)
            if name == "copy_" and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
                asks = bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
                return self._transfer(args[0], args[1], asks=asks)
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            here = any(isinstance(one, OnDevice) for one in tensors)
            if here:
                self._check(name, args, kwargs, tensors)
            return self._run(func, name, args, dict(kwargs), here)

    def _run(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], here: bool) -> Any:
        target, pinned = kwargs.get("device"), kwargs.pop("pin_memory", False)
        stays = here if target is None else is_cuda(target)
        if stays and target is not None:
            kwargs["device"] = "cpu"
            if name in ("tensor", "as_tensor", "asarray", "new_tensor"):
                self.copied(upload=True, blocks=True)
        args, kwargs = tree_map(plain, (args, kwargs))
        if (wide := kwargs.pop("out_dtype", None)) is not None:  # of products: torch has it for CUDA alone
            args = [one.to(wide) if isinstance(one, torch.Tensor) else one for one in args]
        result = func(*args, **kwargs)
        self.ran(func, args, kwargs, result)
        if pinned:
            self._pin(result)
        return tree_map(on_device, result) if stays else result

    def _check(self, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        """Raise on what a device refuses; count what makes the host wait."""
        if name in ("numpy", "__array__"):
            raise DeviceError(f"{line()}: {name} of a tensor on the device")
        host = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
        if name in INDEXING:
            host = self._index(name, args, host)
        if host:
            shapes = [tuple(one.shape) for one in host]
            raise DeviceError(f"{line()}: {name} of operands on two devices; on the host are {shapes}")
        sized = name == "repeat_interleave" and "output_size" not in kwargs and len(tensors) > 1
        if name in READS | SIZED_BY_DATA or sized or (name == "where" and len(args) == 1):
            self.wait(self.current.copies)

    def _index(self, name: str, args: Any, host: list[torch.Tensor]) -> list[torch.Tensor]:
        """Count what becomes an index on the device; the operands `host` that are left and ought to be there."""
        parts = args[1] if isinstance(args[1], tuple) or name.startswith("index") else (args[1],)
        arrays = [part for part in parts if isinstance(part, (torch.Tensor, list, np.ndarray))]
        value = args[2] if len(args) > 2 else None
        # One value for all that a mask picks is filled in without asking how many they are.
        fills = name != "__getitem__" and not (isinstance(value, torch.Tensor) and value.numel() > 1)
        for part in arrays:
            if not isinstance(part, OnDevice):
                self.copied(upload=True, blocks=True)  # torch takes it along
            elif part.dtype == torch.bool and not fills:
                self.wait(self.current.copies)
        if isinstance(args[0], OnDevice):
            host = [one for one in host if not any(one is part for part in arrays)]
        if host and name == "__setitem__" and not arrays:
            self.copied(upload=True, blocks=True)  # a plain copy into a slice
            host = []
        return host

    def _move(self, name: str, args: Any, kwargs: Any) -> Any:
        source, given = args[0], [*args[1:], *kwargs.values()]
        here, like = isinstance(source, OnDevice), [one for one in given if isinstance(one, torch.Tensor)]
        places = [is_cuda(one) for one in given if isinstance(one, (str, torch.device))]
        places += [isinstance(one, OnDevice) for one in like]
        there = name == "cuda" if name != "to" else [*places, here][0]
        dtype = next((one for one in given if isinstance(one, torch.dtype)), like[0].dtype if like else source.dtype)
        if here == there:
            options = {"dtype": dtype, "copy": kwargs.get("copy", False)}
            return self._run(torch.Tensor.to, name, (source,), options, here)
        asks = bool(kwargs.get("non_blocking", any(one is True for one in args[1:])))
        target = torch.empty_like(plain(source), dtype=dtype)
        if asks and here:
            self._pin(target)  # as torch does
        return self._transfer(on_device(target) if there else target, source, asks=asks)

    def _transfer(self, target: torch.Tensor, source: torch.Tensor, *, asks: bool) -> torch.Tensor:
        """Copy between the two; `asks` not to block, which needs pinned memory."""
        upload = isinstance(target, OnDevice)
        host = source if upload else target
        blocks = not (asks and self._is_pinned(host))
        there, here = plain(target), plain(source)

        def copy() -> None:
            self.copied(upload=upload, blocks=blocks)
            there.copy_(here)
            if not blocks:
                self.start(host, upload=upload)

        copy()
        self.ran(copy, (), {}, None)
        return target

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = plain(tensor).untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return tensor

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return plain(tensor).untyped_storage().data_ptr() in self._pinned
