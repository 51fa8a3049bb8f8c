"""Pretended CUDA computes what the CPU does, refuses what a device refuses, and counts what makes the host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread

import numpy as np
import pytest
import torch

from tests.gpu.pretend import PretendCuda
from tests.gpu.pretend_queue import DeviceError


@pytest.fixture
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device, torch.inference_mode():
        yield device


def made() -> torch.Tensor:
    """[3, 4] on the device, without a copy."""
    return torch.arange(12.0, device="cuda").view(3, 4)


def pinned(*numbers: int) -> torch.Tensor:
    block = torch.empty(len(numbers), dtype=torch.int32, pin_memory=True)
    block.numpy()[:] = numbers
    return block


def test_tensors_say_where_they_are(cuda: PretendCuda) -> None:
    """Also views, results, what is made like them, and what is made on another thread that entered."""
    x = made()
    for one in (x, x[:2], x.t(), x @ x.t(), torch.cat([x, x]), x.topk(2).indices, torch.zeros_like(x), x.new_ones(2)):
        assert one.device == torch.device("cuda:0")
        assert one.is_cuda
        assert not one.is_cpu
    here = torch.zeros_like(x, device="cpu")
    assert here.is_cpu
    assert here.numpy().shape == (3, 4)
    places: list[str] = []
    thread = Thread(target=lambda: (cuda.enter_thread(), places.append(str(made().device))))
    thread.start()
    thread.join()
    assert places == ["cuda:0"]
    assert not cuda.syncs + cuda.uploads + cuda.downloads


def test_products_may_be_wider_than_their_factors(cuda: PretendCuda) -> None:
    """Which torch has for CUDA alone."""
    x = (made() / 7).bfloat16()
    wide = torch.mm(x, x.t(), out_dtype=torch.float32)
    assert wide.is_cuda
    assert torch.equal(wide, x.float() @ x.float().t())


MIXED: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": lambda x: x + torch.zeros(4),
    "product": lambda x: torch.mm(x, torch.zeros(4, 2)),
    "in a list": lambda x: torch.cat([x, torch.zeros(3, 4)]),
    "out": lambda x: torch.add(x, 1.0, out=torch.zeros(3, 4)),
    "index_select": lambda x: x.index_select(0, torch.tensor([1])),
    "device index": lambda x: torch.zeros(3, 4)[x[:, 0].long()],
    "value at an index": lambda x: x.__setitem__(x[0].long(), torch.zeros(4, 4)),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_refused(cuda: PretendCuda, name: str) -> None:
    with pytest.raises(DeviceError, match=r"^test_pretend\.py:\d+: "):
        MIXED[name](made())


SYNCS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool((x > 3).any()),
    "index": lambda x: range(x[0, 0].long()),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy_": lambda x: torch.zeros(3, 4).copy_(x),
    "mask": lambda x: x[x > 3],
    "masked values": lambda x: x.__setitem__(x > 3, x[x > 3][:]),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 3),
    "unique": lambda x: x.unique(),
    "torch.unique": torch.unique,
    "repeats": lambda x: x.repeat_interleave(x[:, 0].long(), 0),
    "equal": lambda x: torch.equal(x, x),
    "print": lambda x: f"{x}",
    "synchronize": lambda x: torch.cuda.synchronize(),
    "event": lambda x: torch.cuda.Stream().record_event().synchronize(),
}


@pytest.mark.parametrize("name", SYNCS)
def test_what_makes_the_host_wait_is_counted(cuda: PretendCuda, name: str) -> None:
    x = made()
    SYNCS[name](x)
    assert cuda.syncs.total() == (2 if name == "masked values" else 1)
    assert {line.partition(":")[0] for line in cuda.syncs} == {"test_pretend.py"}
    assert cuda.downloads.total() == (name in ("cpu", "to", "copy_"))


UPLOADS: dict[str, Callable[[torch.Tensor], object]] = {
    "to": lambda x: torch.ones(2).to("cuda"),
    "to one like": lambda x: torch.ones(2).to(x),
    "not pinned": lambda x: torch.ones(2).to("cuda", non_blocking=True),
    "copy_": lambda x: x.copy_(torch.ones(3, 4)),
    "tensor": lambda x: torch.tensor([1, 2], device="cuda"),
    "tensor index": lambda x: x[torch.tensor([0, 1])],
    "list index": lambda x: x[[0, 1]],
    "array index": lambda x: x[np.array([0, 1])],
    "slice": lambda x: x[:2].__setitem__(0, torch.ones(4)),
}
NEITHER: dict[str, Callable[[torch.Tensor], object]] = {
    "number": lambda x: x * 2 + torch.tensor(1.0),
    "fill": lambda x: x.__setitem__(x > 3, 0.0),
    "index": lambda x: x[x[:, 0].long().clamp(max=1)],
    "cast": lambda x: x.to(torch.bfloat16).to("cuda"),
    "shape": lambda x: (x.shape, len(x), x.dtype, x.stride()),
}


@pytest.mark.parametrize("name", [*UPLOADS, *NEITHER])
def test_uploads_are_counted(cuda: PretendCuda, name: str) -> None:
    {**UPLOADS, **NEITHER}[name](made())
    assert cuda.uploads.total() == cuda.blocking.total() == (name in UPLOADS)
    assert not cuda.syncs + cuda.downloads


def test_pinned_copies_land_when_they_are_waited_for(cuda: PretendCuda) -> None:
    staged, result = pinned(1, 2, 3), pinned(0, 0, 0)
    numbers = torch.zeros(3, dtype=torch.int32, device="cuda")
    numbers.copy_(staged, non_blocking=True)
    result.copy_(numbers.mul_(2), non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    numbers.zero_()
    assert result.tolist() != [2, 4, 6], "read too early"
    done.synchronize()
    assert result.tolist() == [2, 4, 6]
    assert (cuda.uploads.total(), cuda.downloads.total(), cuda.blocking.total()) == (1, 1, 0)
    assert cuda.syncs.total() == 1


def test_an_event_is_of_its_own_stream(cuda: PretendCuda) -> None:
    """Unless that waited for the other."""
    result, side, done = pinned(0), torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        result.copy_(torch.ones(1, dtype=torch.int32, device="cuda"), non_blocking=True)
    done.record()
    done.synchronize()
    assert result.item() != 1
    torch.cuda.current_stream().wait_stream(side)
    done.record()
    done.synchronize()
    assert result.item() == 1


def test_staging_must_not_be_written_on_early(cuda: PretendCuda) -> None:
    staged = pinned(1, 2)
    staged.to("cuda", non_blocking=True)
    staged.numpy()[0] = 5
    with pytest.raises(DeviceError, match="before its upload"):
        torch.cuda.synchronize()


def test_graphs_repeat_what_was_captured(cuda: PretendCuda) -> None:
    """On the memory they were given; numbers of Python stay what they were, pinned copies read what is there now."""
    staged, numbers, factor = pinned(1, 2), torch.zeros(2, dtype=torch.int32, device="cuda"), 3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        numbers.copy_(staged, non_blocking=True)
        view = (numbers * factor)[1:]
        total = view + numbers[:1]
    torch.cuda.synchronize()
    staged.numpy()[:], factor = (5, 7), 9
    graph.replay()
    assert total.tolist() == [7 * 3 + 5]
    assert cuda.replays.total() == 1


@pytest.mark.parametrize("name", ["item", "mask", "cpu", "tensor", "event"])
def test_a_graph_takes_no_reads(cuda: PretendCuda, name: str) -> None:
    x = made()
    with pytest.raises(DeviceError, match="while a graph is captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        {**SYNCS, **UPLOADS}[name](x)
