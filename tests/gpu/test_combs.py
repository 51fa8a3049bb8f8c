"""Drafts that branch on the device have the nodes of those that grow on the host, in their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision_tables import TreeTable
from adaptspec.drafting.submitted_nodes import submitted
from adaptspec.drafting.tree_growth import RowTree
from adaptspec.gpu.combs import WIDTH, Candidates, Comb, layout, shape_of, write
from adaptspec.gpu.staging import Block

STEPS, PLACES, CPU = 5, 24, torch.device("cpu")


def _table(chance: np.random.Generator, rows: int) -> TreeTable:
    """Chances are sixteenths, so that float32 has their products exactly, and many are equal."""
    ranks, bins = int(chance.integers(1, WIDTH + 2)), int(chance.choice([1, 10, 100]))
    width, nodes = chance.integers(1, WIDTH + 3, rows), chance.integers(1, 20, rows)
    floor = chance.integers(0, 4, rows) / 64
    return TreeTable(width, nodes, floor, chance.integers(0, 17, (rows, ranks, bins)) / 16)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 3), more=st.integers(0, 2))
def test_a_comb_is_the_hosts(seed: int, rows: int, more: int) -> None:
    """Of rows whose chains end somewhere, and of some that draft nothing; candidates may be removed or no numbers."""
    chance = np.random.default_rng(seed)
    table, every = _table(chance, rows), rows + more
    counts = np.append(table.within(chance.integers(1, STEPS + 1, rows)), np.zeros(more, dtype=np.int64))
    sure = (chance.integers(0, 100, (STEPS, every, WIDTH)).astype(np.float32) + 0.5) / 100
    sure[chance.random(sure.shape) < 0.1] = chance.choice([0.0, np.nan])
    tokens = chance.permutation(STEPS * every * WIDTH).reshape(STEPS, every, WIDTH)
    block = Block(layout(every), CPU)
    write(block.host, table, np.append(table.nodes, np.zeros(more, dtype=np.int64)))
    block.send()
    comb, found = Comb.of(block.device, every), Candidates(every, STEPS, CPU)
    result = {name: torch.zeros(every, PLACES) for name in ("confidence", "entropy")}
    result |= {name: torch.zeros(every, PLACES, dtype=torch.int64) for name in ("drafted", "picks")}
    result |= {
        "nodes": torch.zeros(every, dtype=torch.int64),
        "ways": torch.zeros(every, PLACES + 1, dtype=torch.int64),
    }
    result["counts"] = torch.from_numpy(counts)
    trees = [RowTree(table, None, row, STEPS, 0) for row in range(rows)]
    for step in range(STEPS):
        asked = torch.from_numpy(counts > step)
        told = {"drafted": tokens[step, :, 0], "confidence": sure[step, :, 0], "entropy": np.full(every, step)}
        for name, values in told.items():
            result[name][asked, step] = torch.from_numpy(values)[asked].to(result[name])
        given = torch.from_numpy(tokens[step]), torch.from_numpy(sure[step])
        found.beside(*given, comb, asked, torch.tensor([step]))
        for tree in trees:
            if asked[tree.row]:
                own = zip(tokens[step, tree.row].tolist(), sure[step, tree.row].tolist(), strict=True)
                tree.submit(tree.main[-1] if tree.main else -1, own, float(step))
    found.follow(comb, result)
    draft, picks = submitted(trees, every), result["picks"].numpy()
    shape = shape_of(picks, counts, np.zeros(every, dtype=np.int64))
    assert result["nodes"].tolist() == draft.counts.tolist()
    assert (shape is None) == (draft.tree is None)
    for row, count in enumerate(draft.counts.tolist()):
        for name, values in (("drafted", draft.tokens), ("confidence", draft.confidence), ("entropy", draft.entropy)):
            np.testing.assert_array_equal(result[name][row, :count].numpy(), values[row, :count])
        if shape is not None and draft.tree is not None:
            assert shape.parents[row, :count].tolist() == draft.tree.parents[row, :count].tolist()
            assert shape.ranks[row, :count].tolist() == draft.tree.ranks[row, :count].tolist()
            assert result["ways"][row, 1 : count + 1].tolist() == draft.tree.depths[row, :count].tolist()
    for tree in trees:
        chain, best = len(tree.main), tree.best()
        mine = found.chances.flatten(1)[tree.row, picks[tree.row, chain : len(best)]]
        assert mine.tolist() == [tree.chance[number] for number in best[chain:]]


@pytest.mark.parametrize("bins", [1, 10])
def test_what_no_row_asks_for_is_a_chain(bins: int) -> None:
    one = np.ones(2, dtype=np.int64)
    block = Block(layout(3), CPU)
    write(block.host, TreeTable(one, one * 9, np.zeros(2), np.ones((2, 1, bins))), one * 9)
    block.send()
    comb = Comb.of(block.device, 3)
    assert not comb.likely(torch.ones(3, WIDTH - 1)).any()
