"""What rounds truly cost on a simulated machine: tables that ship, files, and profiles that an engine measured.

The policies under test never see these costs: they are given the profile that a profiler would have measured
(`MachineCosts.profile`) and correct it by the rounds they see, as in the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adaptspec.control.cost import MOST_BYTES, CostProfile, CostTable, DrafterCost
from adaptspec.drafters import DRAFTERS, Kind, kind_of
from adaptspec.errors import ConfigError
from adaptspec.files import read_text

# What the profiler of the engine measures.
_ROWS, _WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8)
# What model-free drafters take for each row that they draft for: a measured profile has no entry for them. Counts take
# 12 to 20 us for each token of a draft, of which there are three or four.
_ROW_SECONDS = {"counts": 6e-5}
_NGRAM_SECONDS = 1e-5
_SHIPPED = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Curve:
    """Seconds over a count: linear between the points, and beyond them with the slope of the nearest two."""

    counts: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, count: float) -> float:
        xs, ys = self.counts, self.seconds
        if xs[0] <= count <= xs[-1]:
            return float(np.interp(count, xs, ys))
        i = 0 if count < xs[0] else len(xs) - 2
        return ys[i] + (count - xs[i]) * (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])


@dataclass(frozen=True)
class DraftCosts:
    """One drafter. `step` is over active rows (None: it runs no model); the rest are seconds per token or row.
    `per_cached_token` is for each token that the active rows of a step attend to, `per_row` for each drafting row of a
    round, whatever its depth; `start` is what the first step of a round takes beyond the others.
    """

    step: Curve | None = None
    catch_up_per_token: float = 0.0
    per_cached_token: float = 0.0
    per_row: float = 0.0
    start: float = 0.0


class MachineCosts:
    """T of a round = overhead + drafting + verify, in seconds. Answers are remembered: rounds repeat themselves."""

    def __init__(
        self,
        name: str,
        verify: Callable[[int, float], float],
        drafters: Mapping[str, DraftCosts],
        *,
        overhead: float = 0.0,
        per_cached_token: float = 0.0,
        profile: CostProfile | None = None,
    ) -> None:
        """`verify(rows, tokens)`: seconds of the target's pass over an empty cache. `profile` is what a profiler would
        find (default: read off these costs).
        """
        self.name = name
        self.drafters = dict(drafters)
        self.overhead = overhead
        self.per_cached_token = per_cached_token
        self._verify = cache(verify)
        self._step = cache(self._step_seconds)
        self._profile = profile

    def verify_seconds(self, rows: int, tokens: int, cached: float) -> float:
        """The target's pass over `tokens` packed tokens of `rows` rows that attend to `cached` tokens in all."""
        return self._verify(rows, tokens) + self.per_cached_token * cached

    def step_seconds(self, drafter: str, rows: int, cached: float) -> float:
        """One draft step of `rows` rows; 0 for a drafter that runs no model."""
        own = self.drafters[drafter]
        return self._step(drafter, rows) + own.per_cached_token * cached

    def _step_seconds(self, drafter: str, rows: int) -> float:
        step = self.drafters[drafter].step
        return step.at(rows) if step is not None and rows else 0.0

    def profile(self) -> CostProfile:
        if self._profile is not None:
            return self._profile
        return CostProfile(
            rows=_ROWS,
            tokens=_WIDTHS,
            verify=tuple(tuple(self._verify(rows, rows * width) for width in _WIDTHS) for rows in _ROWS),
            drafters={
                name: DrafterCost(_ROWS, tuple(own.step.at(rows) for rows in _ROWS), own.catch_up_per_token, own.start)
                for name, own in self.drafters.items()
                if own.step is not None
            },
            per_cached_token=self.per_cached_token,
            overhead=self.overhead,
        )


def shipped_costs() -> list[str]:
    """Names of the cost tables that ship."""
    return sorted(path.stem for path in _SHIPPED.glob("*.json"))


def load_costs(name: str) -> MachineCosts:
    """A cost table: the name of one that ships, or a file (its own kind, or a profile that an engine measured). Raises
    ConfigError: there is no such table, or it cannot be used.
    """
    path = _SHIPPED / f"{name}.json" if name in shipped_costs() else Path(name)
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(shipped_costs())
        raise ConfigError(f"no cost table {name!r} ({error}); shipped are: {known}; or give a JSON file") from error
    return parse_costs(text, path.stem)


