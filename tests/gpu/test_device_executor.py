"""The whole engine on pretended CUDA gives the CPU's text, mixes no devices, reads and copies no more than it did."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adaptspec.engine.build import Built
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_path
from adaptspec.engine.load_models import load_models
from adaptspec.gpu.device_decoder import DeviceDecoder, device_decoder
from adaptspec.gpu.graphs import Captured
from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachePlan
from adaptspec.models.loading import MakeDecoder
from adaptspec.models.runner import Forward, ModelInfo, Packed
from adaptspec.models.weights import DecoderWeights
from adaptspec.request import Grammar, SamplingParams
from adaptspec.results import FinishReason
from tests.exactness.harness import Case, answers
from tests.gpu.engines import (
    CHAINS,
    COMBS,
    DRAWN,
    GREEDY,
    LIMITS,
    PLAIN,
    RULED,
    built,
    core_of,
    on_both,
    requests,
    same,
)
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole

LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


@pytest.fixture(scope="module")
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.fixture(scope="module")
def pair(cuda: PretendCuda) -> tuple[Built, Built]:
    """The bundled models on the CPU and on the device."""
    return on_both(EngineConfig(policies=("static-3",)))


def test_rounds_have_memory_beside_the_caches(cuda: PretendCuda) -> None:
    """Caches take what is left by passes of the widest round and of a prompt, which is read in larger parts."""
    config = EngineConfig(device="cuda", dtype="float32", eager=True, context=256, limits=EngineLimits(max_rows=64))
    left = []
    for room in (2**27, 2**27 + 2**25):
        runners: Any = load_models(config, 7, free_bytes=lambda _, room=room: room)  # type: ignore[misc]
        left.append(room - sum(pool.nbytes for runner in runners for pool in runner.cache.pool))
    logits, states = 64 * (1 + 7) * 4 * runners[0].info.vocab_size, 2048 * 4 * 4 * 256
    assert left[0] > 2 * logits + states
    assert left == pytest.approx([left[0]] * 2, rel=0.02), "the rest is all for caches"


def test_rounds_replayed_from_graphs(pair: tuple[Built, Built], cuda: PretendCuda) -> None:
    """The same texts as call by call, of rows that come and go; and no round runs by calls."""
    core, _ = core_of(pair[1], eager=False)
    written = replace(RULED, ignore_eos=False, grammar=LETTERS)
    for params in ((GREEDY, DRAWN, replace(DRAWN, max_tokens=5), GREEDY), (DRAWN,), (RULED, written, GREEDY)):
        asked = requests(pair[0], *params)
        plain = answers(core_of(pair[0])[0], asked)
        cuda.clear()
        same(answers(core, asked), plain)
        assert cuda.replays.total() > 20


def test_graphs_are_captured_on_a_stream_of_their_device(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, torch takes a stream of whichever device captured first: another's draft is not captured."""
    streams: list[Any] = []
    graph = torch.cuda.graph

    def captured(*given: Any, **more: Any) -> Any:
        streams.append(more.get("stream"))
        return graph(*given, **more)

    monkeypatch.setattr(torch.cuda, "graph", captured)
    core_of(pair[1], eager=False)
    assert streams
    assert all(stream is not None for stream in streams)


def test_no_garbage_is_collected_while_a_graph_is_captured(cuda: PretendCuda) -> None:
    """A graph in it would be freed meanwhile, which makes the capture invalid; collecting goes on afterwards."""
    collections: list[str] = []

    def collected(phase: str, _: object) -> None:
        collections.append(phase)

    def make_garbage(size: int, _: object) -> None:
        found.append(len(collections))
        for _ in range(size):
            cycle: list[object] = []
            cycle.append(cycle)
        found.append(len(collections))

    found: list[int] = []
    gc.callbacks.append(collected)
    try:
        Captured(torch.device("cuda", 0)).capture(make_garbage, 10_000, 0)
        make_garbage(10_000, 0)
    finally:
        gc.callbacks.remove(collected)
    warm, captured, after = zip(found[::2], found[1::2], strict=True)
    assert captured[0] == captured[1]
    assert warm[0] < warm[1]
    assert after[0] < after[1]


