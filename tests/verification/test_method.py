"""Methods by name, the noise of the token after a draft, and walks through trees along the target's tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.errors import ConfigError
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification import METHODS, make_method
from adaptspec.verification.method import Positions, accepted_run, node_parents, position_starts, walk
from tests.draft_trees import Row, batches, pack

from .tables import VOCAB, chain_draft, make_rows


def _drawn_from(method: str, p: FloatArray, q: FloatArray, tokens: list[int], accepted: int) -> FloatArray:
    """Weights [V] that the token after `accepted` drafted ones is drawn with, by the definitions in `rejection.py`.

    `p` [n + 1, V] and `q` [n, V] are the distributions that the `tokens` [n] were judged by.
    """
    if accepted == len(tokens) or method not in ("rejection", "block"):
        return np.asarray(p[accepted])
    weight = 1.0
    if method == "block":
        for n, token in enumerate(tokens[:accepted]):
            weight = min(1.0, weight * p[n, token] / q[n, token])
    return np.asarray(np.maximum(weight * p[accepted] - q[accepted], 0.0))


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 4), min_size=1, max_size=5), point=st.booleans())
def test_the_token_after_a_draft_has_the_noise_of_its_position_alone(
    name: str, seed: int, counts: list[int], point: bool
) -> None:
    """Plain decoding draws the correction or bonus with the same noise, whatever was drafted."""
    random, deepest = np.random.default_rng(seed), max(counts)
    rows = make_rows(SamplingParams(), random.integers(0, 2**40, len(counts)).tolist())
    for row in rows:
        row.tokens.extend(random.integers(0, VOCAB, int(random.integers(0, 3))).tolist())
    tokens = random.integers(0, VOCAB, (len(counts), deepest))
    q = np.eye(VOCAB)[tokens] if point else random.dirichlet(np.ones(VOCAB), tokens.shape)
    draft = chain_draft(tokens, None if point else q.astype(np.float32), counts)
    p = random.dirichlet(np.full(VOCAB, 2.0), sum(counts) + len(counts))
    logits = torch.from_numpy(np.log(p)).float()
    result = make_method(name).verify(logits, draft, SamplingBatch(rows, VOCAB))
    start = 0
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        drafted, accepted = tokens[i, :count].tolist(), int(result.accepted[i])
        weights = _drawn_from(name, p[start : start + count + 1], q[i], drafted, accepted)
        alone = replace(row, tokens=[*row.tokens, *drafted[:accepted]])
        here = np.zeros(1, dtype=np.int64)
        with np.errstate(divide="ignore"):
            scores = np.log(weights).astype(np.float32)[None]
        noisy = SamplingBatch([alone], VOCAB).perturbed(scores, here, here)[0]
        assert noisy[int(result.next_token[i])] >= noisy.max() - 1e-3, (i, accepted, count)
        start += count + 1


def _walked(row: Row, choices: list[int]) -> list[int]:
    """The nodes of one row with the target's tokens after its newest token and after each node."""
    path: list[int] = []
    while True:
        parent = path[-1] if path else -1
        children = [node for node, drafted in enumerate(row.nodes) if drafted.parent == parent]
        found = [node for node in children if row.nodes[node].token == choices[parent + 1]]
        if not found:
            return path
        path.append(found[0])


@given(data=st.data(), rows=batches(min_rows=0, vocab=2))
def test_a_walk_follows_the_targets_tokens_as_far_as_they_were_drafted(data: st.DataObject, rows: list[Row]) -> None:
    """Of equal siblings the first counts; the target's token after the last accepted node is the next one."""
    tree = pack(rows)
    size = len(tree.token) + len(rows)
    choices = np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), dtype=np.int64)
    result = walk(tree, choices)
    assert result.choices is choices
    start = 0
    for i, row in enumerate(rows):
        line = choices[start : start + len(row.nodes) + 1].tolist()
        path = _walked(row, line)
        next_token = line[path[-1] + 1 if path else 0]
        assert result.accepted[i] == len(path)
        assert result.nodes(i) == path
        assert result.path[i].tolist() == path + [-1] * (result.path.shape[1] - len(path))
        assert result.tokens(tree, i) == [*(row.nodes[node].token for node in path), next_token]
        start += len(line)
    assert result.path.shape == (len(rows), result.accepted.max(initial=0))


@given(rows=batches())
def test_packed_positions_by_row_and_by_node(rows: list[Row]) -> None:
    tree = pack(rows)
    positions = Positions.of(tree)
    nodes = [(i, node) for i, row in enumerate(rows) for node in range(-1, len(row.nodes))]
    assert positions.row.tolist() == [i for i, _ in nodes]
    assert positions.depth.tolist() == [len(rows[i].path(node)) for i, node in nodes]
    assert [nodes[position] for position in position_starts(tree)] == [(i, -1) for i in range(len(rows))]
    parents = [(i, drafted.parent) for i, row in enumerate(rows) for drafted in row.nodes]
    assert [nodes[position] for position in node_parents(tree)] == parents


@given(rows=st.lists(st.lists(st.booleans(), max_size=4), min_size=1, max_size=5))
def test_an_accepted_run_ends_before_the_first_token_that_fails(rows: list[list[bool]]) -> None:
    counts = [len(passed) for passed in rows]
    draft = chain_draft(np.zeros((len(rows), max(counts)), dtype=np.int64), counts=counts)
    passed = np.array([one for line in rows for one in line], dtype=np.bool_)
    assert accepted_run(draft, passed).tolist() == [[*line, False].index(False) for line in rows]


def test_every_method_has_its_name_and_lossiness() -> None:
    lossy = {name: make_method(name).lossy for name in METHODS}
    assert lossy == {"coupled": False, "rejection": False, "block": False, "threshold": True, "typical": True}
    assert all(make_method(name).name == name for name in METHODS)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'copuled'; use one of: block, coupled, rejection, threshold, typical"):
        make_method("copuled")


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="'coupled' cannot be built with high"):
        make_method("coupled", {"high": 0.5})
