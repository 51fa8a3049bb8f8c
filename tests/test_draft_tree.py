"""`DraftTree`: every operation on packed nodes gives what the same operation on lists of nodes gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray
from adaptspec.draft_tree import DraftTree, matching_path
from tests.draft_trees import VOCAB, Node, Row, assert_equal, batches, pack

DISTRIBUTION = st.booleans()


def masks(data: st.DataObject, rows: list[Row]) -> list[list[bool]]:
    """Any choice among the nodes of each row."""
    return [data.draw(st.lists(st.booleans(), min_size=len(row.nodes), max_size=len(row.nodes))) for row in rows]


@given(rows=batches())
def test_rows_and_indices_of_nodes(rows: list[Row]) -> None:
    tree = pack(rows)
    assert tree.counts.tolist() == [len(row.nodes) for row in rows]
    assert tree.row.tolist() == [i for i, row in enumerate(rows) for _ in row.nodes]
    assert tree.index.tolist() == [node for row in rows for node in range(len(row.nodes))]
    assert tree.depths.tolist() == [max((len(row.path(n)) for n in range(len(row.nodes))), default=0) for row in rows]
    assert tree.branched == any(len(row.nodes) > row.chain for row in rows)
    for i, row in enumerate(rows):
        assert tree.token[tree.row_nodes(i)].tolist() == [node.token for node in row.nodes]


@given(rows=batches())
def test_packed_positions_are_each_rows_newest_token_and_its_nodes(rows: list[Row]) -> None:
    """Node n of row b has position n + b + 1."""
    tree = pack(rows)
    paths = tree.path_tokens()
    assert paths == [row.tokens(node) for row in rows for node in range(-1, len(row.nodes))]
    for n, b in enumerate(tree.row.tolist()):
        assert len(paths[n + b + 1]) == tree.depth[n]


@given(rows=batches())
def test_a_node_sees_its_ancestors_and_itself(rows: list[Row]) -> None:
    tree = pack(rows)
    for i, row in enumerate(rows):
        size = len(row.nodes) + 1
        expected: BoolArray = np.zeros((size, size), dtype=np.bool_)
        for node in range(-1, len(row.nodes)):
            expected[node + 1, [0, *(number + 1 for number in row.path(node))]] = True
        visible = tree.visible(i)
        if visible is None:
            assert len(row.nodes) == row.chain
            visible = np.tri(size, dtype=np.bool_)
        np.testing.assert_array_equal(visible, expected)


@given(rows=batches())
def test_leaf_paths_end_at_nodes_without_children(rows: list[Row]) -> None:
    tree = pack(rows)
    for i, row in enumerate(rows):
        parents = {node.parent for node in row.nodes}
        leaves = [node for node in range(len(row.nodes)) if node not in parents]
        assert tree.leaf_paths(i) == [row.path(node) for node in leaves]


@given(rows=batches(), text=st.lists(st.integers(0, VOCAB - 1), max_size=6))
def test_a_matching_path_follows_a_text_and_takes_the_first_of_equal_siblings(rows: list[Row], text: list[int]) -> None:
    tree = pack(rows)
    for i, row in enumerate(rows):
        expected: list[int] = []
        for token in text:
            wanted = (expected[-1] if expected else -1, token)
            found = [number for number, node in enumerate(row.nodes) if (node.parent, node.token) == wanted]
            if not found:
                break
            expected.append(found[0])
        assert matching_path(tree.children(i), text) == expected


@given(rows=batches(), depth=st.none() | st.integers(0, 6))
def test_values_on_main_chains_are_padded(rows: list[Row], depth: int | None) -> None:
    """Without a depth the lines are as long as the longest main chain."""
    tree = pack(rows)
    width = max(row.chain for row in rows) if depth is None else depth
    expected = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        for node in range(min(row.chain, width)):
            expected[i, node] = row.nodes[node].entropy
    np.testing.assert_array_equal(tree.on_chain(tree.entropy, depth), expected)


@given(data=st.data(), rows=batches(), distribution=DISTRIBUTION)
def test_take_gives_rows_in_any_order_and_number(data: st.DataObject, rows: list[Row], distribution: bool) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    taken = pack(rows, distribution=distribution).take(np.array(index, dtype=np.int64))
    assert_equal(taken, pack([rows[i] for i in index], distribution=distribution))


@given(data=st.data(), rows=batches(), distribution=DISTRIBUTION)
def test_keep_drops_the_descendants_of_dropped_nodes(data: st.DataObject, rows: list[Row], distribution: bool) -> None:
    """A main chain ends at its first dropped node; other nodes keep their order."""
    kept = masks(data, rows)
    tree = pack(rows, distribution=distribution)
    expected = [row.keep(mask) for row, mask in zip(rows, kept, strict=True)]
    mask = np.array([keep for line in kept for keep in line], dtype=np.bool_)
    assert_equal(tree.keep(mask), pack(expected, distribution=distribution))
    assert_equal(tree, pack(rows, distribution=distribution))  # it is a copy


@given(data=st.data(), rows=batches(), distribution=DISTRIBUTION)
def test_first_nodes_and_main_chains(data: st.DataObject, rows: list[Row], distribution: bool) -> None:
    tree = pack(rows, distribution=distribution)
    counts = data.draw(st.lists(st.integers(0, 10), min_size=len(rows), max_size=len(rows)))
    expected = [row.keep([node < n for node in range(len(row.nodes))]) for row, n in zip(rows, counts, strict=True)]
    assert_equal(tree.first(np.array(counts)), pack(expected, distribution=distribution))
    chains = [row.keep([node < row.chain for node in range(len(row.nodes))]) for row in rows]
    assert_equal(tree.main_chains(), pack(chains, distribution=distribution))


@given(data=st.data(), rows=batches())
def test_merged_parts_are_one_draft(data: st.DataObject, rows: list[Row]) -> None:
    """Each row has the nodes of one part. Tokens of a part without a distribution become point masses."""
    count = data.draw(st.integers(1, 3))
    sampled = [data.draw(st.booleans()) for _ in range(count)]
    part_of = [data.draw(st.integers(0, count - 1)) for _ in rows]
    parts = [
        pack([row if part_of[i] == part else Row() for i, row in enumerate(rows)], distribution=sampled[part])
        for part in range(count)
    ]

    def point_mass(node: Node) -> Node:
        return replace(node, distribution=tuple(float(token == node.token) for token in range(VOCAB)))

    expected = [
        row if sampled[part] else replace(row, nodes=tuple(map(point_mass, row.nodes)))
        for row, part in zip(rows, part_of, strict=True)
    ]
    assert_equal(DraftTree.merged(parts), pack(expected, distribution=any(sampled)))


@given(data=st.data(), counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), per_row=st.booleans())
def test_chains_from_padded_arrays(data: st.DataObject, counts: list[int], per_row: bool) -> None:
    """One node at each depth, of rank 0; confidence and entropy are NaN where they are not given."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = len(counts), max(counts)
    tokens, confidence, entropy = random.integers(0, VOCAB, shape), random.random(shape), random.random(shape)
    drafter = random.integers(0, 3, len(counts)) if per_row else np.full(len(counts), 2)
    rows = [
        [
            Node(n - 1, int(tokens[i, n]), 0, int(drafter[i]), float(confidence[i, n]), float(entropy[i, n]))
            for n in range(count)
        ]
        for i, count in enumerate(counts)
    ]
    expected = pack([Row(tuple(nodes), len(nodes)) for nodes in rows])
    chosen = drafter if per_row else 2
    tree = DraftTree.from_chains(tokens, np.array(counts), confidence, entropy, drafter=chosen)
    assert_equal(tree, expected)
    unknown = np.full(len(expected.token), np.nan)
    bare = DraftTree.from_chains(tokens, np.array(counts), drafter=chosen)
    assert_equal(bare, replace(expected, confidence=unknown, entropy=unknown))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_empty_draft_has_rows_and_no_nodes(rows: int) -> None:
    tree = DraftTree.empty(rows)
    assert_equal(tree, pack([Row()] * rows))
    assert tree.path_tokens() == [[]] * rows
    assert tree.on_chain(tree.confidence).shape == (rows, 0)
    assert_equal(tree.take(np.arange(rows)[::-1]), tree)
    assert_equal(tree.first(np.full(rows, 2)), tree)