def test_graphs_go_before_the_group_that_ranks_meet_in(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its end waits for them; what is asked for later is computed as it stands."""
    core, _ = core_of(pair[1], eager=False)
    target: Any = pair[1].target
    graphs = [weakref.ref(graph) for parts in target.group.graphs for graph in parts._graphs.values()]
    assert len(graphs) > 20
    left: list[int] = []
    monkeypatch.setattr(
        dist, "destroy_process_group", lambda: left.append(sum(graph() is not None for graph in graphs))
    )
    target.group.leave()
    assert left == [0]
    asked = requests(pair[0], GREEDY, DRAWN)
    same(answers(core, asked), answers(core_of(pair[0])[0], asked))


class WithoutNumbers(DeviceDecoder):
    """A model whose scores are no numbers."""

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return math.nan * super().logits(states)


class WithoutPasses(DeviceDecoder):
    """A model that reads no text unless it is to go on with it."""

    def forward(self, packed: Packed) -> Forward:
        if not packed.wanted.any():
            raise RuntimeError("no room for this pass")
        return super().forward(packed)


def with_draft(kind: type[DeviceDecoder]) -> MakeDecoder:
    """The bundled models on a device, of which the draft model is of this kind."""
    name = Path(model_path("bundled", "draft")).resolve().name

    def made(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> DeviceDecoder:
        if info.name != name:
            return device_decoder(info, config, weights, plan)
        like = weights.embedding
        return kind(info, config, weights, PagedCache(config.cache_shape, plan, like.dtype, like.device))

    return made


@pytest.mark.parametrize("kind", [WithoutNumbers, WithoutPasses])
def test_a_draft_model_that_fails_costs_drafts_and_no_answer(
    pair: tuple[Built, Built], caplog: pytest.LogCaptureFixture, kind: type[DeviceDecoder]
) -> None:
    """In the middle of a round that the device runs whole, or where it reads what it missed."""
    config = EngineConfig(
        policies=("static-3",), device="cuda", dtype="float32", context=256, limits=LIMITS, eager=True
    )
    asked = requests(pair[0], GREEDY, DRAWN, GREEDY)
    core, notes = core_of(built(config, with_draft(kind)))
    same(answers(core, asked), answers(core_of(pair[0])[0], asked))
    assert sum(record.depths.any() for record in notes.records) > 5
    assert not any(record.drafted.any() for record in notes.records)
    assert "no drafts for 0.1 s" in caplog.text


def test_records_have_the_passes_that_ran(pair: tuple[Built, Built], cuda: PretendCuda) -> None:
    """The cost model learns from them: a pass for each token of the deepest draft, over all rows of the batch."""
    core, notes = core_of(pair[1])
    answers(core, requests(pair[0], GREEDY, DRAWN, GREEDY))
    drafting = [record for record in notes.records if record.drafted.any()]
    assert len(drafting) > 5
    for record in drafting:
        (draft,) = record.work.drafts
        assert (draft.drafter, draft.rows) == ("draft-model", np.count_nonzero(record.depths))
        assert set(draft.passes) == {record.work.rows}
        assert record.drafted.max() <= len(draft.passes) <= record.depths.max()
    assert not any(record.work.drafts for record in notes.records if not record.depths.any())


# What a round costs now, at most: times that the host waits, copies to the device, and back; one row, and three.
# Whoever lowers them writes it down here. (A copy that blocks makes the host wait, too, and is not counted twice.)
Cost = tuple[float, float, float]
PER_ROUND: dict[str, tuple[Case, SamplingParams, Cost, Cost]] = {
    "plain": (PLAIN, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3": (CHAINS, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3, drawn": (CHAINS, DRAWN, (1, 1, 1), (1, 1, 1)),
    "depth 3, with rules": (CHAINS, RULED, (1, 1, 1), (1, 1, 1)),
    "logprobs": (CHAINS, replace(RULED, logprobs=2), (1, 1, 2), (1, 1, 2)),
    # Masks of the next tokens go with the plan, those behind drafted ones when these are known.
    "grammar": (CHAINS, replace(DRAWN, ignore_eos=False, grammar=LETTERS), (2, 3, 2), (2, 3, 2)),
    "comb": (COMBS, GREEDY, (1, 1, 1), (1, 1, 1)),
    "comb with rules": (COMBS, RULED, (1, 1, 1), (1, 1, 1)),
}
ROUNDS = 4


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", PER_ROUND)
def test_reads_and_copies_per_round(pair: tuple[Built, Built], cuda: PretendCuda, name: str, rows: int) -> None:
    case, params, alone, together = PER_ROUND[name]
    core, _ = core_of(pair[1], case)
    for request in requests(pair[1], *[replace(params, max_tokens=64)] * rows):
        core.add(request)
    for _ in range(5):  # prompts are read
        core.step()
    cuda.clear()
    for _ in range(ROUNDS):
        core.step()
    found = tuple(count.total() / ROUNDS for count in (cuda.syncs, cuda.uploads, cuda.downloads))
    core.abort_all(FinishReason.ABORT, "counted")
    most = alone if rows == 1 else together
    assert all(now <= then for now, then in zip(found, most, strict=True)), (found, cuda.syncs, cuda.uploads)
