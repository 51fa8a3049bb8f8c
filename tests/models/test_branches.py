"""Tokens that branch: each sees its own path alone, and what stays of a pass is what plain decoding caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray
from adaptspec.models import loading
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.runner import Runner
from adaptspec.models.transformers_runner import TransformersRunner
from tests.conftest import MakeModel
from tests.models.families import EXACT, saved
from tests.models.packing import TOLERANCE, cached, feed, load_runner, pack, random_tokens
from tests.models.test_decoder import lean, model_path
from tests.trees import tree_of

VARIANTS = ("llama", "llama without grouped heads, untied", "mistral with a window", "qwen2 with a window", "qwen3")
NO_TREES = ("Bloom", "Llama 4", "MPT")  # ALiBi from the mask, chunks
Part = tuple[int, Sequence[int], int]
SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def shapes(draw: st.DrawFn, most: int = 20) -> list[int]:
    """Parents of up to `most` nodes; -1 is the newest token."""
    return [draw(st.integers(-1, place - 1)) for place in range(draw(st.integers(1, most)))]


MOST_ROWS = 4
ROWS = st.lists(st.tuples(st.integers(1, 30), st.none() | shapes()), min_size=1, max_size=MOST_ROWS)


def sight(parents: Sequence[int]) -> BoolArray:
    """What the newest token and the nodes see of each other, also where they are a chain."""
    seen = tree_of(parents, chains=[0]).visible(0)
    assert seen is not None
    return seen


def path(parents: Sequence[int], node: int) -> list[int]:
    """Places from the newest token's child to `node`."""
    return [] if node < 0 else [*path(parents, parents[node]), node]


def ahead(runner: Runner, parts: Sequence[Part], seen: list[BoolArray | None]) -> torch.Tensor:
    """Reserve room and run the parts together."""
    for row, tokens, _ in parts:
        assert runner.reserve(row, runner.length(row) + len(tokens))
    return runner.forward(pack(*parts, seen=seen)).logits


def through_transformers(place: Path) -> Runner:
    """A model that the lean decoder would take."""
    loaded = loading.load_other(place, read_json(place / CONFIG), torch.float32, torch.device("cpu"))
    return loaded.runner(CacheLimits(4, context=96))


def stored(runner: Runner, row: int) -> torch.Tensor:
    """Keys and values of a row, flat."""
    if isinstance(runner, Decoder):
        return cached(runner, row)
    assert isinstance(runner, TransformersRunner)
    layers: list[Any] = runner._caches[row].layers
    return torch.cat(
        [part.flatten() for layer in layers if layer.is_initialized for part in (layer.keys, layer.values)]
    )


def check_rows(
    runner: Runner, plain: Runner, rows: Sequence[tuple[int, list[int] | None]], data: st.DataObject
) -> None:
    """Rows of (cached tokens, tree, None: a chain) in one pass of `runner`; `plain` runs their paths alone."""
    for row in range(MOST_ROWS):
        runner.free(row)
    texts = [random_tokens(length, seed=i, vocab=60) for i, (length, _) in enumerate(rows)]
    new = [random_tokens(len(p) + 1 if p else 1 + i * 5, seed=9 + i, vocab=60) for i, (_, p) in enumerate(rows)]
    plain.free(0)
    for row, text in enumerate(texts):
        feed(runner, row, text, wanted=0)
    parts = [(row, tokens, len(tokens)) for row, tokens in enumerate(new)]
    logits = ahead(runner, parts, [None if p is None else sight(p) for _, p in rows]).split([len(n) for n in new])
    for row, (_, tree) in enumerate(rows):
        parents = list(range(-1, len(new[row]) - 2)) if tree is None else tree
        for leaf in {-1, *range(len(parents))} - set(parents):
            way = path(parents, leaf)
            expected = feed(plain, 0, texts[row] + [new[row][at + 1] for at in (-1, *way)], wanted=len(way) + 1)
            torch.testing.assert_close(logits[row][[at + 1 for at in (-1, *way)]], expected, **TOLERANCE)
            plain.free(0)
        way = path(parents, data.draw(st.integers(-1, len(parents) - 1)))
        runner.keep(row, len(texts[row]) + 1, way)
        assert runner.length(row) == len(texts[row]) + 1 + len(way)
        feed(plain, 0, texts[row] + [new[row][at + 1] for at in (-1, *way)], wanted=0)
        torch.testing.assert_close(stored(runner, row), stored(plain, 0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(feed(runner, row, [7]), feed(plain, 0, [7]), **TOLERANCE)
        plain.free(0)


@pytest.mark.parametrize("kind", ["in place", "gathered"])
@pytest.mark.parametrize("variant", VARIANTS)
@settings(SETTINGS, max_examples=8)
@given(rows=ROWS, data=st.data())
def test_trees_beside_chains_and_prompts(
    make_model: MakeModel, variant: str, kind: str, rows: list[tuple[int, list[int] | None]], data: st.DataObject
) -> None:
    """Every node's logits are those of its path alone; after `keep` the cache is that of plain decoding."""
    place = model_path(make_model, variant)
    check_rows(lean(place, 5 if kind == "gathered" else None), lean(place), rows, data)


@pytest.fixture(params=[family for family in EXACT if family not in NO_TREES])
def two_runners(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Runner, Runner]:
    """Of one family's model; its examples share them, as requests do."""
    place = saved(tmp_path, *EXACT[request.param])
    return load_runner(place, max_rows=MOST_ROWS), load_runner(place, max_rows=1)


@settings(SETTINGS, max_examples=4)
@given(rows=ROWS, data=st.data())
def test_trees_of_other_families(
    two_runners: tuple[Runner, Runner], rows: list[tuple[int, list[int] | None]], data: st.DataObject
) -> None:
    """Also where texts are far longer than a window."""
    runner, plain = two_runners
    assert runner.info.takes_trees
    check_rows(runner, plain, rows, data)


@pytest.mark.parametrize("family", NO_TREES)
def test_families_that_take_chains_only_say_so(tmp_path: Path, family: str) -> None:
    assert not load_model(str(saved(tmp_path / "model", *EXACT[family]))).info.takes_trees
