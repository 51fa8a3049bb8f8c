"""Fake CUDA: models at full size on a device that is not there; no number is computed and nothing is allocated.

    fake_cuda("tests.gpu.fake_models:passes", [...])

runs a function in a process of its own, where torch takes CUDA for there, under `FakeTensorMode`. Whoever reads a
number there, or mixes devices, fails. `Traffic` counts kernels and the bytes that they move.
"""

from __future__ import annotations

import json
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# A torch without CUDA refuses to slice what says it is there, as it does not know how to change to that device.
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
static c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, &guard);
"""
WRITES_ONLY = {"copy_", "fill_", "zero_"}
GATHERS = {"index_select", "embedding", "gather", "index"}
SCATTERS = {"index_copy_": 3, "scatter_": 3, "index_put_": 2}


class Traffic(TorchDispatchMode):
    """By kernel: how often it was called and the bytes that it read and wrote; and copies from and to the host.

    `peak` is the most bytes that what was made held at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.moved, self.copies, self._paused = Counter[str](), Counter[str](), 0, False
        self.peak, self._held, self._users = 0, 0, Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._paused:
            return result
        name = func.overloadpacket.__name__
        given, made = tensors((args, kwargs)), tensors(result)
        self.copies += any(one.is_cuda for one in given) and any(one.is_cpu for one in made)
        if any(one.is_cuda for one in made):
            same, empty = {storage(one) for one in given}, name.startswith(("empty", "new_empty"))
            if not empty and (func._schema.is_mutable or any(storage(one) not in same for one in made)):  # no view
                self.copies += any(one.is_cpu and one.dim() for one in given)
                self.add(name, traffic(name, args, given, made))
            self.hold([one for one in made if storage(one) not in same or storage(one) in self._users])
        return result

    def add(self, name: str, moved: int, kernels: int = 1) -> None:
        """Also for kernels that torch does not know."""
        self.kernels[name] += kernels
        self.moved[name] += moved

    def hold(self, made: list[torch.Tensor]) -> None:
        """Count the memory of these until the last of them is gone."""
        for one in made:
            which, own = storage(one), one.untyped_storage().nbytes()
            self._held += 0 if self._users[which] else own
            self._users[which] += 1
            weakref.finalize(one, self._release, which, own)
        self.peak = max(self.peak, self._held)

    def _release(self, which: int, own: int) -> None:
        self._users[which] -= 1
        if not self._users[which]:
            del self._users[which]
            self._held -= own

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


def traffic(name: str, args: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    """Bytes: each tensor given is read once, each result written once. A gather reads no more than it returns."""
    written = sum(map(size, made))
    if name in GATHERS:
        return 2 * written
    if name in SCATTERS:
        return 2 * size(args[SCATTERS[name]])
    read = [one for one in given if not (name in WRITES_ONLY and one is args[0])]
    return written + sum(map(size, {id(one): one for one in read}.values()))


def size(tensor: torch.Tensor) -> int:
    """Bytes of memory behind a tensor: what is expanded counts once."""
    own: int = tensor.numel() * tensor.element_size()
    return min(own, tensor.untyped_storage().nbytes())


def storage(tensor: torch.Tensor) -> int:
    """Which memory a tensor lies in."""
    return tensor.untyped_storage()._cdata


def tensors(nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def fake_cuda(function: str, *args: Any) -> Any:
    """What `function` (module:name) makes of these arguments there; both pass through JSON. Skips without g++."""
    command = [sys.executable, "-m", "tests.gpu.fake", guard_library(), function, json.dumps(args)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


@cache
def guard_library() -> str:
    if shutil.which("g++") is None:
        pytest.skip("fake CUDA needs g++, to build three lines that make torch take it for there")
    torch_folder, folder = Path(torch.__file__).parent, Path(tempfile.mkdtemp(prefix="adaptspec-guard-"))
    (folder / "guard.cpp").write_text(GUARD)
    built = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch_folder}/include", "guard.cpp"]
    built += [f"-L{torch_folder}/lib", "-lc10", "-o", "guard.so"]
    subprocess.run(built, cwd=folder, check=True, capture_output=True, text=True)
    return str(folder / "guard.so")


def main(library: str, function: str, args: str) -> None:
    """In the process that `fake_cuda` starts."""
    torch.ops.load_library(library)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    from_numpy = torch.from_numpy
    # What has numbers is computed with under a further mode, also where it is on the device.
    torch.from_numpy = lambda array: torch.empty(array.shape, dtype=from_numpy(array).dtype)
    torch.tensor = lambda data, **where: torch.empty(np.shape(data), **where)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        result = pkgutil.resolve_name(function)(*json.loads(args))
    sys.stdout.write(f"\n{json.dumps(result)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
