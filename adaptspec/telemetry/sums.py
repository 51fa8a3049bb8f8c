"""Sums over rounds: the one accumulator of metrics, the live feed, requests and `policy explain`.

`RoundSums.of(records)` sums whole rounds. `RowTable` splits rounds by row: by task, by request, by reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.speedup import round_features


class DrafterSums(NamedTuple):
    """What a drafter did: in rows that it was to draft for, and with the tokens that it proposed in any row.

    A tree may hold tokens of several drafters.
    """

    drafts: int = 0  # rows that it drafted for
    drafted: int = 0
    accepted: int = 0
    nodes: int = 0  # tokens that it proposed
    kept: int = 0  # those of them that were emitted


@dataclass(frozen=True)
class Forecast:
    """What policies expected of rounds, in tokens over the seconds that these rounds took.

    Rounds that read a prompt are left out, since their time is that of the prompt. `compared` and `rejected` are of the
    rounds in which a policy also estimated the rejected choice: plain decoding in rounds that drafted, else drafting.
    """

    expected: float = 0.0
    emitted: float = 0.0  # tokens that came
    compared: float = 0.0  # expected of the choice
    rejected: float = 0.0  # expected of the rejected one

    def __add__(self, more: Forecast) -> Forecast:
        return Forecast(
            self.expected + more.expected,
            self.emitted + more.emitted,
            self.compared + more.compared,
            self.rejected + more.rejected,
        )

    @property
    def advantage(self) -> float | None:
        """Expected goodput of the choice over that of the rejected one; None where no round was compared."""
        return self.compared / self.rejected if self.rejected else None


def _tally() -> IntArray:
    return np.zeros(1, dtype=np.int64)


def _by_reason() -> IntArray:
    return np.zeros(1 + max(Reason), dtype=np.int64)


def _by_drafter() -> IntArray:
    return np.zeros((0, len(DrafterSums._fields)), dtype=np.int64)


def _work() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class RoundSums:
    """Sums over rounds, or over some of their rows. A row is one request in one round.

    As in `SpeculationStats`, `accepted` counts only tokens that were emitted, and `drafted` those along the longest
    path of a draft; `nodes` counts all tokens that were verified. Of a whole round's time and work, each row has an
    equal share. `ran` and `plain` [F] are the work of `speedup`.
    """

    rounds: int = 0
    rows: int = 0
    drafts: int = 0  # rows that drafted
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    nodes: int = 0
    seconds: float = 0.0  # overhead included
    draft_seconds: float = 0.0  # of rounds whose parts were timed
    verify_seconds: float = 0.0
    prefill_tokens: float = 0.0
    target_tokens: float = 0.0  # that the target computed
    draft_steps: float = 0.0  # passes of draft models
    catch_up_tokens: float = 0.0
    entropy_sum: float = 0.0  # over drafted tokens whose entropy is known, in nats
    entropy_count: int = 0
    expected_accepted: float = 0.0  # over rows that drafted and for which a number was expected
    accepted_as_expected: int = 0  # accepted tokens of the same rows
    drafting: Forecast = Forecast()  # of rounds that drafted
    plain_decoding: Forecast = Forecast()  # of the others
    depths: IntArray = field(default_factory=_tally)  # rows by decided depth
    draft_lengths: IntArray = field(default_factory=_tally)  # rows by drafted tokens
    accepted_lengths: IntArray = field(default_factory=_tally)  # rows by accepted tokens
    reasons: IntArray = field(default_factory=_by_reason)  # rows by reason
    off_reasons: IntArray = field(default_factory=_by_reason)  # those of depth 0
    drafters: IntArray = field(default_factory=_by_drafter)  # by drafter, in the columns of `DrafterSums`
    ran: FloatArray = field(default_factory=_work)
    plain: FloatArray = field(default_factory=_work)

    @classmethod
    def of(cls, records: Sequence[RoundRecord], costs: CostModel | None = None) -> RoundSums:
        """Sums over whole rounds. `costs` None: without `ran` and `plain`."""
        return RowTable(records, costs).total()

    def __add__(self, more: RoundSums) -> RoundSums:
        others = vars(more)
        return RoundSums(**{name: _add(value, others[name]) for name, value in vars(self).items()})

    @property
    def accepted_per_position(self) -> IntArray:
        """Rows whose draft was accepted at position j (0-based), as long as the longest draft."""
        reached = self.accepted_lengths[::-1].cumsum()[::-1][1:]
        return np.pad(reached, (0, max(0, len(self.draft_lengths) - len(self.accepted_lengths))))

    def drafter(self, index: int) -> DrafterSums:
        """The sums of a drafter."""
        return DrafterSums(*self.drafters[index].tolist()) if index < len(self.drafters) else DrafterSums()


class RowTable:
    """Rounds, in columns by row [N] and by round [R], to be summed by any grouping of either."""

    def __init__(self, records: Sequence[RoundRecord], costs: CostModel | None = None) -> None:
        """`costs` None: sums are without `ran` and `plain`."""
        self._records = records
        self._counts = np.array([len(record.rows) for record in records], dtype=np.int64)
        self.round_index: IntArray = np.repeat(np.arange(len(records)), self._counts)  # [N] the round of each row
        self._row = {
            name: _column(records, name) for name in ("depths", "reasons", "drafter", "drafted", "nodes", "emitted")
        }
        self._row["accepted"] = np.minimum(_column(records, "accepted"), self._row["emitted"])
        self._expected = _concatenated(
            [np.full(len(one.rows), np.nan) if one.expected is None else one.expected.accepted for one in records]
        )
        self._entropy_sum, self._entropy_count = self._entropies()
        self._round = self._round_columns()
        self._forecasts = self._forecast_columns()
        self._ran: FloatArray = np.zeros((len(records), 0))
        self._plain: FloatArray = np.zeros((len(records), 0))
        if costs is not None and records:
            self._ran, self._plain = round_features(costs, records)
        self._owners, self._proposers, self._kept = self._proposals()

    def total(self) -> RoundSums:
        """Sums over all rounds."""
        return self.by_round(np.zeros(len(self._records), dtype=np.int64), 1)[0]

    def by_round(self, groups: IntArray, count: int) -> list[RoundSums]:
        """Sums by group 0 to `count` - 1; `groups` [R] has the group of each round."""
        weights = np.zeros((count, len(self._records)))
        weights[groups, np.arange(len(groups))] = 1.0
        work = weights @ self._ran, weights @ self._plain
        return self._sums(groups[self.round_index], count, weights, np.bincount(groups, minlength=count), work)

    def by_row(self, groups: IntArray, count: int) -> list[RoundSums]:
        """Sums by group 0 to `count` - 1; `groups` [N] has the group of each row, -1 for none."""
        known, rounds = groups >= 0, len(self._records)
        index = self.round_index[known]
        pairs = groups[known] * rounds + index
        present = np.bincount(np.unique(pairs) // max(rounds, 1), minlength=count)
        emitted = np.bincount(self.round_index, self._row["emitted"], minlength=rounds)
        # A request spends all of a round's time in it, so each row counts as a round of that row's tokens.
        tokens = self._row["emitted"][known] * self._counts[index] / np.maximum(emitted, 1.0)[index]
        work = (
            self._weights(pairs, np.ones(len(pairs)), count) @ self._ran,
            self._weights(pairs, tokens, count) @ self._plain,
        )
        return self._sums(groups, count, self._weights(pairs, 1.0 / self._counts[index], count), present, work)

    def _weights(self, pairs: IntArray, values: FloatArray, count: int) -> FloatArray:
        """Weights [count, R] of rounds from values of pairs (group, round)."""
        rounds = len(self._records)
        return np.bincount(pairs, values, minlength=count * rounds).astype(np.float64).reshape(count, rounds)

    def _sums(
        self,
        groups: IntArray,
        count: int,
        shares: FloatArray,
        rounds: IntArray,
        work: tuple[FloatArray, FloatArray],
    ) -> list[RoundSums]:
        """Sums from groups of rows [N], shares of rounds [count, R], numbers of rounds [count], `ran` and `plain`."""
        known = groups >= 0
        group, row = groups[known], {name: values[known] for name, values in self._row.items()}

        def total(values: Any) -> Any:
            return np.bincount(group, values, minlength=count)

        def tally(values: IntArray, width: int = 1, where: BoolArray | None = None) -> IntArray:
            """[count, width or more] how often each value occurs."""
            width = max(width, int(values.max(initial=0)) + 1)
            at = group * width + values
            return np.bincount(at if where is None else at[where], minlength=count * width).reshape(count, width)

        drafted = row["drafted"] > 0
        expected = self._expected[known]
        has_expectation = drafted & ~np.isnan(expected)
        reasons = 1 + max(Reason)
        counts: dict[str, Any] = {
            "rows": total(np.ones(len(group))),
            "drafts": total(drafted),
            **{name: total(row[name]) for name in ("drafted", "accepted", "emitted", "nodes")},
            "entropy_count": total(self._entropy_count[known]),
            "accepted_as_expected": total(np.where(has_expectation, row["accepted"], 0)),
        }
        amounts: dict[str, Any] = {
            "entropy_sum": total(self._entropy_sum[known]),
            "expected_accepted": total(np.where(has_expectation, expected, 0.0)),
            **dict(zip(_WORK, (shares @ self._round).T, strict=True)),
        }
        arrays: dict[str, Any] = {
            "depths": tally(row["depths"]),
            "draft_lengths": tally(row["drafted"]),
            "accepted_lengths": tally(row["accepted"]),
            "reasons": tally(row["reasons"], reasons),
            "off_reasons": tally(row["reasons"], reasons, row["depths"] == 0),
            "drafters": self._by_drafter(groups, count),
            "ran": work[0],
            "plain": work[1],
        }
        forecasts = np.tensordot(shares, self._forecasts, 1).tolist()

        def of_group(i: int) -> RoundSums:
            values: dict[str, Any] = {name: int(column[i]) for name, column in counts.items()}
            values |= {name: float(column[i]) for name, column in amounts.items()}
            values |= {name: array[i] for name, array in arrays.items()}
            plain, drafting = (Forecast(*four) for four in forecasts[i])
            return RoundSums(rounds=int(rounds[i]), plain_decoding=plain, drafting=drafting, **values)

        return [of_group(i) for i in range(count)]

    def _round_columns(self) -> FloatArray:
        """[R, columns of `_WORK`] time and work of each round."""
        work = np.zeros((len(self._records), len(_WORK)))
        for line, record in zip(work, self._records, strict=True):
            timing = record.timing
            line[:] = (
                timing.total,
                *((timing.draft, timing.verify) if timing.has_parts else (0.0, 0.0)),
                *(record.prefill_tokens, record.target_tokens, record.draft_steps, record.caught_up),
            )
        return work

    def _forecast_columns(self) -> FloatArray:
        """[R, plain or drafting, fields of `Forecast`] what was expected of each round; 0 in the other kind."""
        forecasts = np.zeros((len(self._records), 2, len(_FORECAST)))
        for kinds, record in zip(forecasts, self._records, strict=True):
            expected, seconds = record.expected, record.timing.total
            if expected is None or record.prefill_tokens or np.isnan(expected.goodput):
                continue
            tokens, compared = expected.goodput * seconds, not np.isnan(expected.other)
            kinds[int(record.depths.any())] = (
                tokens,
                record.emitted.sum(),
                *((tokens, expected.other * seconds) if compared else (0.0, 0.0)),
            )
        return forecasts

    def _entropies(self) -> tuple[FloatArray, IntArray]:
        """Sum and number of the known entropies of each row [N]."""
        records = self._records
        flat = _concatenated([record.entropy.ravel() for record in records])
        widths = np.repeat(np.array([one.entropy.shape[1] for one in records], dtype=np.int64), self._counts)
        rows, known = np.repeat(np.arange(len(widths)), widths), ~np.isnan(flat)
        sums: FloatArray = np.bincount(rows[known], flat[known], minlength=len(widths)).astype(np.float64)
        return sums, np.bincount(rows[known], minlength=len(widths)).astype(np.int64)

    def _proposals(self) -> tuple[IntArray, IntArray, BoolArray]:
        """Of each token that was proposed: its row, the drafter that proposed it, whether it was emitted."""
        starts = np.concatenate(([0], np.cumsum(self._counts)))
        drafted, rows = self._row["drafted"].copy(), np.arange(int(starts[-1]))
        trees = [index for index, record in enumerate(self._records) if record.branches is not None]
        for index in trees:
            drafted[starts[index] : starts[index + 1]] = 0
        owners, first = np.repeat(rows, drafted), np.repeat(drafted.cumsum() - drafted, drafted)
        kept = np.arange(len(owners)) - first < self._row["accepted"][owners]
        parts = [(owners, self._row["drafter"][owners], kept)]
        for index in trees:
            record, branches = self._records[index], self._records[index].branches
            assert branches is not None
            tree, path = branches.tree, branches.path
            emitted = np.minimum(record.accepted, record.emitted)
            nodes = tree.offsets[:-1, None] + path
            of_tree: BoolArray = np.zeros(len(tree.row), dtype=np.bool_)
            of_tree[nodes[np.arange(path.shape[1]) < emitted[:, None]]] = True
            parts.append((starts[index] + tree.row, tree.drafter, of_tree))
        rows_, proposers, kept_ = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows_, proposers, kept_

    def _by_drafter(self, groups: IntArray, count: int) -> IntArray:
        """[count, drafters, columns of `DrafterSums`]."""
        row, used = self._row, (self._row["drafted"] > 0) & (groups >= 0)
        of_nodes = groups[self._owners] >= 0
        width = 1 + max(int(row["drafter"][used].max(initial=-1)), int(self._proposers[of_nodes].max(initial=-1)))

        def total(at: IntArray, drafter: IntArray, values: Any = None) -> IntArray:
            return np.bincount(at * width + drafter, values, minlength=count * width).reshape(count, width)

        of_rows = groups[used], row["drafter"][used]
        of_kept = of_nodes & self._kept
        columns = (
            total(*of_rows),
            total(*of_rows, row["drafted"][used]),
            total(*of_rows, row["accepted"][used]),
            total(groups[self._owners[of_nodes]], self._proposers[of_nodes]),
            total(groups[self._owners[of_kept]], self._proposers[of_kept]),
        )
        return np.stack(columns, axis=2).astype(np.int64)


_WORK = (
    "seconds",
    "draft_seconds",
    "verify_seconds",
    "prefill_tokens",
    "target_tokens",
    "draft_steps",
    "catch_up_tokens",
)
_FORECAST = tuple(one.name for one in fields(Forecast))


def _add(one: Any, other: Any) -> Any:
    """The sum; the shorter array is extended by zeros."""
    if not isinstance(one, np.ndarray) or one.shape == other.shape:
        return one + other
    shape = np.maximum(one.shape, other.shape)
    return sum(np.pad(part, [(0, more) for more in shape - part.shape]) for part in (one, other))


def _column(records: Sequence[RoundRecord], name: str) -> IntArray:
    values = [getattr(record, name) for record in records]
    return np.concatenate(values) if values else np.zeros(0, dtype=np.int64)


def _concatenated(values: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(values) if values else np.zeros(0)
