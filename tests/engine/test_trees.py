"""Drafts that branch change no output: combs, beams and unions give plain decoding's text, token for token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.fakes import TableRunner

BOTH = ("draft-model", "ngram")
CEILINGS = (0, 1, 4, 16, 64)
PROMPTS = st.lists(st.lists(st.integers(2, 23), min_size=1, max_size=20), min_size=1, max_size=8)
DEPTHS = st.lists(st.integers(0, 7), min_size=1, max_size=20)
SHAPES = st.builds(
    Shape,
    width=st.integers(1, 6),
    nodes=st.sampled_from(CEILINGS),
    floor=st.sampled_from([0.0, 0.05]),
    beam=st.booleans(),
    union=st.booleans(),
)
PARAMS = st.sampled_from(
    [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 0.9, "top_k": 5},
        {"temperature": 0.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
        {"temperature": 0.9, "presence_penalty": 0.7, "min_tokens": 8},
    ]
)


def _requests(prompts: list[list[int]], params: dict[str, Any]) -> list[Request]:
    return [
        Request(f"r{i}", tuple(prompt), SamplingParams(max_tokens=24, seed=i, **params))
        for i, prompt in enumerate(prompts)
    ]


def _drafters(**more: int) -> list[Drafter]:
    return [DraftModelDrafter(TableRunner(seed=1, blend=0.8, **more), (1,)), NgramDrafter(longest=2, shortest=1)]


def _plain(tokenizer: PreTrainedTokenizerFast) -> EngineCore:
    return make_core(tokenizer, TableRunner(), [], {"p": (Dictated((), lambda n, size: [0] * size), "coupled")})


def _branching(
    tokenizer: PreTrainedTokenizerFast, shape: Shape, depths: list[int], target: TableRunner, **more: int
) -> tuple[EngineCore, Notes]:
    notes = Notes()
    policy = Branched(BOTH, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)], shape)
    limits = EngineLimits(max_rows=8, prefill_tokens=8)
    core = make_core(tokenizer, target, _drafters(**more), {"p": (policy, "coupled")}, sinks=[notes], limits=limits)
    return core, notes


@settings(max_examples=60, deadline=None)
@given(prompts=PROMPTS, depths=DEPTHS, shape=SHAPES, params=PARAMS)
def test_trees_of_any_shape_give_plain_decoding(
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    depths: list[int],
    shape: Shape,
    params: dict[str, Any],
) -> None:
    """Alone and in a batch, greedy and seeded, penalties by the node's own path."""
    requests = _requests(prompts, params)
    core, notes = _branching(tokenizer, shape, depths, TableRunner())
    done, plain = run(core, requests), run(_plain(tokenizer), requests)
    for request in requests:
        assert done[request.id].tokens == plain[request.id].tokens
        assert done[request.id].finish is plain[request.id].finish
    for record in notes.records:
        assert (record.accepted <= record.drafted).all()
        assert (record.chain <= record.drafted).all()
        assert (record.straight <= record.kept).all()
        if record.branches is not None:
            assert (record.branches.nodes <= np.maximum(shape.nodes, 0)).all()


@pytest.mark.parametrize("nodes", CEILINGS)
def test_nobody_submits_more_nodes_than_the_ceiling(tokenizer: PreTrainedTokenizerFast, nodes: int) -> None:
    """And a ceiling that is not reached by a chain is used: that trees branch at all is what the suite rests on."""
    core, notes = _branching(tokenizer, Shape(width=4, nodes=nodes, beam=True), [5], TableRunner())
    run(core, _requests([[5, 6, 7], [8, 9]], {"temperature": 0.8, "ignore_eos": True}))
    submitted = [int(record.verify_tokens) - len(record.rows) for record in notes.records if len(record.rows) == 2]
    assert max(submitted) <= 2 * nodes
    assert (max(submitted) > 10) == (nodes >= 16)


