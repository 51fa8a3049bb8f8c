"""Measuring what passes cost on this machine, in a few seconds, once per machine and model pair.

The result is kept in the user's cache directory, under a name made of the models' fingerprints and
data types, the processor or GPU, the thread count, and what was measured.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adaptspec.control.cost import CostProfile, CostTable, DrafterCost
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.errors import ConfigError
from adaptspec.files import write_file
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import certainty

_log = logging.getLogger(__name__)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_WIDTHS = (1, 2, 4, 8)
_CONTEXT, _LONG_CONTEXT, _CATCH_UP = 64, 448, 128
_WIDEST_WARM = 9
_CELL_SECONDS, _CELL_MOST, _CELL_LEAST = 0.06, 25, 3
# A quiet machine repeats itself; where the median of a cell is this far above its minimum, somebody else computes too.
_BUSY = 1.5


def profiled_costs(target: Runner, drafters: Sequence[Drafter], max_rows: int) -> CostTable:
    """The cost table of these models here: from the cache, or measured now and cached."""
    path = _cache_path(target, drafters, max_rows)
    try:
        return CostTable.from_json(path.read_text())
    except FileNotFoundError:
        pass
    except (OSError, ConfigError) as error:
        _log.warning("the cached cost table %s cannot be used (%s); measuring again", path, error)
    stopwatch = Stopwatch(target.device)
    costs = CostTable(measure(target, drafters, max_rows, stopwatch))
    if stopwatch.disturbance > _BUSY:
        _log.warning("the machine was busy while costs were measured; they are measured again at the next start")
        return costs
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, costs.to_json().encode(), alone=False)
    except OSError as error:
        _log.warning("the cost table cannot be cached at %s (%s); it is measured again at every start", path, error)
    return costs


def warm_up(target: Runner, drafters: Sequence[Drafter]) -> None:
    """Run every width of pass that drafting and verifying will soon ask for, once; all rows must be free.

    A first pass of its kind takes several times as long as the next. Where costs come from the cache nothing has run
    yet, and what the first rounds measure would speak against speculation.
    """
    for runner in (target, *(d.runner for d in drafters if isinstance(d, DraftModelDrafter))):
        context = max(1, min(_CONTEXT, runner.info.context // 2))
        widest = min(_WIDEST_WARM, runner.info.context - context)
        if not runner.reserve(0, context + widest):
            continue
        runner.forward(_packed(runner, 1, context, wanted=1))
        for width in range(1, widest + 1):
            logits = runner.forward(_packed(runner, 1, width, wanted=width))
            certainty(logits, logits.argmax(dim=-1))
            runner.truncate(0, context)
        runner.free(0)


class Stopwatch:
    """Times a piece of work: its fastest run, since whatever else the machine does can only add to it.

    `budget` seconds are shared by everything timed; once spent, each further piece runs just once more.
    """

    def __init__(self, device: torch.device, budget: float = 5.0) -> None:
        self._device = device
        self._left = budget
        self._spread: list[float] = []

    @property
    def disturbance(self) -> float:
        """How far, typically, the median run lies above the fastest: 1 on a quiet machine."""
        return statistics.median(self._spread) if self._spread else 1.0

    def seconds(self, run: Callable[[], None]) -> float:
        """The fastest of several runs, after one to warm up."""
        times: list[float] = [self._time(run)]
        fresh: list[float] = []
        while self._left > 0 and (len(fresh) < _CELL_LEAST or (sum(fresh) < _CELL_SECONDS and len(fresh) < _CELL_MOST)):
            fresh.append(self._time(run))
        if len(fresh) >= _CELL_LEAST:
            self._spread.append(statistics.median(fresh) / min(fresh))
        return min(fresh or times)

    def _time(self, run: Callable[[], None]) -> float:
        started = time.perf_counter()
        run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        taken = time.perf_counter() - started
        self._left -= taken
        return taken


def measure(target: Runner, drafters: Sequence[Drafter], max_rows: int, stopwatch: Stopwatch) -> CostProfile:
    """Time verify passes and draft steps over rows and widths; the runners' rows are left free."""
    extent = Extent.of(target, max_rows)
    verify = tuple(tuple(line) for line in _grid(target, extent, extent.widths, stopwatch))
    models = [drafter for drafter in drafters if isinstance(drafter, DraftModelDrafter)]
    return CostProfile(
        rows=extent.rows,
        tokens=extent.widths,
        verify=verify,
        drafters={d.name: _drafter_cost(d.runner, Extent.of(d.runner, max_rows), stopwatch) for d in models},
        per_cached_token=_per_cached_token(target, extent, stopwatch),
        overhead=0.1 * verify[0][0],
    )


