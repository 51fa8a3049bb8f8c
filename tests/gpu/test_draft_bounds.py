"""Stop tables on the device stop drafts where they do on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision_tables import ENTROPY_BINS, ENTROPY_EDGES, StopEvaluator, StopTable, TemperatureTable
from adaptspec.gpu import draft_bounds
from adaptspec.gpu.draft_bounds import Bounds
from adaptspec.gpu.staging import Block

STEPS = 5
CPU = torch.device("cpu")


def _written(stop: StopTable | None, temperature: TemperatureTable | None, rows: int) -> Bounds:
    block = Block(draft_bounds.layout(rows, STEPS), CPU)
    draft_bounds.write(block.host, stop, temperature, rows)
    block.send()
    return Bounds(*(block.device[name] for name in Bounds._fields))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    more=st.integers(0, 2),
    columns=st.tuples(*[st.integers(1, STEPS)] * 3),
    which=st.tuples(*[st.booleans()] * 3),
)
def test_rows_go_on_as_long_as_on_the_host(
    seed: int, rows: int, more: int, columns: tuple[int, int, int], which: tuple[bool, bool, bool]
) -> None:
    """Tables of fewer columns than steps, of some bounds, and of fewer rows than the round has: the rest never stop."""
    chance = np.random.default_rng(seed)
    parts: dict[str, Any] = {}
    if which[0]:
        parts["confidence"] = chance.uniform(0, 0.6, (rows, columns[0]))
    if which[1]:
        parts["entropy"] = chance.uniform(1, 4, (rows, columns[1]))
    if which[2]:
        shape = rows, columns[2]
        parts |= {"survival": chance.uniform(0, 0.2, shape), "worth": chance.uniform(0.5, 2, shape)}
        parts |= {"step": chance.uniform(0, 0.5, shape), "unstated": chance.uniform(0.2, 1, shape)}
        parts["calibration"] = chance.uniform(0.3, 1, (rows, 10))
    table = StopTable(**parts)
    bounds = _written(table, None, rows + more)
    host, alive = StopEvaluator(table), torch.ones(rows + more)
    asked = torch.ones(rows + more, dtype=torch.bool)
    going = np.ones(rows, dtype=np.bool_)
    for step in range(STEPS):
        sure, spread = chance.uniform(0.02, 0.98, rows + more).astype(np.float32), chance.uniform(0, 4, rows + more)
        index = np.flatnonzero(going)
        if not len(index):
            break
        going[index] = host(step + 1, index, sure[index].astype(np.float64), spread[index])
        asked = bounds.goes_on(
            torch.tensor([step]), asked, torch.from_numpy(sure), torch.from_numpy(spread).float(), alive
        )
        assert asked[:rows].tolist() == going.tolist()
        assert bool(asked[rows:].all())


def test_draft_temperatures_go_by_the_entropy() -> None:
    chance = np.random.default_rng(0)
    table = TemperatureTable(chance.uniform(0.5, 1.5, (3, ENTROPY_BINS)))
    bounds = _written(None, table, 4)
    entropy = np.array([0.05, 0.7, 9.0, 1.0], dtype=np.float32)
    found = bounds.temperatures(torch.tensor(ENTROPY_EDGES), torch.from_numpy(entropy))
    expected = [*table.at(np.arange(3), entropy[:3].astype(np.float64)), 1.0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
