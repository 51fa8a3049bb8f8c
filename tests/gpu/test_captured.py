"""The engine on pretended CUDA writes the CPU's text, call by call and replayed from graphs, and mixes no devices."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from adaptspec.config import EngineConfig, model_path
from adaptspec.engine.build import Built
from adaptspec.engine.load_models import load_models
from adaptspec.gpu.decoder import GpuDecoder, bytes_without_cache, gpu_decoder
from adaptspec.gpu.graphs import CudaGraphCache
from adaptspec.gpu.tensor_parallel import RankGroup
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CacheLimits, CachePlan
from adaptspec.models.loading import MakeDecoder, load_model
from adaptspec.models.runner import Forward, ModelInfo, Packed
from adaptspec.models.weights import DecoderWeights
from adaptspec.request import Grammar
from tests.exactness.harness import answers
from tests.exactness.worlds import REFERENCE, reference_decoder
from tests.gpu.engines import (
    COMBS,
    DRAWN,
    GREEDY,
    LIMITS,
    RULED,
    built,
    core_of,
    on_both,
    requests,
    same,
)
from tests.gpu.pretend import PretendCuda
from tests.models.packing import feed

pytestmark = pytest.mark.whole

LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


@pytest.fixture(scope="module")
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.fixture(scope="module")
def pair(cuda: PretendCuda) -> tuple[Built, Built]:
    """The bundled models on the CPU and on the device."""
    return on_both(EngineConfig(policy=("static-3",)))


def test_memory_is_set_apart_beside_the_caches(cuda: PretendCuda) -> None:
    """Caches take what is left by passes of the widest round and of a prompt, which is read in larger parts."""
    config = EngineConfig(device="cuda", dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=64)
    left = []
    for room in (2**28, 2**28 + 2**25):
        runners: Any = load_models(config, 7, free_bytes=lambda _, room=room: room, make=reference_decoder)  # type: ignore[misc]
        left.append(room - sum(pool.nbytes for runner in runners for pool in runner._cache.pool))
    logits, states = 64 * (1 + 7) * 4 * runners[0].info.vocab_size, 2048 * 4 * 4 * 256
    assert left[0] > 3 * logits + states
    assert left == pytest.approx([left[0]] * 2, rel=0.02), "the rest is all for caches"


def test_what_is_set_apart_grows_with_all_that_takes_memory() -> None:
    """Logits of rounds, states of prompts, sums of splits, and the counts and biases of requests."""
    config = load_model(model_path("bundled", "target"), device="cpu").config
    assert config is not None
    usual = {"context": 1024, "rows": 4, "decoded": 32, "prompt": 512}
    less = bytes_without_cache(config, torch.bfloat16, **usual)
    for name in usual:
        assert bytes_without_cache(config, torch.bfloat16, **usual | {name: 8 * usual[name]}) > less


@pytest.mark.parametrize("eager", [True, False])
def test_texts_are_those_of_the_cpu(
    pair: tuple[Built, Built],
    cuda: PretendCuda,
    monkeypatch: pytest.MonkeyPatch,
    eager: bool,
) -> None:
    """Of rows that come and go, call by call and replayed from graphs; no pass runs by calls that was captured."""
    core, notes = core_of(pair[1], eager=eager)
    by_calls: list[bool] = []
    run = GpuDecoder._run_layers

    def noted(decoder: GpuDecoder, width: int, captured: torch.Tensor | None) -> torch.Tensor:
        by_calls.append(width <= decoder._passes.fixed_width)
        return run(decoder, width, captured)

    monkeypatch.setattr(GpuDecoder, "_run_layers", noted)
    written = replace(RULED, ignore_eos=False, grammar=LETTERS)
    for params in ((GREEDY, DRAWN, replace(DRAWN, max_tokens=5), GREEDY), (DRAWN,), (RULED, written, GREEDY)):
        asked = requests(pair[0], *params)
        plain = answers(core_of(pair[0])[0], asked)
        cuda.clear()
        same(answers(core, asked), plain)
        assert not any(by_calls)
        assert (cuda.replays.total() > 20) != eager
    assert any(record.accepted.any() for record in notes.records)


def test_branches_are_those_of_the_cpu(pair: tuple[Built, Built]) -> None:
    asked = requests(pair[0], GREEDY, DRAWN, RULED)
    core, notes = core_of(pair[1], COMBS, eager=False)
    same(answers(core, asked), answers(core_of(pair[0], COMBS)[0], asked))
    assert any((record.nodes > record.drafted).any() for record in notes.records)


def small() -> GpuDecoder:
    """The bundled draft model on the device, in a group of its own."""
    make = partial(gpu_decoder, group=RankGroup(operators=REFERENCE))
    loaded = load_model(model_path("bundled", "draft"), device="cuda", dtype="float32", make=make)
    runner = loaded.runner(CacheLimits(2, cache_tokens=256, context=128))
    assert isinstance(runner, GpuDecoder)
    return runner


@pytest.mark.usefixtures("cuda")
def test_graphs_are_captured_on_a_stream_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, torch takes a stream of whichever device captured first: another's draft is not captured."""
    streams: list[Any] = []
    graph = torch.cuda.graph

    def captured(*given: Any, **more: Any) -> Any:
        streams.append(more.get("stream"))
        return graph(*given, **more)

    monkeypatch.setattr(torch.cuda, "graph", captured)
    small().capture(20)
    assert len(streams) >= 2
    assert all(stream is not None for stream in streams)


