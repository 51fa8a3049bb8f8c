"""What a round costs on this machine: profiled at start, corrected by every round that is seen.

T = overhead + draft steps + catch-up + verify. Knows seconds, rows and tokens; it does not know
models, and it never times anything itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.arrays import FEW, alike, total
from adaptspec.control.grid import LearnedGrid
from adaptspec.errors import ConfigError
from adaptspec.types import FloatArray, RoundRecord

MOST_BYTES = 2**20  # of a file that holds a table
_VERSION = 2
# The whole machine may slow down at once; what all kinds of work share is learned faster than what is their own.
_MACHINE_RATE, _OVERHEAD_RATE, _CLIP = 0.1, 0.1, 0.3
_HEARD_EVERY = 8
# Of a round's drafting, however short it was, this share at least was steps.
_MOST_START = 0.8


@dataclass(frozen=True)
class DrafterCost:
    """Seconds of one draft step for `rows[i]` rows, and of reading one token to catch up.

    `start_seconds`: what the first step of a round takes beyond the others, since the target's pass has come between.
    A drafter that runs no model (n-gram lookup) has no `step_seconds`; what it costs is learned as overhead.
    """

    rows: tuple[int, ...] = (1,)
    step_seconds: tuple[float, ...] = ()
    catch_up_per_token: float = 0.0
    start_seconds: float = 0.0


@dataclass(frozen=True)
class CostProfile:
    """What a profiler measured. `verify[i][j]`: seconds of a pass over `rows[i]` rows of `tokens[j]` tokens each.

    Passes are those of rounds: one token per row comes after another pass of the target, more come after drafts.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    verify: tuple[tuple[float, ...], ...]
    drafters: Mapping[str, DrafterCost] = field(default_factory=dict)
    per_cached_token: float = 0.0  # seconds more for each token that the rows attend to, all rows together
    overhead: float = 0.0  # seconds of a round spent neither drafting nor verifying


