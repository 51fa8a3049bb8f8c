"""What passes of the models take, as a table: the starting point of a cost model."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from adaptspec.arrays import FloatArray
from adaptspec.errors import ConfigError
from adaptspec.rounds import RoundWork

MAX_FILE_BYTES = 2**20
_VERSION = 2
_RECORD_AGAIN = "record it again (adaptspec bench record --costs-out FILE)"
# Twice the work takes at most so many times as long. A real pass of two tokens took 2.3 times one (llama.cpp, Q4_1);
# busy machines have reported 3.3.
_MAX_PER_DOUBLING = 2.4

# Shares of a pass of one token in an engine whose parts cannot be timed: a further token, a token of a prompt, a draft
# pass, and a further row of it. The cost model learns the engine's own within some rounds.
_TOKEN, _PROMPT_TOKEN, _DRAFT_PASS, _DRAFT_ROW = 0.03, 0.003, 0.1, 0.01
_PASS_SECONDS = 1e-2  # of such a pass before any was timed
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 1e6  # of a timed round; others are errors of the clock

_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]  # checked where a profile is read


@dataclass(frozen=True)
class DrafterCost:
    """Seconds of a draft pass over `rows[i]` rows (empty for model-free drafters), and of reading a missed token.

    `start_seconds`: what the first pass of a round takes in addition, because the target has evicted the caches.
    `together`: the executor runs whole drafts, so every planned pass covers all rows of the round. `reads_along`: one
    pass also runs in rounds without drafts and is part of their time, so a first token costs no pass of its own.
    """

    rows: tuple[int, ...] = (1,)
    step_seconds: tuple[_Seconds, ...] = ()
    catch_up_per_token: _Seconds = 0.0
    start_seconds: _Seconds = 0.0
    together: bool = False
    reads_along: bool = False


@dataclass(frozen=True)
class CostProfile:
    """Timed passes. `verify[i][j]`: seconds of a target pass over `rows[i]` rows of `tokens[j]` tokens each.

    Passes are timed as they alternate in service: passes of one token per row follow another target pass, longer ones
    follow drafts. `per_cached_token`: additional seconds for each token that the rows attend to. `overhead`: seconds of
    a round outside its passes.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    verify: tuple[tuple[_Seconds, ...], ...]
    drafters: Mapping[str, DrafterCost] = field(default_factory=dict)
    per_cached_token: _Seconds = 0.0
    overhead: _Seconds = 0.0

    @classmethod
    def typical(
        cls, drafter: str, steps: Sequence[tuple[RoundWork, float]] = (), *, reads_along: bool = True
    ) -> CostProfile:
        """The profile of an engine whose parts cannot be timed: typical shares of a pass.

        `steps` are timed rounds with their seconds, of which the median fits the profile. The engine runs whole drafts
        of one drafter.
        """
        passes = [taken / _typical_passes(work) for work, taken in steps if _MIN_SECONDS <= taken <= _MAX_SECONDS]
        seconds = statistics.median(passes) if passes else _PASS_SECONDS
        rows = (1, 2)
        draft_passes = _DRAFT_PASS * seconds, (_DRAFT_PASS + _DRAFT_ROW) * seconds
        cost = DrafterCost(rows, draft_passes, together=True, reads_along=reads_along)
        return cls((1,), rows, ((seconds, (1.0 + _TOKEN) * seconds),), {drafter: cost})

    def check(self) -> None:
        """Raises ConfigError if an axis does not ascend above 0, a table's shape differs, or a time is not above 0."""
        _check_table(self.rows, self.tokens, self.verify)
        for cost in self.drafters.values():
            if cost.step_seconds:
                _check_table(cost.rows, (1,), [(seconds,) for seconds in cost.step_seconds])

    def plausible(self) -> CostProfile:
        """The profile with impossible times corrected: more work is never cheaper, and never much dearer.

        A disturbed measurement can only be too long, so a time above that of more work is lowered to it.
        """
        drafters = {
            name: replace(cost, step_seconds=tuple(_plausible([cost.step_seconds], (1,), cost.rows)[0].tolist()))
            for name, cost in self.drafters.items()
            if cost.step_seconds
        }
        verify = _plausible(self.verify, self.rows, self.tokens)
        return replace(self, verify=tuple(map(tuple, verify.tolist())), drafters={**self.drafters, **drafters})

    def to_json(self) -> str:
        return json.dumps({"version": _VERSION, **_PROFILE.dump_python(self, mode="json")}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostProfile:
        """Raises ConfigError if `text` is not the output of `to_json`."""
        try:
            version = json.loads(text)["version"]
            if version != _VERSION:
                raise ConfigError(f"a cost table of version {version}, not {_VERSION}: {_RECORD_AGAIN}")
            profile = _PROFILE.validate_json(text)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg'].lower()}" for f in error.errors()[:3])
            raise ConfigError(f"not a cost table ({faults}): {_RECORD_AGAIN}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"not a cost table ({error}): {_RECORD_AGAIN}") from error
        profile.check()
        return profile


_PROFILE = TypeAdapter(CostProfile)


def _typical_passes(work: RoundWork) -> float:
    """The seconds of a round by typical shares, in passes of one token."""
    passes = [rows for draft in work.drafts for rows in draft.passes]
    drafting = _DRAFT_PASS * len(passes) + _DRAFT_ROW * (sum(passes) - len(passes))
    return 1.0 + _TOKEN * (work.verify_tokens - 1) + _PROMPT_TOKEN * work.prefill_tokens + drafting


def _check_table(rows: Sequence[int], columns: Sequence[int], seconds: Sequence[Sequence[float]]) -> None:
    if not rows or len(seconds) != len(rows) or {len(line) for line in seconds} != {len(columns)}:
        raise ConfigError(f"a cost profile of {len(rows)} x {len(columns)} needs as many times; {_RECORD_AGAIN}")
    if any(b <= a for axis in (rows, columns) for a, b in itertools.pairwise((0, *axis))):
        raise ConfigError(f"the axes of a cost table must ascend from 1; {_RECORD_AGAIN}")
    if not all(0.0 < value < math.inf for line in seconds for value in line):
        raise ConfigError(f"a cost table holds a time that is not positive; {_RECORD_AGAIN}")


def _plausible(seconds: Sequence[Sequence[float]], rows: Sequence[int], columns: Sequence[int]) -> FloatArray:
    """Seconds [R, C] that rise with rows and columns, and by at most `_MAX_PER_DOUBLING` for twice as many."""
    table = np.array(seconds, dtype=np.float64)
    for axis in (0, 1):
        table = np.flip(np.minimum.accumulate(np.flip(table, axis), axis=axis), axis)
    for axis, counts in ((0, rows), (1, columns)):
        # The steepest allowed curve becomes a constant; a running minimum then caps everything above it.
        steepest = np.power(np.array(counts, dtype=np.float64), math.log2(_MAX_PER_DOUBLING))
        scale = steepest[:, None] if axis == 0 else steepest[None, :]
        cap = np.minimum.accumulate(table / scale, axis=axis) * scale
        table = np.where(cap < table * (1.0 - 1e-9), cap, table)  # a plausible time keeps its last digit
    return np.asarray(table)