@pytest.mark.usefixtures("cuda")
def test_wider_graphs_take_the_place_of_all_graphs() -> None:
    """Those of an earlier capture read memory that is not written any more."""
    decoder = small()
    decoder.capture(16)
    before = feed(decoder, 0, [5, 6, 7]).cpu().clone()
    decoder.free(0)
    decoder.capture(40)
    assert torch.equal(feed(decoder, 0, [5, 6, 7]).cpu(), before)


def test_no_garbage_is_collected_while_a_graph_is_captured(cuda: PretendCuda) -> None:
    """A graph in it would be freed meanwhile, which makes the capture invalid; collecting goes on afterwards."""
    collections: list[str] = []

    def collected(phase: str, _: object) -> None:
        collections.append(phase)

    def make_garbage() -> None:
        found.append(len(collections))
        for _ in range(10_000):
            cycle: list[object] = []
            cycle.append(cycle)
        found.append(len(collections))

    found: list[int] = []
    gc.callbacks.append(collected)
    try:
        CudaGraphCache(torch.device("cuda", 0)).capture("key", make_garbage)
        make_garbage()
    finally:
        gc.callbacks.remove(collected)
    warm, captured, after = zip(found[::2], found[1::2], strict=True)
    assert captured[0] == captured[1]
    assert warm[0] < warm[1]
    assert after[0] < after[1]


@pytest.mark.usefixtures("cuda")
def test_graphs_go_before_the_group_that_ranks_meet_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its end waits for them; passes after that are run by calls."""
    decoder = small()
    decoder.capture(20)
    before = feed(decoder, 0, [5, 6, 7]).cpu()
    graphs = [weakref.ref(graph) for graph in decoder._graphs._graphs.values()]
    assert len(graphs) >= 2
    left: list[int] = []
    monkeypatch.setattr(
        dist, "destroy_process_group", lambda: left.append(sum(graph() is not None for graph in graphs))
    )
    decoder.group.leave()
    assert left == [0]
    decoder.free(0)
    assert torch.equal(feed(decoder, 0, [5, 6, 7]).cpu(), before)


class WithoutNumbers(GpuDecoder):
    """A model whose scores are not numbers."""

    def forward(self, packed: Packed) -> Forward:
        logits, states = super().forward(packed)
        return Forward(math.nan * logits, states)


class WithoutSteps(GpuDecoder):
    """A model that fails in the middle of a draft."""

    def forward(self, packed: Packed) -> Forward:
        if packed.tokens.min() < 0:
            raise RuntimeError("no room for this pass")
        return super().forward(packed)


def with_draft(kind: type[GpuDecoder]) -> MakeDecoder:
    """The bundled models on a device, of which the draft model is of this kind."""
    name = Path(model_path("bundled", "draft")).resolve().name

    def made(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> GpuDecoder:
        decoder = reference_decoder(info, config, weights, plan)
        assert isinstance(decoder, GpuDecoder)
        if info.name != name:
            return decoder
        return kind(info, config, weights, decoder._cache, decoder.group)

    return made


@pytest.mark.parametrize("kind", [WithoutNumbers, WithoutSteps])
def test_a_draft_model_that_fails_costs_drafts_and_no_answer(
    pair: tuple[Built, Built], caplog: pytest.LogCaptureFixture, kind: type[GpuDecoder]
) -> None:
    """By its scores, or in the middle of a draft."""
    config = EngineConfig(
        policy=("static-3",),
        device="cuda",
        dtype="float32",
        max_model_len=256,
        max_num_seqs=LIMITS.max_rows,
        prefill_tokens=LIMITS.prefill_tokens,
        enforce_eager=True,
    )
    asked = requests(pair[0], GREEDY, DRAWN, GREEDY)
    core, notes = core_of(built(config, with_draft(kind)))
    same(answers(core, asked), answers(core_of(pair[0])[0], asked))
    assert sum(record.depths.any() for record in notes.records) > 5
    # A draft of one token has no further step that could fail.
    assert not any((record.drafted > (kind is WithoutSteps)).any() for record in notes.records)
    assert "no drafts for 0.1 s" in caplog.text
