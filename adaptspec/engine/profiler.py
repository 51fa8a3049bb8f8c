"""Measuring what passes cost on this machine, in a few seconds, once per machine and model pair.

The result is kept in the user's cache directory, under a name made of the models' fingerprints and data types, the
processor or GPU, the thread count, and what was measured.
"""

from __future__ import annotations

import hashlib
import logging
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.drafting.drafter import Drafter, ModelDrafter
from adaptspec.engine.cost_files import NO_FOLDER, costs_folder, read_cost_file, write_cost_file
from adaptspec.engine.device_laps import DeviceLaps, device_laps, device_name, on_device, per_cached_token
from adaptspec.engine.profiler_rounds import CONTEXT, Extent, Piece, ProfiledRounds, clear, fill, packed_rows
from adaptspec.errors import ConfigError
from adaptspec.models.runner import Runner

_log = logging.getLogger(__name__)
_WIDEST_WARM = 9
# Pieces that take less than this are empty.
_NOTHING = 1e-5
_CELL_SECONDS, _CELL_MOST, _CELL_LEAST = 0.06, 25, 3
# All measuring takes about so long, however slow the model is: it measures fewer sizes then.
_BUDGET_SECONDS = 3.0
# Where a long context takes too long to read: share of a one-token pass that attending to a cached token takes. Reading
# the cache takes as long as reading as many weights.
_ATTENDING = 2e-4
# A quiet machine repeats itself; where the median of a cell is this far above its minimum, somebody else computes too.
_BUSY = 1.5
# A check of a cached table takes so many seconds. It, and cells of a new one, may be this many times off: two busy
# neighbours make passes 1.3 to 1.5 times as long, and what is decided does not change much before.
_CHECK_SECONDS, _AGREES = 0.3, 1.6
# Of what a step takes on average, each one takes this much at least.
_LEAST_STEP = 0.25
# Threads wait for each other at every product: one whose core another program has holds all of them up. With two busy
# processes on two cores a token took 50 ms with two threads, and 4 with one.
_FEWER = "; if it stays busy, one thread may be many times as fast (--threads 1)"
# Raised whenever passes, or how they are timed, have changed: tables in caches are then of no use.
_MEASURING = 5
Progress = Callable[[str], None]  # called with what is done next
Timer = Callable[[], float]  # seconds that passes are timed by


def no_progress(_: str) -> None:
    """Progress that is not shown."""


def profiled_costs(
    target: Runner,
    drafters: Sequence[Drafter],
    max_rows: int,
    progress: Progress = no_progress,
    timer: Timer = time.perf_counter,
) -> CostModel:
    """The cost model of these models on this machine: from the cache if a few laps agree with it, else measured now."""
    path = cost_path(target, drafters, max_rows)
    if path is None:
        return measured_costs(target, drafters, max_rows, progress, timer)
    try:
        file = read_cost_file(path)
    except FileNotFoundError:
        return measured_costs(target, drafters, max_rows, progress, timer)
    except (OSError, ValueError, ConfigError) as error:
        _log.warning("the cached cost table %s cannot be used (%s); measuring again", path, error)
        return measured_costs(target, drafters, max_rows, progress, timer)
    progress("checking cached costs")
    origin = file.origin(datetime.now(timezone.utc))
    off = max(contradiction(file.profile), disagreement(file.profile, target, drafters, timer))
    if off > _AGREES:
        _log.warning("costs %s do not fit (%.1f x off in a few laps now); measuring again", origin, off)
        return measured_costs(target, drafters, max_rows, progress, timer)
    costs = CostModel(file.profile)
    costs.origin, costs.measured = f"{origin}; a few laps now agree", file.measured.timestamp()
    return costs


