"""How wide passes of rounds are: as many tiles as their tokens need, however deep a draft may be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.bench.random_models import TINY, random_decoder
from adaptspec.engine import device_laps
from adaptspec.engine.device_laps import DeviceLaps
from adaptspec.gpu.device_decoder import TILES, DeviceDecoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.models.layers import Linear
from tests.gpu import pretend_queue
from tests.gpu.pretend import PretendCuda

ROWS = 100


@pytest.fixture(scope="module")
def target() -> DeviceDecoder:
    return random_decoder(TINY.target, torch.device("cpu"), rows=ROWS, cached=ROWS * 64, context=64, seed=0)


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, ROWS), depth=st.integers(0, 12), deepest=st.integers(1, 16))
def test_passes_are_no_wider_than_they_need(target: DeviceDecoder, count: int, depth: int, deepest: int) -> None:
    """Products of plain decoding are one tile, of drafts a few, whatever policies may ask for at most."""
    depth, products = min(depth, deepest), Counter[int]()
    multiply: Any = Linear.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_laps, "TURNS", 1)
        laps = DeviceLaps([target], ROWS, deepest + 1)
        patch.setattr(Linear, "__call__", lambda *x: (products.update([len(x[1])]), multiply(*x))[1])
        assert laps.seconds(count, 16, depth + 1) is not None
    tile = TILES[0] if count <= TILES[0] else 128
    assert set(products) == {tile}
    tiles = products[tile] / (2 * 4 * len(target._weights.layers))  # of two rounds, four products in a layer
    needed = -(-count * (depth + 1) // tile)
    assert needed <= tiles <= (needed if needed <= 4 else 4 / 3 * needed)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, ROWS), deepest=st.integers(1, 16), drawn=st.data())
def test_branches_get_what_the_pass_has_room_for(
    target: DeviceDecoder, rows: int, deepest: int, drawn: st.DataObject
) -> None:
    """And no more: the pass of chains and branches is the one that chains take anyway."""
    rounds = DeviceRounds(target, None, rows, deepest, ())
    chains = np.array(drawn.draw(st.lists(st.integers(0, deepest), min_size=1, max_size=rows)))
    tokens, bucket = int(chains.sum()) + len(chains), rounds._bucket(len(chains))
    spare = rounds.spare(chains)
    assert spare >= 0
    assert {rounds._width(tokens + more, bucket) for more in (0, spare)} == {tokens + spare}
    assert rounds._width(tokens, bucket) <= rounds._most(bucket)


def test_what_comes_before_the_plan_is_drafting_if_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model catches up then: it is no overhead of every round that drafts."""
    now = [0.0]
    monkeypatch.setattr(pretend_queue, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with PretendCuda(), torch.inference_mode():
        device = random_decoder(TINY.target, torch.device("cuda"), rows=1, cached=128, context=64, seed=0)
        device.info = replace(device.info, eager=True)
        laps = DeviceLaps([device], 1, 2)
        device.reserve(0, 20)
        plan, rounds = laps._plan(1, 16, 0, drafts=False), laps._rounds
        for begun in (True, False):
            rounds.begin()
            now[0] += 1.0
            rounds.launch(plan, begun=begun)
            rounds.end()
            assert rounds.result(plan).seconds == (float(begun), 0.0)


def _widths(rounds: DeviceRounds, rows: int, deepest: int) -> set[tuple[int, int]]:
    """Of all passes that there may be, with the rows that they are made for."""
    counts = {count: rounds._bucket(count) for count in range(1, rows + 1)}
    passes = product(counts.items(), range(1, deepest + 2))
    return {(rounds._width(count * each, bucket), bucket) for (count, bucket), each in passes}


def test_every_pass_has_a_graph_and_there_are_few(target: DeviceDecoder) -> None:
    """Or a server would not start within seconds."""
    with PretendCuda():
        device = random_decoder(TINY.target, torch.device("cuda"), rows=20, cached=20 * 64, context=64, seed=0)
        rounds = DeviceRounds(device, None, 20, 12, ())
        rounds.capture()
        graphs = {key[1:] for key in rounds._parts._graphs if key[0] == "DeviceRounds._verify"}
        both = product(_widths(rounds, 20, 12), (False, True))
        assert graphs == {(width, (rows, wide)) for (width, rows), wide in both}
    assert len(_widths(DeviceRounds(target, None, 64, 12, ()), 64, 12)) <= 24