@settings(max_examples=25, deadline=None)
@given(
    prompts=PROMPTS,
    depths=DEPTHS,
    shape=SHAPES,
    capacities=st.tuples(st.integers(50, 120), st.integers(30, 200)),
    aborted=st.integers(0, 20),
)
def test_short_caches_predictions_and_aborts_change_no_text(  # noqa: PLR0917 - hypothesis names them
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    depths: list[int],
    shape: Shape,
    capacities: tuple[int, int],
    aborted: int,
) -> None:
    """Branches get what room is left, in the target's cache as in the draft's, and drive nobody out for good."""
    requests = _requests(prompts, {"temperature": 0.0, "ignore_eos": True})
    plain = run(_plain(tokenizer), requests)
    foretold = [replace(one, prediction=(*plain[one.id].tokens[:9], 5, *plain[one.id].tokens[9:])) for one in requests]
    core, _ = _branching(tokenizer, shape, depths, TableRunner(capacity=capacities[0]), capacity=capacities[1])
    for request in foretold:
        core.add(request)
    core.add(Request("doomed", (7, 8, 9), SamplingParams(max_tokens=60, temperature=0.5, seed=3)))
    done: dict[str, tuple[int, ...]] = {}
    rounds = 0
    while not core.idle:
        for delta in core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion.tokens
        rounds += 1
        if rounds == aborted:
            core.abort("doomed")
    for request in requests:
        assert done[request.id] == plain[request.id].tokens


@settings(max_examples=20, deadline=None)
@given(prompts=PROMPTS, depths=DEPTHS, shape=SHAPES, temperature=st.sampled_from([0.0, 0.9]))
def test_trees_beside_rows_that_draft_chains_or_nothing(
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    depths: list[int],
    shape: Shape,
    temperature: float,
) -> None:
    """One round of coupled trees, of rejection, which stays with chains, and of rows that are off."""
    policies = {
        "tree": (
            Branched(BOTH, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)], shape),
            "coupled",
        ),
        "chain": (Branched(("draft-model",), lambda n, size: [3] * size, replace(shape, union=False)), "rejection"),
        "off": (Dictated((), lambda n, size: [0] * size), "coupled"),
    }
    requests = [
        replace(request, speculation=SpeculationParams(policy=("tree", "chain", "off")[i % 3]))
        for i, request in enumerate(_requests(prompts * 2, {"temperature": temperature}))
    ]
    limits = EngineLimits(max_rows=8, prefill_tokens=8)
    core = make_core(tokenizer, TableRunner(), _drafters(), policies, limits=limits)  # type: ignore[arg-type]
    done = run(core, requests)
    plain = run(_plain(tokenizer), [replace(one, speculation=SpeculationParams()) for one in requests])
    for i, request in enumerate(requests):
        if i % 3 != 1 or not temperature:
            assert done[request.id].tokens == plain[request.id].tokens
    assert all(record.branches is None for record in policies["chain"][0].records) or shape.width > 1


@settings(max_examples=25, deadline=None)
@given(
    depths=st.lists(st.integers(1, 7), min_size=1, max_size=9), shape=SHAPES, temperature=st.sampled_from([0.0, 0.9])
)
def test_the_draft_model_keeps_what_the_text_went_on_with(
    tokenizer: PreTrainedTokenizerFast, depths: list[int], shape: Shape, temperature: float
) -> None:
    """Whatever was fed, and whoever proposed what was accepted: its cache is a beginning of the text."""
    draft = DraftModelDrafter(TableRunner(seed=1, blend=0.8), (1,))
    policy = Branched(BOTH, lambda n, size: [depths[n % len(depths)]] * size, shape)
    core = make_core(tokenizer, TableRunner(), [draft, NgramDrafter(longest=2, shortest=1)], {"p": (policy, "coupled")})
    core.add(_requests([[5, 6, 7]], {"temperature": temperature, "ignore_eos": True})[0])
    text = [5, 6, 7]
    while not core.idle:
        for delta in core.step():
            text += delta.tokens
            held = draft.runner.held(0)  # type: ignore[attr-defined]
            assert held == text[: len(held)]
            assert draft.cache_gap(0, len(text)) == max(0, len(text) - len(held) - 2)
