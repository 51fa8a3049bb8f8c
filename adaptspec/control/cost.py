"""What a round costs: T = overhead + draft steps + catch-up + verify, believed a little first, learned from rounds."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from adaptspec.control.grid import LearnedGrid, Quantity, Term, look
from adaptspec.errors import ConfigError
from adaptspec.types import FloatArray, IntArray, RoundRecord

MOST_BYTES = 2**20  # of a file that holds a table
_VERSION = 2
# What an n-gram drafter takes for a row that it drafts for, until rounds tell; the least of a round beside its passes.
_NGRAM, _LEAST = 1e-5, 1e-6
# Rounds that are learned together: at first one by one, since each tells much. Then one in `_SAMPLED` of those that are
# as one was just before.
_TOGETHER, _SAMPLED = 15, 4
_MOST_KINDS = 1024
# Where the median of so many rounds of a kind takes so many times what was expected, or less by as much, by more than
# their noise explains (two standard errors), they speak against the table.
_UNSURE, _TELLING = math.log(1.3), 8
_PASSES = 1024  # rounds after which a kind that never ran again speaks against nothing, and the log says it again

_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]  # checked where a profile is read
_log = logging.getLogger(__name__)
_FEW_NODES = 4  # that a draft which branches runs in one step


@dataclass(frozen=True)
class DrafterCost:
    """Seconds of a draft step for `rows[i]` rows (n-gram drafters have none), and of reading a token to catch up.

    `start_seconds`: what the first step of a round takes beyond the others, since the target's pass has come between.
    `together`: every step is of all rows of a round, however deep each of them is to go. `reads_along`: one step is run
    in rounds without drafts, too, and is part of what they take, so that a first token costs no step of its own.
    """

    rows: tuple[int, ...] = (1,)
    step_seconds: tuple[_Seconds, ...] = ()
    catch_up_per_token: _Seconds = 0.0
    start_seconds: _Seconds = 0.0
    together: bool = False
    reads_along: bool = False


@dataclass(frozen=True)
class CostProfile:
    """What a profiler measured. `verify[i][j]`: seconds of a pass over `rows[i]` rows of `tokens[j]` tokens each.

    Passes are those of rounds: one token per row comes after another pass of the target, more come after drafts.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    verify: tuple[tuple[_Seconds, ...], ...]
    drafters: Mapping[str, DrafterCost] = field(default_factory=dict)
    per_cached_token: _Seconds = 0.0  # seconds more for each token that the rows attend to, all rows together
    overhead: _Seconds = 0.0  # seconds of a round spent neither drafting nor verifying


_PROFILE = TypeAdapter(CostProfile)


