"""Tables in numpy: a row goes by its own line, whoever is beside it, and one row alone is judged as in a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import RowStop, StopEvaluator, StopTable, draft_temperatures, stacked_temperatures

NAN = float("nan")
STEPS = 5


@st.composite
def tables(draw: st.DrawFn, rows: int, *, shared: bool = False) -> StopTable | None:
    """Any mix of bounds, as wide as they like; None stops nothing. Steps cost something where they are `shared`."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    confidence, entropy, survival, there = draw(st.tuples(*[st.booleans()] * 4))

    def numbers(there: bool, most: float = 1.0, width: int = 0) -> FloatArray | None:
        width = width or draw(st.integers(1, STEPS))
        return np.asarray(most * random.random((rows, width))) if there else None

    table = StopTable(
        numbers(confidence, 0.5),
        numbers(entropy, 3.0),
        numbers(survival, 0.3),
        numbers(survival, width=4),
        numbers(survival),
        numbers(survival),
        numbers(survival, 0.5 if shared else 0.0),
    )
    return table if there else None


def taken(table: StopTable, at: IntArray) -> StopTable:
    return StopTable(**{name: values[at] for name, values in table.columns().items()})


def stated(seed: int, rows: int) -> tuple[FloatArray, FloatArray]:
    """Confidences and entropies [rows, STEPS] of what is drafted, some of them unknown."""
    random = np.random.default_rng(seed)
    both = random.random((2, rows, STEPS)) * np.array([1.0, 3.0])[:, None, None]
    return tuple(np.where(random.random((2, rows, STEPS)) < 0.15, NAN, both))


def lengths(table: StopTable | None, sure: FloatArray, spread: FloatArray) -> list[int]:
    """Tokens that each row drafts, all of them in one round."""
    drafted: IntArray = np.zeros(len(sure), dtype=np.int64)
    active, step = np.arange(len(sure)), 0
    stop = None if table is None else StopEvaluator(table)
    while len(active) and step < STEPS:
        step += 1
        drafted[active] = step
        if stop is not None:
            active = active[stop(step, active, sure[active, step - 1], spread[active, step - 1])]
    return list(drafted.tolist())


def by_definition(table: StopTable | None, sure: FloatArray, spread: FloatArray) -> list[int]:
    """The same from the definition, number by number."""
    rows = len(sure)
    if table is None:
        return [STEPS] * rows

    def bound(name: str, row: int, at: int) -> float | None:
        values = getattr(table, name)
        return None if values is None else float(values[row, min(at, values.shape[1] - 1)])

    drafted, going, alive = [0] * rows, set(range(rows)), [1.0] * rows
    for at in range(STEPS):
        earning = {}
        for row in list(going):
            drafted[row] += 1
            confidence, entropy = float(sure[row, at]), float(spread[row, at])
            floor, ceiling, least = (bound(name, row, at) for name in ("confidence", "entropy", "survival"))
            if (floor is not None and confidence < floor) or (ceiling is not None and entropy > ceiling):
                going.discard(row)
            if least is not None and table.calibration is not None:
                bins = table.calibration[row].tolist()
                unstated = bound("unstated", row, at)
                assert unstated is not None
                alive[row] *= unstated if np.isnan(confidence) else bins[min(int(confidence * len(bins)), 3)]
                earning[row] = max(alive[row] - least, 0.0) * (bound("worth", row, at) or 0.0)
                if alive[row] <= least:
                    going.discard(row)
        together = sum(earning.values())
        going -= {row for row in earning if together <= (bound("step", row, at) or 0.0)}
    return drafted


@given(data=st.data(), rows=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_a_table_is_its_definition(data: st.DataObject, rows: int, seed: int) -> None:
    """Row by row, and where rows share a step, in a batch that shrinks as they stop."""
    table = data.draw(tables(rows, shared=True))
    sure, spread = stated(seed, rows)
    assert lengths(table, sure, spread) == by_definition(table, sure, spread)


@given(data=st.data(), rows=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_a_row_alone_takes_a_short_way_to_the_same(data: st.DataObject, rows: int, seed: int) -> None:
    table = data.draw(tables(rows, shared=True))
    sure, spread = stated(seed, rows)
    if table is None:
        return
    for row in range(rows):
        stop, at = table.begin(np.array([row])), np.array([row])
        assert isinstance(stop, RowStop)
        going = [stop(j + 1, at, sure[row, j : j + 1], spread[row, j : j + 1]).item() for j in range(STEPS)]
        mine = taken(table, at)
        assert [*going, False].index(False) + 1 == lengths(mine, sure[at], spread[at])[0] + all(going)


@given(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_rows_of_different_rules_in_one_table_do_as_each_alone(
    data: st.DataObject, sizes: list[int], seed: int
) -> None:
    """Whatever bounds the others have, and however their rows are mixed; as far as steps cost nothing to share."""
    rows = sum(sizes)
    order = np.random.default_rng(seed).permutation(rows)
    places = [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
    parts = [(at, data.draw(tables(len(at)))) for at in places]
    whole = StopTable.stacked(parts, rows)
    sure, spread = stated(seed, rows)
    together = lengths(whole, sure, spread)
    for at, table in parts:
        assert [together[i] for i in at.tolist()] == lengths(table, sure[at], spread[at])
    assert (whole is None) == all(table is None for _, table in parts)
    again = StopTable.stacked([(at, whole) for at in places], rows)  # tables of all rows, each for its own
    assert lengths(again, sure, spread) == together


def test_draft_temperatures_rise_with_the_entropy_up_to_two_nats() -> None:
    ends = np.array([[0.5, 1.5]] * 4 + [[0.8, 0.8]])
    assert draft_temperatures(ends, np.array([0.0, 0.5, 2.0, 9.0, 1.0])).tolist() == [0.5, 0.75, 1.5, 1.5, 0.8]


def test_policies_in_one_round_keep_their_own_temperatures() -> None:
    fixed, dynamic = np.array([[0.8, 0.8]] * 2), np.array([[0.5, 1.5]])
    both = stacked_temperatures([(np.array([0, 2]), fixed), (np.array([1]), dynamic), (np.array([3]), None)], 4)
    assert both is not None
    assert both.tolist() == [[0.8, 0.8], [0.5, 1.5], [0.8, 0.8], [1.0, 1.0]]
    assert stacked_temperatures([(np.arange(4), None)], 4) is None