def measured_costs(
    target: Runner,
    drafters: Sequence[Drafter],
    max_rows: int,
    progress: Progress = no_progress,
    timer: Timer = time.perf_counter,
) -> CostModel:
    """The same measured now, whatever is in the cache, and put there unless the machine was busy."""
    path = cost_path(target, drafters, max_rows)
    stopwatch = Stopwatch(target.device, timer=timer)
    found = measure(target, drafters, max_rows, stopwatch, progress)
    costs, now = CostModel(found.plausible()), datetime.now(timezone.utc)
    costs.measured, costs.origin = now.timestamp(), "measured now"
    if stopwatch.disturbance > _BUSY or contradiction(found) > _AGREES:
        costs.origin += " on a busy machine: weakly believed, and not kept"
        _log.warning(
            "the machine was busy while costs were measured (medians %.1f x the fastest, %.1f x off between cells): "
            "measured rounds correct them, and they are measured again at the next start%s",
            stopwatch.disturbance,
            contradiction(found),
            _FEWER if target.device.type == "cpu" and torch.get_num_threads() > 1 else "",
        )
        return costs
    if path is None:
        _log.warning("%s: they are measured at every start", NO_FOLDER)
        return costs
    about = {
        "device": device_name(target),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "models": [f"{model.info.name} ({model.info.dtype})" for model in _models(target, drafters)],
        "max_rows": max_rows,
    }
    try:
        write_cost_file(path, costs.profile, about, now)
    except OSError as error:
        _log.warning("the cost table cannot be cached at %s (%s); it is measured again at every start", path, error)
    return costs


def contradiction(profile: CostProfile) -> float:
    """The largest ratio between a timed pass and the cost model of all of them; 1 where they agree."""
    model = CostModel(profile)
    pairs = [
        (seconds, model.verify_seconds(rows, rows * tokens))
        for rows, line in zip(profile.rows, profile.verify, strict=True)
        for tokens, seconds in zip(profile.tokens, line, strict=True)
    ]
    return max(max(one / other, other / one) for one, other in pairs)


def disagreement(
    profile: CostProfile, target: Runner, drafters: Sequence[Drafter], timer: Timer = time.perf_counter
) -> float:
    """How many times off a profile is from rounds of one row, timed for a moment."""
    extent, models = Extent.of(target, 1), [one for one in drafters if isinstance(one, ModelDrafter)]
    own = Extent.of(models[0].runner, 1) if models else extent
    stopwatch = Stopwatch(target.device, _CHECK_SECONDS, timer)
    clocks = on_device(target, models, 1, max(extent.widths)) or stopwatch, stopwatch
    seen, laps = _laps(target, models[0] if models else None, extent, own, clocks)
    lap = laps[0]
    pairs = list(zip(lap.verify, profile.verify[0], strict=False))  # fewer are measured than are known
    cost = profile.drafters.get(models[0].name, DrafterCost()) if models else DrafterCost()
    depth = min(seen.widths[-1], own.widths[-1]) - 1
    if cost.step_seconds and depth:
        pairs.append((lap.draft[-1], cost.start_seconds + depth * cost.step_seconds[0]))
    return max(max(now / then, then / now) for now, then in pairs)


