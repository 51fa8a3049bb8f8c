"""Machines: the true seconds of model passes, from tables that ship, files, profiles and learned cost tables.

A machine interpolates its measured table linearly. It has no formula in common with the cost model that policies learn,
and policies never read it: they start from `Machine.profile`, as an engine starts from its warm-up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import MAX_FILE_BYTES, CostProfile, DrafterCost
from adaptspec.drafters import DRAFTERS, Kind, kind_of
from adaptspec.errors import ConfigError
from adaptspec.files import read_text

# The points of the profile that an engine starts from.
_ROWS, _WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8)
# Seconds per drafting row of model-free drafters, which no profile has. Counts take 12 to 20 us per drafted token, and
# draft three or four.
_MODEL_FREE_SECONDS = {"counts": 6e-5}
_LOOKUP_SECONDS = 1e-5
_SHIPPED = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Curve:
    """Seconds over a count, linear between its points.

    Beyond the last point it goes on with the last slope, but never falls; before the first point it is constant. Raises
    ValueError: counts do not ascend, or a time is not positive.
    """

    counts: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(left < right for left, right in pairwise(self.counts))
        positive = all(0.0 < value < float("inf") for value in self.seconds)
        if not self.counts or len(self.counts) != len(self.seconds) or not ascending or not positive:
            raise ValueError("counts must ascend, and each needs a positive time")

    def at(self, count: float) -> float:
        """Seconds at this count."""
        seconds = float(np.interp(count, self.counts, self.seconds))
        if count <= self.counts[-1] or len(self.counts) == 1:
            return seconds
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.counts[-1] - self.counts[-2])
        return seconds + max(slope, 0.0) * (count - self.counts[-1])


@dataclass(frozen=True)
class Grid:
    """Seconds of passes over rows of equally many tokens, bilinear between its points.

    `lines[i]` is the curve over tokens per row for `rows[i]` rows. Beyond the points it goes on as `Curve` does.
    """

    rows: tuple[float, ...]
    lines: tuple[Curve, ...]

    def at(self, rows: int, tokens: int) -> float:
        """Seconds of a pass over `tokens` packed tokens of `rows` rows; one that only reads prompts has none."""
        rows = max(rows, 1)
        return Curve(self.rows, tuple(line.at(tokens / rows) for line in self.lines)).at(rows)


@dataclass(frozen=True)
class DraftTimes:
    """Seconds of one drafter.

    `step` is a draft step over its active rows; None: the drafter runs no model. `start` is the extra time of a round's
    first step, `per_row` is paid for each drafting row of a round, `per_cached_token` for each token that the rows of a
    step attend to. `together`: all planned steps run for all rows, whether or not a stop rule stops them (CUDA graphs).
    """

    step: Curve | None = None
    catch_up_per_token: float = 0.0
    per_cached_token: float = 0.0
    per_row: float = 0.0
    start: float = 0.0
    together: bool = False


class Machine:
    """Seconds of a round = overhead + drafting + verification. Times are remembered, as rounds repeat themselves."""

    def __init__(
        self,
        name: str,
        verify: Curve | Grid,
        drafters: Mapping[str, DraftTimes],
        *,
        overhead: float = 0.0,
        per_cached_token: float = 0.0,
        profile: CostProfile | None = None,
        simulated: bool = False,
        targets: Sequence[str] = (),
    ) -> None:
        """`verify` is the target's pass over an empty cache: a curve depends on the packed tokens alone. `profile` is
        the table that policies start from (default: read off these times). `simulated`: its times were not measured.
        `targets` are fingerprints of the models whose passes it times.
        """
        self.name = name
        self.verify = verify
        self.drafters = dict(drafters)
        self.overhead = overhead
        self.per_cached_token = per_cached_token
        self.simulated = simulated
        self.targets = tuple(targets)
        self._profile = profile
        self._pass = cache(self._pass_seconds)
        self._step = cache(self._step_seconds)

    @property
    def label(self) -> str:
        """The name for people."""
        return f"{self.name} (simulated)" if self.simulated else self.name

    def verify_seconds(self, rows: int, tokens: int, cached: float) -> float:
        """A pass of the target over `tokens` packed tokens of `rows` rows that attend to `cached` tokens in all."""
        return self._pass(rows, tokens) + self.per_cached_token * cached

    def step_seconds(self, drafter: str, rows: int, cached: float) -> float:
        """A draft step of `rows` rows that attend to `cached` tokens in all; 0 for a drafter that runs no model."""
        return self._step(drafter, rows) + self.drafters[drafter].per_cached_token * cached

    def profile(self) -> CostProfile:
        """The cost profile that policies start from on this machine."""
        if self._profile is not None:
            return self._profile
        return CostProfile(
            rows=_ROWS,
            tokens=_WIDTHS,
            verify=tuple(tuple(self._pass(rows, rows * width) for width in _WIDTHS) for rows in _ROWS),
            drafters={
                name: DrafterCost(
                    _ROWS,
                    tuple(times.step.at(rows) for rows in _ROWS),
                    times.catch_up_per_token,
                    times.start,
                    together=times.together,
                )
                for name, times in self.drafters.items()
                if times.step is not None
            },
            per_cached_token=self.per_cached_token,
            overhead=self.overhead,
        )

    def _pass_seconds(self, rows: int, tokens: int) -> float:
        return self.verify.at(tokens) if isinstance(self.verify, Curve) else self.verify.at(rows, tokens)

    def _step_seconds(self, drafter: str, rows: int) -> float:
        step = self.drafters[drafter].step
        return step.at(rows) if step is not None and rows else 0.0

    @classmethod
    def of_profile(cls, name: str, profile: CostProfile, targets: Sequence[str] = ()) -> Machine:
        """The machine that an engine's profile describes. Raises ValueError: the profile holds no positive times."""
        models = {drafter: _profiled(cost) for drafter, cost in profile.drafters.items()}
        model_free = [drafter for drafter in DRAFTERS if kind_of(drafter) is Kind.MODEL_FREE]
        lookups = {
            drafter: DraftTimes(per_row=_MODEL_FREE_SECONDS.get(drafter, _LOOKUP_SECONDS)) for drafter in model_free
        }
        return cls(
            name,
            Grid(_floats(profile.rows), tuple(_curve(profile.tokens, line) for line in profile.verify)),
            {**lookups, **models},
            overhead=profile.overhead,
            per_cached_token=profile.per_cached_token,
            profile=profile,
            targets=targets,
        )

    @classmethod
    def of_cost_model(cls, name: str, cost: CostModel) -> Machine:
        """The machine as a cost model has learned it, read at the points of its profile."""
        return cls.of_profile(name, cost.learned_profile(cost.profile.rows, cost.profile.tokens))


