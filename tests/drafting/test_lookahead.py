"""Lookahead: lanes collect n-grams of the target's choices, and drafts are these n-grams."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.decision import TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import DraftJob, NodeChoices
from adaptspec.drafting.lookahead import LookaheadDrafter
from adaptspec.models.sampling import SamplingBatch
from tests.fakes import array
from tests.trees import tree_of

NO_SAMPLING = SamplingBatch([], 32)


def _table(nodes: int) -> TreeTable:
    return TreeTable(array(32), array(nodes), np.zeros(1), np.ones((1, 1, 1)))


def _propose(drafter: LookaheadDrafter, tokens: list[int], depth: int = 7, nodes: int = 48) -> DraftTree:
    return drafter.propose(DraftJob(array(0), [tokens], array(depth), NO_SAMPLING, tree=_table(nodes))).tree


def _target(text: list[int]) -> int:
    """The target's next token."""
    return (text[-1] + 1) % 9


def _decode(drafter: LookaheadDrafter, text: list[int], rounds: int) -> list[int]:
    """Tokens accepted in each round."""
    accepted = []
    for _ in range(rounds):
        tree = _propose(drafter, text)
        choices = NodeChoices(tree, 0, [_target([*text, *path]) for path in tree.path_tokens()])
        drafter.observe(0, choices)
        new = [_target(text)]
        while choices.after(new) is not None:
            new.append(_target([*text, *new]))
        accepted.append(len(new) - 1)
        text += new
    return accepted


def test_lanes_learn_how_the_target_goes_on() -> None:
    """Where the next token depends on the last one alone, at least three tokens a round are accepted after a while."""
    assert min(_decode(LookaheadDrafter(), [3, 7, 1], 30)[-10:]) >= 3


def test_a_draft_keeps_to_its_depth_and_limit_and_a_freed_row_is_forgotten() -> None:
    drafter = LookaheadDrafter()
    _decode(drafter, [3, 7, 1], 10)
    tree = _propose(drafter, [3, 7, 1], depth=3, nodes=5)
    assert tree.counts.tolist() == [5]
    assert tree.depths.tolist() == [3]
    drafter.leave(0)
    assert drafter.look_up(0, [3, 7, 1], 7) == pytest.approx([np.nan], nan_ok=True)


@pytest.mark.parametrize("depth", range(1, 8))
def test_no_node_is_spent_on_a_lane_that_cannot_grow(depth: int) -> None:
    """Each submitted lane gains a token from the target, so that no path to a leaf is submitted twice."""
    drafter, before = LookaheadDrafter(), set[tuple[int, ...]]()
    _propose(drafter, [3, 7, 1], depth)
    for number in range(8):
        tree = _propose(drafter, [3, 7, 1, 2], depth)  # lanes have no 2, so no n-gram continues it
        paths = tree.path_tokens()
        leaves = {tuple(paths[path[-1] + 1]) for path in tree.leaf_paths(0)}
        assert bool(leaves) == (depth >= 3)
        assert not leaves & before
        drafter.observe(0, NodeChoices(tree, 0, [9 + (number + node) % 20 for node in range(len(paths))]))
        before = leaves


def test_choices_are_found_by_the_tokens_before_them() -> None:
    """None where the path was not drafted, or where the target's token is unknown."""
    tree = tree_of([-1, 0, -1], tokens=[4, 5, 6])
    choices = NodeChoices(tree, 0, [6, 7, -1, 8])
    found = [choices.after(path) for path in ([], [4], [4, 5], [6], [5], [4, 6])]
    assert found == [6, 7, None, 8, None, None]