class CostTable:
    """T(batch, depths, context), in seconds."""

    def __init__(self, profile: CostProfile) -> None:
        """
        Raises:
            ConfigError: the profile is not a full, positive table.
        """
        self.profile = profile
        self._verify = LearnedGrid(profile.rows, profile.tokens, profile.verify)
        self._steps = {
            name: LearnedGrid(cost.rows, (1,), [[seconds] for seconds in cost.step_seconds])
            for name, cost in profile.drafters.items()
            if cost.step_seconds
        }
        self._machine = 1.0
        self._rounds = 0
        self._due = [0, 0]  # rounds seen when one without drafts, and one with drafts, is to be heard again
        self._overhead: dict[tuple[bool, int], float] = {}

    def verify_seconds(self, rows: int, tokens: float, context: float = 0.0) -> float:
        """One verify pass over `tokens` packed tokens of `rows` rows that hold `context` tokens in all."""
        return self._machine * (self._verify.at(rows, tokens / max(rows, 1)) + self.profile.per_cached_token * context)

    def verify_curve(self, rows: int, tokens: FloatArray, context: float = 0.0) -> FloatArray:
        """`verify_seconds` for many token counts at once; any shape."""
        base = self._verify.across(rows, tokens / max(rows, 1)) + self.profile.per_cached_token * context
        return np.asarray(self._machine * base, dtype=np.float64)

    def verify_line(self, rows: int, most: int, context: float = 0.0) -> FloatArray:
        """`verify_curve` of `rows` + 0, 1, ... `most` tokens: a list where that is quicker, which a few are."""
        if most > FEW:
            return self.verify_curve(rows, rows + np.arange(most + 1, dtype=np.float64), context)
        size = max(rows, 1)
        line = self._verify.along(size, [(rows + n) / size for n in range(most + 1)])
        attended = self.profile.per_cached_token * context
        return np.array([self._machine * (seconds + attended) for seconds in line])

    def draft_step_seconds(self, drafter: str, rows: float) -> float:
        """One draft step of `rows` active rows; 0 for a drafter that runs no model."""
        grid = self._steps.get(drafter)
        return 0.0 if grid is None or rows <= 0 else self._machine * grid.at(rows, 1)

    def step_line(self, drafter: str, rows: int) -> tuple[float, float]:
        """A draft step as a straight line in its active rows: seconds per step, seconds per active row.

        Exact at 1 row and at `rows` rows.
        """
        one = self.draft_step_seconds(drafter, 1)
        if rows <= 1:
            return 0.0, one
        per_row = max(0.0, self.draft_step_seconds(drafter, rows) - one) / (rows - 1)
        return max(0.0, one - per_row), per_row

    def start_seconds(self, drafter: str) -> float:
        """What a round that drafts with it takes beyond its steps; 0 for a drafter that runs no model."""
        cost = self.profile.drafters.get(drafter)
        return 0.0 if cost is None else self._machine * cost.start_seconds

    def catch_up_seconds(self, drafter: str, tokens: float) -> float:
        """Reading `tokens` tokens that the drafter has missed."""
        cost = self.profile.drafters.get(drafter)
        return 0.0 if cost is None else self._machine * cost.catch_up_per_token * tokens

    def overhead_seconds(self, rows: int, drafting: bool) -> float:
        """What a round takes beside its model passes."""
        known = self._overhead
        bucket = batch_bucket(rows)
        own = known.get((drafting, bucket))
        if own is None:
            own = known.get((not drafting, bucket))
        return self.profile.overhead * self._machine if own is None else own

    def plain_seconds(self, rows: int, context: float = 0.0) -> float:
        """A whole round without speculation: one token for each of `rows` rows."""
        return self.verify_seconds(rows, rows, context) + self.overhead_seconds(rows, drafting=False)

    def round_seconds(
        self,
        drafter: str,
        rows: int,
        steps: FloatArray,
        drafted: FloatArray,
        context: float = 0.0,
    ) -> FloatArray:
        """Whole rounds with `steps` draft steps that draft `drafted` tokens in all; arrays of one shape."""
        per_step, per_row = self.step_line(drafter, rows)
        begun = self.overhead_seconds(rows, drafting=True) + self.start_seconds(drafter)
        drafting = np.where(drafted > 0, begun, self.overhead_seconds(rows, drafting=False))
        total = drafting + per_step * steps + per_row * drafted + self.verify_curve(rows, rows + drafted, context)
        return np.asarray(total, dtype=np.float64)

    def observe(self, record: RoundRecord, drafters: Sequence[str] = ()) -> None:
        """Correct the table by one round; `drafters` are those that its rows count.

        Rounds that read a prompt, or hold no decoding rows, teach nothing.
        """
        rows = len(record.rows)
        self._rounds += rows > 0
        if not rows or record.prefill_tokens or not record.verify_seconds > 0.0:
            return
        drafting = record.drafting
        # One round in so many says enough, of those with drafts and of those without: the rare kind is always heard.
        if self._rounds < self._due[drafting]:
            return
        self._due[drafting] = self._rounds - (self._rounds - 1) % _HEARD_EVERY + _HEARD_EVERY
        attended = self.profile.per_cached_token * total(record.context)
        width = record.verify_tokens / rows
        ratio = self._verify.correct(rows, width, record.verify_seconds, self._machine, attended)
        self._correct_machine(ratio)
        beside = record.total_seconds - record.verify_seconds
        if record.draft_steps or record.caught_up:  # whatever became of it, it is no part of a round without drafts
            beside -= record.draft_seconds
        if drafting and record.draft_steps:
            # Where several drafters ran nobody knows whose the seconds were, but they were no overhead.
            drafter = _only_drafter(record, drafters)
            if drafter in self._steps:
                self._observe_draft(record, drafter, rows)
        self._observe_overhead(rows, drafting, beside)

    def to_json(self) -> str:
        """The profile (not what was learned since: that belongs to the day, not to the machine)."""
        profile = self.profile
        body = {
            "version": _VERSION,
            "rows": profile.rows,
            "tokens": profile.tokens,
            "verify": profile.verify,
            "per_cached_token": profile.per_cached_token,
            "overhead": profile.overhead,
            "drafters": {
                name: {
                    "rows": c.rows,
                    "step_seconds": c.step_seconds,
                    "catch_up_per_token": c.catch_up_per_token,
                    "start_seconds": c.start_seconds,
                }
                for name, c in profile.drafters.items()
            },
        }
        return json.dumps(body, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        """
        Raises:
            ConfigError: not what `to_json` writes.
        """
        try:
            body = json.loads(text)
            if body["version"] != _VERSION:
                raise ConfigError(f"a cost table of version {body['version']}, not {_VERSION}: profile again")
            profile = CostProfile(
                rows=tuple(body["rows"]),
                tokens=tuple(body["tokens"]),
                verify=tuple(tuple(float(x) for x in line) for line in body["verify"]),
                per_cached_token=float(body["per_cached_token"]),
                overhead=float(body["overhead"]),
                drafters={
                    name: DrafterCost(
                        tuple(c["rows"]),
                        tuple(c["step_seconds"]),
                        float(c["catch_up_per_token"]),
                        float(c["start_seconds"]),
                    )
                    for name, c in body["drafters"].items()
                },
            )
            return cls(profile)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ConfigError(f"not a cost table ({error}): profile again") from error

    def _observe_draft(self, record: RoundRecord, drafter: str, rows: int) -> None:
        steps = record.draft_steps
        measured = record.draft_seconds - self.catch_up_seconds(drafter, record.caught_up)
        # A round that mostly caught up says little about a step.
        if measured > 0.0 and record.draft_seconds < 2.0 * measured:
            measured -= min(self.start_seconds(drafter), _MOST_START * measured)
            active = max(1.0, min(rows, total(record.drafted) / steps))
            self._correct_machine(self._steps[drafter].correct(active, 1, measured / steps, self._machine))

    def _correct_machine(self, ratio: float) -> None:
        self._machine *= math.exp(_MACHINE_RATE * min(_CLIP, max(-_CLIP, math.log(ratio))))

    def _observe_overhead(self, rows: int, drafting: bool, seconds: float) -> None:
        key = (drafting, batch_bucket(rows))
        old = self._overhead.get(key)
        seconds = max(seconds, 0.0)
        if old is None:
            # The first round often pays for warming up: never believe it fully.
            old = self.overhead_seconds(rows, drafting)
            seconds = min(seconds, max(4.0 * old, 1e-4))
            self._overhead[key] = 0.5 * (old + seconds) if old else seconds
            return
        bound = 2.0 * old + 1e-5
        self._overhead[key] = old + _OVERHEAD_RATE * (min(seconds, bound) - old)


def batch_bucket(rows: int) -> int:
    """Which batch sizes count as alike: 0 for 1 row, then 2, 3-4, 5-8, 9-16 ..."""
    return max(0, rows - 1).bit_length()


def _only_drafter(record: RoundRecord, drafters: Sequence[str]) -> str | None:
    """The one that drafted in all rows that did; None if there were several."""
    if not drafters:
        return None
    first = record.drafter.item(0)
    if alike(record.drafter, first):
        return drafters[first]
    used = np.bincount(record.drafter, record.drafted).nonzero()[0]
    return drafters[used[0]] if len(used) == 1 else None