def shipped_machines() -> list[str]:
    """Names of the machines that ship."""
    return sorted(path.stem for path in _SHIPPED.glob("*.json"))


def machines_of(about: Mapping[str, str]) -> list[Machine]:
    """The shipped machines that time the target of a tape, from the tape's `about`."""
    shipped = (load_machine(name) for name in shipped_machines())
    # Runners append their name to the fingerprint of a GGUF file.
    return [machine for machine in shipped if about.get("target", "").partition("-")[0] in machine.targets]


def load_machine(name: str) -> Machine:
    """The machine of a shipped name, or of a JSON file: a machine table, or a profile that an engine measured.

    Raises ConfigError: there is no such machine, or its file cannot be used.
    """
    path = _SHIPPED / f"{name}.json" if name in shipped_machines() else Path(name)
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(shipped_machines())
        raise ConfigError(f"no cost table {name!r} ({error}); shipped are: {known}; or give a JSON file") from error
    return parse_machine(text, path.stem)


def parse_machine(text: str, name: str) -> Machine:
    """The same from JSON text. Raises ConfigError: the text is neither of the two."""
    try:
        fields = json.loads(text)
        targets = [str(target) for target in fields.get("targets", ())]
        if "version" in fields:
            return Machine.of_profile(name, CostProfile.from_json(text), targets)
        return Machine(
            str(fields["machine"]),
            _curve(fields["verify"]["tokens"], fields["verify"]["seconds"]),
            {drafter: _draft_times(times) for drafter, times in fields["drafters"].items()},
            overhead=float(fields["overhead"]),
            per_cached_token=float(fields["per_cached_token"]),
            simulated=bool(fields.get("simulated", False)),
            targets=targets,
        )
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{name}: not a cost table ({type(error).__name__}: {error})") from error


def _profiled(cost: DrafterCost) -> DraftTimes:
    """The times of a drafter in a profile. One that reads along has run its first step in a plain round already."""
    step = _curve(cost.rows, cost.step_seconds) if cost.step_seconds else None
    saved = cost.step_seconds[0] if cost.reads_along else 0.0
    return DraftTimes(step, cost.catch_up_per_token, start=cost.start_seconds - saved, together=cost.together)


def _draft_times(fields: Mapping[str, Any]) -> DraftTimes:
    times = dict(fields)
    step = _curve(times.pop("rows"), times.pop("step_seconds")) if "step_seconds" in times else None
    together = bool(times.pop("together", False))
    return DraftTimes(step, together=together, **{key: float(value) for key, value in times.items()})


def _curve(counts: Sequence[float], seconds: Sequence[float]) -> Curve:
    return Curve(_floats(counts), _floats(seconds))


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
