"""Tables of a decision: a stop table is its definition, and rows of different policies share one."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, draft_temperatures, stacked_temperatures

STEPS = 5
BINS = 4  # of calibrations


@st.composite
def tables(draw: st.DrawFn, rows: int, *, priced: bool = False) -> StopTable | None:
    """Any mix of bounds of any width; None stops nothing. Steps cost something where they are `priced`, or, as a line
    through learned seconds may say, less than nothing.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    confidence, entropy, survival, exists = draw(st.tuples(*[st.booleans()] * 4))

    def numbers(exists: bool, maximum: float = 1.0, width: int = 0) -> FloatArray | None:
        width = width or draw(st.integers(1, STEPS))
        return np.asarray(maximum * random.random((rows, width))) if exists else None

    price = draw(st.sampled_from([-0.2, 0.5])) if priced else 0.0

    table = StopTable(
        numbers(confidence, 0.5),
        numbers(entropy, 3.0),
        numbers(survival, 0.3),
        numbers(survival, width=BINS),
        numbers(survival),
        numbers(survival),
        numbers(survival, price),
    )
    return table if exists else None


class Drafted(NamedTuple):
    """What B rows would draft [B, STEPS], with unknown values, and the depths [B] that they are limited to."""

    confidence: FloatArray
    entropy: FloatArray
    depths: IntArray

    def take(self, index: IntArray) -> Drafted:
        return Drafted(self.confidence[index], self.entropy[index], self.depths[index])


def drafted(seed: int, rows: int) -> Drafted:
    random = np.random.default_rng(seed)
    both = random.random((2, rows, STEPS)) * np.array([1.0, 3.0])[:, None, None]
    confidence, entropy = np.where(random.random((2, rows, STEPS)) < 0.15, nan, both)
    return Drafted(confidence, entropy, random.integers(1, STEPS + 1, rows))


def lengths(table: StopTable | None, draft: Drafted) -> list[int]:
    """Tokens that each row drafts, all of them in one round."""
    counts: IntArray = np.zeros(len(draft.depths), dtype=np.int64)
    survival: FloatArray = np.ones(len(counts))
    active = np.arange(len(counts))
    for step in range(1, STEPS + 1):
        counts[active] = step
        active = active[draft.depths[active] > step]
        if table is not None and len(active):
            confidence, entropy = draft.confidence[active, step - 1], draft.entropy[active, step - 1]
            survival[active] *= table.chances(step, active, confidence)
            active = active[table.continues(step, active, confidence, entropy, survival=survival[active])]
    return list(counts.tolist())


def bound(table: StopTable, name: str, row: int, step: int) -> float | None:
    """One value of a table; its last column holds for all later tokens."""
    values = getattr(table, name)
    return None if values is None else float(values[row, min(step, values.shape[1]) - 1])


def chance(table: StopTable, row: int, step: int, confidence: float) -> float:
    """P(a row's token is accepted), from the definition."""
    if table.calibration is None:
        return 1.0
    if isnan(confidence):
        unstated = bound(table, "unstated", row, step)
        assert unstated is not None
        return unstated
    return float(table.calibration[row, min(int(confidence * BINS), BINS - 1)])


class Last(NamedTuple):
    """The last token of a path, and P(all tokens of it are accepted)."""

    row: int
    confidence: float
    entropy: float
    survival: float
    main: bool = True


def continues(table: StopTable, step: int, tokens: Sequence[Last]) -> list[bool]:
    """After which tokens at one depth drafting goes on, from the definition, token by token."""
    gains: dict[int, float] = {}
    prices = [bound(table, "step", token.row, step) for token in tokens]
    for i, (row, confidence, entropy, survival, main) in enumerate(tokens):
        lower, upper, minimum = (bound(table, name, row, step) for name in ("confidence", "entropy", "survival"))
        if (lower is not None and confidence < lower) or (upper is not None and entropy > upper):
            continue
        price = prices[i]
        if not main and price is None:
            continue
        if minimum is None:
            gains[i] = 0.0
            continue
        worth, next_token = bound(table, "worth", row, step), bound(table, "unstated", row, 1)
        assert worth is not None
        assert next_token is not None
        # Off the main chain at most the next token counts.
        gain = (survival - minimum) * worth if main else survival * min(worth, next_token) - minimum * worth
        if (survival - minimum if main else gain) > 0.0:
            gains[i] = gain
    total = sum(gains.values())
    return [i in gains and (price is None or total > price) for i, price in enumerate(prices)]