class CostTable:
    """T(batch, depths, context), in seconds. Rises with rows, tokens and steps, whatever it was told.

    The profile is a weak belief (see `grid`). How fast the machine is just now is learned apart, and faster.
    """

    def __init__(self, profile: CostProfile) -> None:
        """Raises ConfigError if the profile is not a full, positive table."""
        self.profile = profile
        self.measured = math.nan  # when, in seconds since 1970; NaN: nobody said
        self.origin = "given"  # when and where, in words
        self._verify = LearnedGrid(profile.rows, profile.tokens, profile.verify)
        self._steps = {
            name: LearnedGrid(cost.rows, (1,), [[seconds] for seconds in cost.step_seconds])
            for name, cost in profile.drafters.items()
            if cost.step_seconds
        }
        self._starts = {name: Quantity(cost.start_seconds) for name, cost in profile.drafters.items()}
        self._catch_up = {name: Quantity(cost.catch_up_per_token) for name, cost in profile.drafters.items()}
        self._ngram: dict[str, Quantity] = {}
        self._attended = Quantity(profile.per_cached_token)
        self._overhead: dict[tuple[bool, int], Quantity] = {}
        self._machine = Quantity(1.0)
        self._rounds = 0
        self._pending: list[tuple[int, RoundRecord, Sequence[str]]] = []
        self._looked: dict[tuple[int, int, bool], int] = {}  # when, by kind of round
        self._surprise: dict[tuple[bool, int], list[float]] = {}  # logarithms, by kind of round
        self._unsure: dict[tuple[bool, int], int] = {}  # kinds of rounds that disagree, and since which round
        self._silent_until = 0
        self.doubts = 0  # times that rounds had it measured again

    @property
    def unsure(self) -> bool:
        """Whether rounds take other times than it says: then it is being measured again."""
        return any(self._rounds - since < _PASSES for since in self._unsure.values())

    def verify_seconds(self, rows: int, tokens: float, context: float = 0.0) -> float:
        """One verify pass over `tokens` packed tokens of `rows` rows that hold `context` tokens in all."""
        attended = self._attended.seconds * context
        return self._machine.seconds * (self._verify.at(rows, tokens / max(rows, 1)) + attended)

    def verify_curve(
        self, rows: int, tokens: FloatArray, context: float = 0.0, *, optimistic: bool = False
    ) -> FloatArray:
        """`verify_seconds` for many token counts at once; any shape. See `LearnedGrid.across` for `optimistic`."""
        passes = self._verify.across(rows, tokens / max(rows, 1), optimistic=optimistic)
        return np.asarray(self._machine.seconds * (passes + self._attended.seconds * context))

    def drafts_together(self, drafter: str) -> bool:
        """Whether each of its steps is of all rows: an engine that is told of whole rounds alone drafts so."""
        return self._is(drafter, "together")

    def draft_step_seconds(self, drafter: str, rows: float) -> float:
        """One draft step of `rows` active rows; 0 for a drafter that runs no model."""
        grid = self._steps.get(drafter)
        return 0.0 if grid is None or rows <= 0 else self._machine.seconds * grid.at(rows, 1)

    def step_line(self, drafter: str, rows: int) -> tuple[float, float]:
        """A draft step as a line in its active rows, exact at 1 and at `rows`: seconds per step, and per row.

        A single row's step is part of a line, too: drafts that branch run several nodes of it.
        """
        if self.drafts_together(drafter):
            return self.draft_step_seconds(drafter, rows), 0.0
        one, most = self.draft_step_seconds(drafter, 1), rows if rows > 1 else _FEW_NODES
        per_row = max(0.0, self.draft_step_seconds(drafter, most) - one) / (most - 1)
        return max(0.0, one - per_row), per_row

    def start_seconds(self, drafter: str, rows: int) -> float:
        """What a round of so many rows that drafts with it takes beyond its steps; 0 for a drafter that runs no model,
        less than that where plain rounds have taken one of them.
        """
        start = self._starts.get(drafter)
        free = self.draft_step_seconds(drafter, rows) if self._is(drafter, "reads_along") else 0.0
        return 0.0 if start is None else self._machine.seconds * start.seconds - free

    def ngram_seconds(self, drafter: str) -> float:
        """What a drafter that runs no model takes for each row that it drafts for; 0 for one that does."""
        return 0.0 if drafter in self._starts else self._machine.seconds * self._ngram_of(drafter).seconds

    def catch_up_seconds(self, drafter: str, tokens: float) -> float:
        """Reading `tokens` tokens that the drafter has missed."""
        each = self._catch_up.get(drafter)
        return 0.0 if each is None else self._machine.seconds * each.seconds * tokens

    def overhead_seconds(self, rows: int, drafting: bool) -> float:
        """What a round takes beside its model passes: no less with drafts than without."""
        plain = self._beside(rows, drafting=False).seconds
        return self._machine.seconds * (max(plain, self._beside(rows, drafting=True).seconds) if drafting else plain)

    def plain_seconds(self, rows: int, context: float = 0.0) -> float:
        """A whole round without speculation: one token for each of `rows` rows."""
        return self.verify_seconds(rows, rows, context) + self.overhead_seconds(rows, drafting=False)

    def round_seconds(
        self, drafter: str, rows: int, steps: FloatArray, drafted: FloatArray, context: float = 0.0
    ) -> FloatArray:
        """Whole rounds with `steps` draft steps that draft `drafted` tokens in all; arrays of one shape."""
        per_step, per_row = self.step_line(drafter, rows)
        begun = self.overhead_seconds(rows, drafting=True) + self.start_seconds(drafter, rows)
        drafting = np.where(drafted > 0, begun, self.overhead_seconds(rows, drafting=False))
        total = drafting + per_step * steps + per_row * drafted + self.verify_curve(rows, rows + drafted, context)
        return np.asarray(total, dtype=np.float64)

    def observe(self, record: RoundRecord, drafters: Sequence[str] = ()) -> None:
        """Learn from one round; `drafters` are those that its rows count.

        Where nobody can tell drafting from verifying (seconds are NaN), the whole round tells. Rounds that read a
        prompt, or hold no decoding rows, teach nothing.
        """
        if not len(record.rows) or record.prefill_tokens:
            return
        self._rounds += 1
        kind = len(record.rows), record.verify_tokens.bit_length(), record.caught_up > 0
        if self._rounds - self._looked.get(kind, -_SAMPLED) < min(_SAMPLED, self._rounds // _TOGETHER):
            return
        if len(self._looked) >= _MOST_KINDS:
            self._looked.clear()
        self._looked[kind] = self._rounds
        self._pending.append((self._rounds, record, drafters))
        if len(self._pending) > min(_TOGETHER, self._rounds // 8):
            for pending in self._pending:
                self._learn(*pending)
            self._pending.clear()
            for grid in (self._verify, *self._steps.values()):
                grid.settle(self._rounds)

    def _learn(self, now: int, record: RoundRecord, drafters: Sequence[str]) -> None:
        rows = len(record.rows)
        drafting = record.drafting or record.caught_up > 0
        verifying = self._verify.parts(rows, record.verify_tokens / rows)
        verifying.append((self._attended, float(record.context.sum())))
        proposing = self._proposing(record, drafters) if drafting else []
        beside: list[Term] = [(self._beside(rows, drafting), 1.0)]
        spent = record.draft_seconds if drafting else 0.0
        left = record.total_seconds - record.verify_seconds - spent
        if left == left:  # noqa: PLR0124 - NaN differs from itself
            looks = [(verifying, record.verify_seconds), (proposing, spent), (beside, max(left, _LEAST))]
        else:
            looks = [([*verifying, *proposing, *beside], record.total_seconds)]
        expected = self._machine.seconds * sum(one.seconds * count for parts, _ in looks for one, count in parts)
        for parts, seconds in looks:
            look(parts, self._machine, seconds, now)
        self._compare((drafting, batch_bucket(rows)), expected, record.total_seconds)

    def _compare(self, kind: tuple[bool, int], expected: float, seconds: float) -> None:
        """Whether rounds of a kind take what was expected of them before they ran."""
        surprises = self._surprise.setdefault(kind, [])
        surprises.append(math.log(max(seconds, _LEAST) / expected))
        if len(surprises) < _TELLING:
            return
        middle = statistics.median(surprises)
        spread = statistics.median([abs(one - middle) for one in surprises])
        surprises.clear()
        # Of normal noise, a standard deviation is 1.48 x the spread, and the median's error 1.25 x that of a mean.
        if abs(middle) - 2.0 * 1.25 * 1.48 * spread / math.sqrt(_TELLING) > _UNSURE:
            if self._rounds >= self._silent_until:
                self._silent_until = self._rounds + _PASSES
                _log.warning(
                    "costs are unsure: measuring again (rounds of %s take %.2f times what the cost table says)",
                    "drafts" if kind[0] else "plain decoding",
                    math.exp(middle),
                )
            self._unsure[kind] = self._rounds
            self.doubt()
        elif kind in self._unsure:
            del self._unsure[kind]

    def doubt(self) -> None:
        """Believe what was learned no more than what was measured at the start, so that rounds measure it again."""
        self.doubts += 1
        self._surprise.clear()
        quantities = (self._starts, self._catch_up, self._ngram, self._overhead)
        for quantity in (self._machine, self._attended, *(one for known in quantities for one in known.values())):
            quantity.doubt()
        for grid in (self._verify, *self._steps.values()):
            grid.doubt()

    def to_json(self) -> str:
        """The profile (not what was learned since: that belongs to the day, not to the machine)."""
        return json.dumps({"version": _VERSION, **_PROFILE.dump_python(self.profile, mode="json")}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        """Raises ConfigError if it is not what `to_json` writes."""
        try:
            version = json.loads(text)["version"]
            if version != _VERSION:
                raise ConfigError(f"a cost table of version {version}, not {_VERSION}: profile again")
            return cls(_PROFILE.validate_json(text))
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors()[:3])
            raise ConfigError(f"not a cost table ({said}): profile again") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"not a cost table ({error}): profile again") from error

    def _proposing(self, record: RoundRecord, drafters: Sequence[str]) -> list[Term]:
        """What the drafting of a round is made of."""
        parts: list[Term] = []
        for which, rows, active in draft_passes(record):
            name = drafters[which] if which < len(drafters) else ""
            grid = self._steps.get(name)
            if grid is None:
                parts.append((self._ngram_of(name), float(rows)))
                continue
            parts.append((self._starts[name], 1.0))
            parts.append((self._catch_up[name], float(record.caught_up)))
            if self.drafts_together(name):
                parts += grid.parts(float(len(record.rows)), 1, float(record.draft_steps))
                continue
            for size, number in zip(*np.unique(active, return_counts=True), strict=True):
                parts += grid.parts(float(size), 1, float(number))
        return parts

    def _is(self, drafter: str, how: Literal["together", "reads_along"]) -> bool:
        known = self.profile.drafters.get(drafter)
        return known is not None and bool(getattr(known, how))

    def _ngram_of(self, drafter: str) -> Quantity:
        return self._ngram.setdefault(drafter, Quantity(_NGRAM))

    def _beside(self, rows: int, drafting: bool) -> Quantity:
        """What is known of rounds of so many rows beside their passes, or else of others."""
        bucket = batch_bucket(rows)
        known = self._overhead.get((drafting, bucket))
        if known is None:
            other = self._overhead.get((not drafting, bucket))
            prior = max(self.profile.overhead, _LEAST) if other is None else other.seconds
            known = self._overhead[drafting, bucket] = Quantity(prior)
        return known


def draft_passes(record: RoundRecord) -> Iterator[tuple[int, int, IntArray]]:
    """Each drafter of a round: its number, its rows, and how many tokens it drafted on from at each step, at least one.

    A row's drafter drafts on from the newest token and from nodes that have its own after them; whoever else adds nodes
    to a row has drafted for it, too.
    """
    asked, tree = record.depths > 0, None if record.branches is None else record.branches.tree
    if tree is None:
        for which in sorted(set(record.drafter[asked].tolist())):
            drafted = record.drafted[(record.drafter == which) & asked]
            active = np.count_nonzero(drafted[:, None] > np.arange(max(1, drafted.max())), axis=0)
            active[0] = len(drafted)  # whoever only catches up runs, too
            yield which, len(drafted), active
        return
    inside, depths = np.arange(tree.parents.shape[1]) < record.nodes[:, None], tree.depths
    for which in sorted({*record.drafter[asked].tolist(), *tree.drafters[inside].tolist()}):
        own = inside & (tree.drafters == which)
        rows = int(np.count_nonzero(own.any(axis=1) | (asked & (record.drafter == which))))
        row, place = np.nonzero(own)
        # Siblings come of one step.
        first = np.unique(np.stack((row, tree.parents[row, place])), axis=1, return_index=True)[1]
        active = np.bincount(depths[row, place][first] - 1, minlength=1).astype(np.int64)
        active[0] = rows
        yield which, rows, active


def batch_bucket(rows: int) -> int:
    """Which batch sizes count as alike: 0 for 1 row, then 2, 3-4, 5-8, 9-16 ..."""
    return max(0, rows - 1).bit_length()