@dataclass(frozen=True)
class Extent:
    """What a runner has room to be measured at: numbers of rows, tokens per row, and what each row holds before."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    context: int
    long_context: int
    catch_up: int

    @classmethod
    def of(cls, runner: Runner, max_rows: int) -> Extent:
        """The most that its context and its cache allow; all rows must be free, and are free again.

        Raises:
            ConfigError: not even one short row fits.
        """
        most = runner.info.context
        context = max(1, min(_CONTEXT, most // 2))
        widths = tuple(width for width in _WIDTHS if context + width <= most)
        granted = _granted(runner, max_rows, context + max(widths, default=1))
        if not widths or not granted:
            raise ConfigError(f"{runner.info.name} has no room to measure one pass in; give it a longer context")
        rows = tuple(count for count in _ROWS if count <= granted)
        return cls(rows, widths, context, min(_LONG_CONTEXT, most - 1), min(_CATCH_UP, most // 2))


def processor() -> str:
    """The processor's model name, as far as the system tells it."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        named = None
    return named[1] if named else platform.processor() or platform.machine()


def _granted(runner: Runner, rows: int, length: int) -> int:
    """For how many rows of `length` tokens the cache has room."""
    count = 0
    while count < rows and runner.reserve(count, length):
        count += 1
    _clear(runner, count)
    return count


def _grid(runner: Runner, extent: Extent, widths: Sequence[int], stopwatch: Stopwatch) -> list[list[float]]:
    """Seconds for each number of rows and tokens per row, the rows holding a short context each."""
    _fill(runner, max(extent.rows), extent.context, max(widths))
    table = [[_time_pass(runner, count, width, extent.context, stopwatch) for width in widths] for count in extent.rows]
    _clear(runner, max(extent.rows))
    return table


def _per_cached_token(runner: Runner, extent: Extent, stopwatch: Stopwatch) -> float:
    if extent.long_context <= 2 * extent.context:
        return 0.0
    seconds = []
    for context in (extent.context, extent.long_context):
        _fill(runner, 1, context, 1)
        seconds.append(_time_pass(runner, 1, 1, context, stopwatch))
        _clear(runner, 1)
    return max(0.0, seconds[1] - seconds[0]) / (extent.long_context - extent.context)


def _drafter_cost(runner: Runner, extent: Extent, stopwatch: Stopwatch) -> DrafterCost:
    steps = tuple(line[0] for line in _grid(runner, extent, (1,), stopwatch))

    def catch_up() -> None:
        runner.free(0)
        _fill(runner, 1, extent.catch_up, 0)

    per_token = max(0.0, stopwatch.seconds(catch_up) - steps[0]) / extent.catch_up
    runner.free(0)
    return DrafterCost(extent.rows, steps, per_token)


def _time_pass(runner: Runner, rows: int, width: int, context: int, stopwatch: Stopwatch) -> float:
    packed = _packed(runner, rows, width, wanted=width)

    def run() -> None:
        # Judging a greedy draft takes the argmax and brings it to the host: part of what a verify costs.
        runner.forward(packed).argmax(dim=-1).cpu()
        for row in range(rows):
            runner.truncate(row, context)

    return stopwatch.seconds(run)


def _fill(runner: Runner, rows: int, context: int, width: int) -> None:
    """Read `context` tokens into each row, with room for `width` more."""
    for row in range(rows):
        if not runner.reserve(row, context + width):
            raise ConfigError(f"the cache has no room for {rows} rows of {context + width} tokens; use fewer rows")
    runner.forward(_packed(runner, rows, context, wanted=1))


def _clear(runner: Runner, rows: int) -> None:
    for row in range(rows):
        runner.free(row)


def _packed(runner: Runner, rows: int, count: int, wanted: int) -> Packed:
    tokens = np.arange(rows * count, dtype=np.int64) % min(97, runner.info.vocab_size)
    each = np.ones(rows, dtype=np.int64)
    return Packed(np.arange(rows, dtype=np.int64), count * each, tokens, wanted * each)


def _cache_path(target: Runner, drafters: Sequence[Drafter], max_rows: int) -> Path:
    models = [target, *(d.runner for d in drafters if isinstance(d, DraftModelDrafter))]
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else "cpu"
    facts = [device, processor(), str(torch.get_num_threads()), torch.__version__]
    facts += [f"{m.info.fingerprint} {m.info.dtype} {Extent.of(m, max_rows)}" for m in models]
    key = hashlib.blake2b("\n".join(facts).encode(), digest_size=12)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "adaptspec" / "costs" / f"{key.hexdigest()}.json"