def by_definition(table: StopTable | None, draft: Drafted) -> list[int]:
    """`lengths` from the definition."""
    rows = len(draft.depths)
    counts, active, survival = [0] * rows, list(range(rows)), [1.0] * rows
    for step in range(1, STEPS + 1):
        for row in active:
            counts[row] = step
        active = [row for row in active if draft.depths[row] > step]  # a step is shared by the rows that may take it
        if table is None:
            continue
        tokens = []
        for row in active:
            confidence = float(draft.confidence[row, step - 1])
            survival[row] *= chance(table, row, step, confidence)
            tokens.append(Last(row, confidence, float(draft.entropy[row, step - 1]), survival[row]))
        active = [row for row, goes in zip(active, continues(table, step, tokens), strict=True) if goes]
    return counts


@given(data=st.data(), rows=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_a_table_is_its_definition(data: st.DataObject, rows: int, seed: int) -> None:
    """Alone and where rows share a step, in a batch that shrinks as they stop."""
    table = data.draw(tables(rows, priced=True))
    draft = drafted(seed, rows)
    assert lengths(table, draft) == by_definition(table, draft)


LAST = st.tuples(
    st.just(nan) | st.floats(0.0, 1.0), st.just(nan) | st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.booleans()
)


@given(
    data=st.data(), rows=st.integers(1, 3), step=st.integers(1, STEPS), values=st.lists(LAST, min_size=1, max_size=8)
)
def test_nodes_off_main_chains_go_on_only_by_the_price_of_a_step(
    data: st.DataObject, rows: int, step: int, values: list[tuple[float, float, float, bool]]
) -> None:
    """All nodes of one depth share a step. A row without a price goes on from its main chain only."""
    parts = [(np.array([row]), data.draw(tables(1, priced=True))) for row in range(rows)]
    table = StopTable.stacked(parts, rows) or StopTable()
    tokens = [Last(data.draw(st.integers(0, rows - 1)), *line) for line in values]
    row, confidence, entropy, survival, main = (np.array(column) for column in zip(*tokens, strict=True))
    goes = table.continues(step, row, confidence, entropy, survival=survival, main=main)
    assert goes.tolist() == continues(table, step, tokens)
    has_price = np.array([part is not None and part.step is not None for _, part in parts])
    assert not goes[~main & ~has_price[row]].any()
    chains = table.continues(step, row[main], confidence[main], entropy[main], survival=survival[main])
    assert chains.tolist() == continues(table, step, [token for token in tokens if token.main])


@given(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_rows_of_different_rules_in_one_table_stop_as_in_their_own(
    data: st.DataObject, sizes: list[int], seed: int
) -> None:
    """Whatever bounds the others have, and however their rows are mixed, where shared steps are free."""
    rows = sum(sizes)
    order = np.random.default_rng(seed).permutation(rows)
    indices = [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
    parts = [(index, data.draw(tables(len(index)))) for index in indices]
    whole = StopTable.stacked(parts, rows)
    draft = drafted(seed, rows)
    together = lengths(whole, draft)
    for index, table in parts:
        assert [together[i] for i in index.tolist()] == lengths(table, draft.take(index))
        assert whole is None or lengths(whole.take(index), draft.take(index)) == lengths(table, draft.take(index))
    assert (whole is None) == all(table is None for _, table in parts)
    again = StopTable.stacked([(index, whole) for index in indices], rows)  # tables of all rows, each for some of them
    assert lengths(again, draft) == together


def test_draft_temperatures_rise_with_the_entropy_up_to_two_nats() -> None:
    ends = np.array([[0.5, 1.5]] * 4 + [[0.8, 0.8]])
    assert draft_temperatures(ends, np.array([0.0, 0.5, 2.0, 9.0, 1.0])).tolist() == [0.5, 0.75, 1.5, 1.5, 0.8]


def test_policies_in_one_round_keep_their_own_temperatures() -> None:
    fixed, dynamic = np.array([[0.8, 0.8]] * 2), np.array([[0.5, 1.5]])
    both = stacked_temperatures([(np.array([0, 2]), fixed), (np.array([1]), dynamic), (np.array([3]), None)], 4)
    assert both is not None
    assert both.tolist() == [[0.8, 0.8], [0.5, 1.5], [0.8, 0.8], [1.0, 1.0]]
    assert stacked_temperatures([(np.arange(4), None)], 4) is None