def warm_up(target: Runner, drafters: Sequence[Drafter]) -> None:
    """Run every width of pass that drafting and verifying will soon ask for, once; all rows must be free.

    A first pass of its kind takes several times as long as the next. Where costs come from the cache nothing has run
    yet, and what the first rounds measure would speak against speculation.
    """
    for runner in (target, *(d.runner for d in drafters if isinstance(d, ModelDrafter))):
        context = max(1, min(CONTEXT, runner.info.context // 2))
        widest = min(_WIDEST_WARM, runner.info.context - context)
        if not runner.reserve(0, context + widest):
            continue
        runner.forward(packed_rows(runner, 1, context, wanted=1))
        for width in range(1, widest + 1):
            runner.forward(packed_rows(runner, 1, width, wanted=width))
            runner.truncate(0, context)
        runner.free(0)


class Stopwatch:
    """Times a piece of work: its fastest run, since whatever else the machine does can only add to it.

    `budget` seconds are shared by everything timed, of which `left` are left; once spent, each further piece runs just
    once more.
    """

    def __init__(self, device: torch.device, budget: float = _BUDGET_SECONDS, timer: Timer = time.perf_counter) -> None:
        self._device = device
        self._timer = timer
        self.left = budget
        self._spread: list[float] = []

    @property
    def disturbance(self) -> float:
        """How far, typically, the median run lies above the fastest: 1 on a quiet machine."""
        return statistics.median(self._spread) if self._spread else 1.0

    def seconds(self, run: Callable[[], None]) -> float:
        """The fastest of several runs, after one to warm up."""
        times: list[float] = [self.time(run)]
        fresh: list[float] = []
        while self.left > 0 and (len(fresh) < _CELL_LEAST or (sum(fresh) < _CELL_SECONDS and len(fresh) < _CELL_MOST)):
            fresh.append(self.time(run))
        if len(fresh) >= _CELL_LEAST:
            self._spread.append(statistics.median(fresh) / min(fresh))
        return min(fresh or times)

    def medians(self, pieces: Sequence[Callable[[], None]], budget: float = math.inf) -> list[float]:
        """The median of each piece, all of them run in turn, over and over, after one turn to warm up, for no more than
        about `budget` seconds.

        Taking turns, what else the machine does hits all alike. A median, not the fastest: pieces disturb each other
        in service, too.
        """
        first = [self.time(piece) for piece in pieces]
        turns: list[list[float]] = []
        most = min(_CELL_SECONDS * len(pieces), budget)
        while self.left > sum(first) and (
            len(turns) < _CELL_LEAST or (sum(map(sum, turns)) < most and len(turns) < _CELL_MOST)
        ):
            turns.append([self.time(piece) for piece in pieces])
        columns = list(zip(*turns, strict=True)) or [(seconds,) for seconds in first]
        middle = [statistics.median(column) for column in columns]
        if len(turns) >= _CELL_LEAST:
            self._spread += [m / min(column) for m, column in zip(middle, columns, strict=True) if m > _NOTHING]
        return middle

    def time(self, run: Callable[[], object]) -> float:
        """Run it once: its seconds, which are taken off those that are left."""
        before = self.left
        with self.running():
            run()
        return before - self.left

    @contextmanager
    def running(self) -> Iterator[None]:
        """Takes what is done within off the seconds that are left."""
        started = self._timer()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.left -= self._timer() - started


def measure(
    target: Runner,
    drafters: Sequence[Drafter],
    max_rows: int,
    stopwatch: Stopwatch,
    progress: Progress = no_progress,
) -> CostProfile:
    """Time rounds of all sizes and depths, with the models taking turns; the runners' rows are left free.

    A slow model is timed at fewer sizes, always the smallest ones: a cost model extrapolates to the others.
    """
    extent = Extent.of(target, max_rows)
    models = [drafter for drafter in drafters if isinstance(drafter, ModelDrafter)]
    room = {model.name: Extent.of(model.runner, max_rows) for model in models}
    clock = on_device(target, models, max(extent.rows), max(extent.widths)) or stopwatch
    clocks = clock, stopwatch
    steps = _Steps(progress, max(1, len(models)) * len(extent.rows) * _pieces_per_count(extent))
    laps = {model.name: _laps(target, model, extent, room[model.name], clocks, steps=steps) for model in models}
    seen, alternating = next(iter(laps.values())) if laps else _laps(target, None, extent, extent, clocks, steps=steps)
    verify = tuple(tuple(lap.verify) for lap in alternating)
    return CostProfile(
        rows=seen.rows,
        tokens=seen.widths,
        verify=verify,
        drafters={m.name: _drafter_cost(m.runner, room[m.name], *laps[m.name], clocks) for m in models},
        per_cached_token=_per_cached_token(target, seen, clocks, verify[0]),
        overhead=0.1 * verify[0][0],
    )


def middle(profiles: Sequence[CostProfile]) -> CostProfile:
    """Cell by cell the median of several profiles of the same models, at the sizes that are in all of them."""
    first = profiles[0]
    rows = min((profile.rows for profile in profiles), key=len)
    tokens = min((profile.tokens for profile in profiles), key=len)

    def of(read: Callable[[CostProfile], Sequence[float]]) -> tuple[float, ...]:
        return tuple(statistics.median(cell) for cell in zip(*map(read, profiles), strict=False))

    def line(i: int) -> tuple[float, ...]:
        return of(lambda profile: profile.verify[i])

    def drafter(name: str, known: DrafterCost) -> DrafterCost:
        steps = of(lambda profile: profile.drafters[name].step_seconds)
        rest = of(lambda profile: (profile.drafters[name].catch_up_per_token, profile.drafters[name].start_seconds))
        return replace(
            known,
            rows=known.rows[: len(steps)] if steps else known.rows,
            step_seconds=steps,
            catch_up_per_token=rest[0],
            start_seconds=rest[1],
        )

    return CostProfile(
        rows,
        tokens,
        tuple(line(i) for i in range(len(rows))),
        {name: drafter(name, known) for name, known in first.drafters.items()},
        *of(lambda profile: (profile.per_cached_token, profile.overhead)),
    )


def processor() -> str:
    """The processor's model name, as far as the system tells it."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        named = None
    return named[1] if named else platform.processor() or platform.machine()


@dataclass(frozen=True)
class _Laps:
    """Seconds of rounds of one number of rows, by width: what drafting takes (0 for a single token) and verifying."""

    draft: Sequence[float]
    verify: Sequence[float]


_Clocks = tuple[Stopwatch | DeviceLaps, Stopwatch]


class _Steps:
    """Counts pieces of work by their first runs, and reports the count."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._done = 0

    def counted(self, piece: Piece) -> Piece:
        """The same piece; its first run is a step."""
        fresh = True

        def run() -> None:
            nonlocal fresh
            if fresh:
                fresh = False
                self._done += 1
                self._progress(f"measuring costs ({self._done} of {self._total})")
            piece()

        return run


def _pieces_per_count(extent: Extent) -> int:
    """Pieces that `_laps` times for one number of rows."""
    return 2 * (1 + len(extent.widths))


def _laps(
    target: Runner,
    draft: ModelDrafter | None,
    extent: Extent,
    own: Extent,
    clocks: _Clocks,
    *,
    steps: _Steps | None = None,
) -> tuple[Extent, list[_Laps]]:
    """What was measured of `extent`, as far as there is time, and for each number of rows its laps.

    Where the draft model's cache (`own`) has no room for as many rows, the target goes alone. Drafts that are made
    beside a device's rounds are timed by the second clock.
    """
    (clock, stopwatch), table = clocks, list[_Laps]()
    if isinstance(clock, DeviceLaps):
        table = [_Laps(*one) for one in device_laps(clock, (extent.rows, extent.widths), extent.context, own.rows)]
        if draft is None or any(table[0].draft):
            return extent, table
        seen, drafts = _laps(target, draft, extent, own, (stopwatch, stopwatch))
        together = zip(drafts, table, strict=False)
        return seen, [_Laps(its.draft, mine.verify[: len(seen.widths)]) for its, mine in together]
    extent = _affordable(target, extent, stopwatch)
    most = stopwatch.left
    for place, count in enumerate(extent.rows):
        with stopwatch.running():
            rounds = ProfiledRounds(target, count, extent.context, max(extent.widths))
            if draft is not None and count in own.rows:
                rounds.join(draft, min(own.context, extent.context), max(own.widths))
        # A round without drafts follows its like.
        pieces = rounds.pieces((1, *extent.widths))
        if steps is not None:
            pieces = [steps.counted(piece) for piece in pieces]
        seconds = clock.medians(pieces, most / (len(extent.rows) + 1))
        rounds.close()
        table.append(_Laps(seconds[2::2], seconds[3::2]))
        # More rows take about as much longer. What is left also serves other measurements.
        longer = extent.rows[min(place + 1, len(extent.rows) - 1)] / count
        if longer * _turns(sum(seconds)) > stopwatch.left - most / 4:
            break
    return replace(extent, rows=extent.rows[: len(table)]), table


def _turns(seconds: float) -> float:
    """Seconds of measuring what takes so many: once to warm up, then as often as it takes for a median."""
    return (1 + _CELL_LEAST) * seconds


def _affordable(target: Runner, extent: Extent, stopwatch: Stopwatch) -> Extent:
    """The same, for a slow model fewer tokens per row, but at least two, and a short context: half of the time is for
    one row.
    """
    row = packed_rows(target, 1, 1, wanted=1)

    def run() -> None:
        target.reserve(0, 1)
        target.forward(row)
        target.free(0)

    stopwatch.time(run)  # to warm up
    seconds = stopwatch.time(run)
    tokens = stopwatch.left / 2 / max(seconds, _NOTHING)
    if extent.context + _turns(1 + sum(extent.widths)) <= tokens:
        return extent
    widths = [
        width for i, width in enumerate(extent.widths) if i < 2 or 2 * (1 + sum(extent.widths[: i + 1])) <= tokens
    ]
    return replace(extent, widths=tuple(widths), context=max(1, min(extent.context, int(tokens / 4))))


def _per_cached_token(runner: Runner, extent: Extent, clocks: _Clocks, one_row: Sequence[float]) -> float:
    """`one_row`: what passes of one row take, by their widths."""
    clock = clocks[0]
    if isinstance(clock, DeviceLaps):
        return per_cached_token(clock, extent.rows, extent.context)
    if extent.long_context <= 2 * extent.context:
        return 0.0
    per_token = one_row[len(extent.widths) - 1] / extent.widths[-1]
    if extent.long_context * per_token > clock.left:
        return _ATTENDING * one_row[0]
    seconds = []
    for context in (extent.context, extent.long_context):
        fill(runner, 1, context, 1)
        seconds.append(_time_pass(runner, 1, 1, context, clock))
        clear(runner, 1)
    return max(0.0, seconds[1] - seconds[0]) / (extent.long_context - extent.context)


def _drafter_cost(runner: Runner, own: Extent, extent: Extent, laps: Sequence[_Laps], clocks: _Clocks) -> DrafterCost:
    """A step is what a token beyond the first takes; what the first takes beyond that begins the round.

    A device runs the steps that were planned for the deepest row over all rows: stopping early saves none of them.
    """
    deepest = max(own.widths) - 1
    depths = [min(width - 1, deepest) for width in extent.widths]
    if not max(depths):
        return DrafterCost()  # no room to draft in
    rows = tuple(count for count in extent.rows if count in own.rows)
    steps = [_step(depths, lap.draft) for lap in laps[: len(rows)]]
    first = laps[0].draft[1]
    # Reading takes less time per token than drafting does.
    count = max(1, min(own.catch_up, int(clocks[1].left / 4 / max(steps[0], _NOTHING))))

    def catch_up() -> None:
        runner.free(0)
        fill(runner, 1, count, 0)

    per_token = max(0.0, clocks[1].seconds(catch_up) - steps[0]) / count
    runner.free(0)
    together = isinstance(clocks[0], DeviceLaps)
    return DrafterCost(rows, tuple(steps), per_token, max(0.0, first - steps[0]), together=together)


def _step(depths: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds of one more step, from drafts of these depths; where all are of one depth, of that draft's steps."""
    each = seconds[-1] / depths[-1]
    if depths[-1] == depths[1]:
        return each
    # Noise must not make a step free.
    return max((seconds[-1] - seconds[1]) / (depths[-1] - depths[1]), _LEAST_STEP * each)


def _time_pass(runner: Runner, rows: int, width: int, context: int, stopwatch: Stopwatch) -> float:
    packed = packed_rows(runner, rows, width, wanted=width)

    def run() -> None:
        # Judging a greedy draft takes the argmax and brings it to the host: part of what a verify costs.
        runner.forward(packed).logits.argmax(dim=-1).cpu()
        for row in range(rows):
            runner.truncate(row, context)

    return stopwatch.seconds(run)


def cost_path(target: Runner, drafters: Sequence[Drafter], max_rows: int, chip: str | None = None) -> Path | None:
    """Where the cost table of these models is cached on this machine, if anywhere; all rows must be free.

    `chip` is the name of the processor, that of this machine by default.
    """
    devices = " ".join(dict.fromkeys(map(device_name, _models(target, drafters))))
    facts = [str(_MEASURING), devices, chip or processor(), str(torch.get_num_threads()), torch.__version__]
    facts += [f"{m.info.fingerprint} {m.info.dtype} {Extent.of(m, max_rows)}" for m in _models(target, drafters)]
    facts += ["strict"] * target.info.strict + ["eager"] * target.info.eager
    key = hashlib.blake2b("\n".join(facts).encode(), digest_size=12)
    folder = costs_folder()
    return None if folder is None else folder / f"{key.hexdigest()}.json"


def _models(target: Runner, drafters: Sequence[Drafter]) -> list[Runner]:
    return [target, *(d.runner for d in drafters if isinstance(d, ModelDrafter))]