def parse_costs(text: str, name: str) -> MachineCosts:
    """The same from JSON text. Raises ConfigError: it is not a cost table."""
    try:
        body = json.loads(text)
        if "version" in body:
            return of_profile(name, CostTable.from_json(text).profile)
        drafters = {own: _draft_costs(fields) for own, fields in body["drafters"].items()}
        return MachineCosts(
            str(body["machine"]),
            packed(_verify_curve(body["verify"])),
            drafters,
            overhead=float(body["overhead"]),
            per_cached_token=float(body["per_cached_token"]),
        )
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{name}: not a cost table ({type(error).__name__}: {error})") from error


def of_profile(name: str, profile: CostProfile) -> MachineCosts:
    """The machine that an engine's profile describes; n-gram drafters cost a round number there."""
    drafters = {
        own: DraftCosts(
            _curve(cost.rows, cost.step_seconds) if cost.step_seconds else None,
            cost.catch_up_per_token,
            start=cost.start_seconds - (cost.step_seconds[0] if cost.reads_along else 0.0),
        )
        for own, cost in profile.drafters.items()
    }
    free = [own for own in DRAFTERS if kind_of(own) is Kind.MODEL_FREE]
    ngrams = {own: DraftCosts(per_row=_ROW_SECONDS.get(own, _NGRAM_SECONDS)) for own in free}
    return MachineCosts(
        name,
        CostTable(profile).verify_seconds,
        {**ngrams, **drafters},
        overhead=profile.overhead,
        per_cached_token=profile.per_cached_token,
        profile=profile,
    )


def packed(curve: Curve) -> Callable[[int, float], float]:
    """A pass whose cost depends on its packed tokens alone, however many rows they belong to."""
    return lambda _rows, tokens: curve.at(tokens)


def of_table(name: str, table: CostTable) -> MachineCosts:
    """The machine as a table has learned it by now, in the profile that a profiler would have measured of it."""
    before = table.profile
    more = table.overhead_seconds(1, drafting=True) - table.overhead_seconds(1, drafting=False)
    drafters = {
        own: replace(
            cost,
            step_seconds=tuple(table.draft_step_seconds(own, rows) for rows in cost.rows),
            catch_up_per_token=table.catch_up_seconds(own, 1.0),
            start_seconds=table.start_seconds(own, 1) + more,
            reads_along=False,  # what it takes off a first step is in these
        )
        for own, cost in before.drafters.items()
        if cost.step_seconds
    }
    profile = replace(
        before,
        verify=tuple(
            tuple(table.verify_seconds(rows, rows * width) for width in before.tokens) for rows in before.rows
        ),
        drafters=drafters,
        per_cached_token=table.verify_seconds(1, 1, 1.0) - table.verify_seconds(1, 1),
        overhead=table.overhead_seconds(1, drafting=False),
    )
    return of_profile(name, profile)


def _verify_curve(fields: Mapping[str, Any]) -> Curve:
    if "base" in fields:
        base, slope = float(fields["base"]), float(fields["per_token"])
        return _curve((1, 2), (base + slope, base + 2 * slope))
    return _curve(fields["tokens"], fields["seconds"])


def _draft_costs(fields: Mapping[str, Any]) -> DraftCosts:
    step = _curve(fields["rows"], fields["step_seconds"]) if "step_seconds" in fields else None
    rest = {key: float(value) for key, value in fields.items() if key not in ("rows", "step_seconds")}
    return DraftCosts(step, **rest)


def _curve(counts: Any, seconds: Any) -> Curve:
    xs, ys = tuple(float(x) for x in counts), tuple(float(y) for y in seconds)
    if len(xs) == 1:
        xs, ys = (xs[0], xs[0] + 1.0), (ys[0], ys[0])
    ascending = all(b > a for a, b in pairwise(xs))
    if len(xs) != len(ys) or not ascending or not all(0.0 < y < float("inf") for y in ys):
        raise ValueError("counts must ascend, and each needs a positive time")
    return Curve(xs, ys)
