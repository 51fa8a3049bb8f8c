"""A text's logits have the same bits however it is cut into passes, whatever is drafted, and beside any other rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.layers import has_products
from adaptspec.models.loading import DTYPES, load_model
from adaptspec.models.pass_range import equal_passes
from adaptspec.models.runner import Runner
from tests.conftest import MakeModel
from tests.models.packing import feed, pack
from tests.models.tiny_gguf import write_gguf
from tests.trees import tree_of

CONTEXT, ROWS, SHORT = 640, 3, 80  # attention has other kernels for some number of keys above 256
TEXT = tuple(np.random.default_rng(0).integers(4, 250, CONTEXT).tolist())
OTHER = tuple(reversed(TEXT))
# Sizes at which products and attention take several kernels: more inputs than 1,024, groups of 3 heads, wide heads.
SHAPES = {
    "groups of 3": {"hidden_size": 96, "head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1}
    | {"intermediate_size": 1056},
    "no groups": {"hidden_size": 64, "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 4},
}
LEAN = [(dtype, shape) for dtype, kind in DTYPES.items() if has_products(kind) for shape in SHAPES]
KINDS = [*LEAN, *((kind, "no groups") for kind in ("Q8_0", "Q4_0", "Q4_1", "Q4_K"))]  # llama.cpp has no trees
SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=KINDS, ids=" ".join)
def model(
    request: pytest.FixtureRequest, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """A random model in one kind of numbers; its examples share it, as requests do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind, shape = request.param
    limits = CacheLimits(ROWS, context=CONTEXT)
    if kind in DTYPES:
        return load_model(
            str(make_model("llama", max_position_embeddings=CONTEXT, **SHAPES[shape])), device="cpu", dtype=kind
        ).runner(limits)
    block = 256 if kind == "Q4_K" else 64  # quantized weights lie in blocks
    sizes = {"hidden_size": block, "intermediate_size": block, "head_dim": block // 4}
    folder = make_model("llama", **sizes, max_position_embeddings=CONTEXT)
    write_gguf(folder, tmp_path / "model.gguf", kind)
    runner = load_model(str(tmp_path / "model.gguf")).runner(limits)
    found = equal_passes(runner, seconds=60.0)
    assert found >= (7 if kind == "Q4_K" else 16)
    runner.info = replace(runner.info, equal_passes=found)
    return runner


def one_by_one(model: Runner, tokens: Sequence[int], row: int = 0) -> torch.Tensor:
    """Logits after each token, by plain decoding from the first token on."""
    model.free(row)
    found = torch.cat([feed(model, row, [token]) for token in tokens])
    model.free(row)
    return found


def test_however_a_text_is_cut(model: Runner) -> None:
    expected = one_by_one(model, TEXT)
    for size in (2, 3, 7, 16, 60, 64, 100, CONTEXT):
        model.free(0)
        parts = [feed(model, 0, TEXT[at : at + size]) for at in range(0, CONTEXT, size)]
        assert torch.equal(torch.cat(parts), expected), size


def test_whatever_is_drafted_and_beside_other_rows(model: Runner) -> None:
    """Rows come and go, and tokens are taken back, in whatever order."""
    expected = {0: one_by_one(model, TEXT[:SHORT]), 1: one_by_one(model, OTHER[:SHORT])}

    @SETTINGS
    @given(seed=st.integers(0, 10**6))
    def check(seed: int) -> None:
        for row in range(ROWS):
            model.free(row)
        chance = random.Random(seed)
        texts, done = {0: TEXT[:SHORT], 1: OTHER[:SHORT]}, {0: 0, 1: 0}
        while min(done.values()) < SHORT:
            parts, accepted = [], {}
            for row, text in texts.items():
                count = chance.randint(0, 9)
                if not count or done[row] == SHORT:
                    continue
                accepted[row] = min(chance.randint(1, count), SHORT - done[row])
                right = text[done[row] : done[row] + accepted[row]]
                parts.append((row, [*right, *[5] * (count - len(right))], count))
                assert model.reserve(row, done[row] + count)
            if not parts:
                continue
            found, at = model.forward(pack(*parts)).logits, 0
            for row, tokens, _ in parts:
                kept = accepted[row]
                assert torch.equal(found[at : at + kept], expected[row][done[row] : done[row] + kept])
                at += len(tokens)
                done[row] += kept
                model.truncate(row, done[row])
            if chance.random() < 0.05:
                model.free(0)
                done[0] = 0
        for row in texts:
            model.free(row)
        assert model.free_memory == 1.0

    check()


@pytest.mark.parametrize("model", LEAN, ids=" ".join, indirect=True)
def test_on_every_path_of_a_tree(model: Runner) -> None:
    """Each node's logits are those of plain decoding along its path; and so is what comes after a path that is kept."""

    @SETTINGS
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        cached = data.draw(st.sampled_from([1, 20, 58, 63, 64, 250]))
        parents = [data.draw(st.integers(-1, place - 1)) for place in range(data.draw(st.integers(1, 12)))]
        tokens = [7, *data.draw(st.lists(st.integers(4, 250), min_size=len(parents), max_size=len(parents)))]
        seen = tree_of(parents, chains=[0]).visible(0)
        for row in range(ROWS):
            model.free(row)
        feed(model, 0, TEXT[:cached])
        assert model.reserve(0, cached + len(tokens))
        logits = model.forward(pack((0, tokens, len(tokens)), seen=[seen])).logits
        node = data.draw(st.integers(-1, len(parents) - 1))
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        model.keep(0, cached + 1, path)
        feed(model, 1, TEXT[:cached])
        plain = torch.cat([feed(model, 1, [tokens[at + 1]]) for at in (-1, *path)])
        assert torch.equal(logits[[at + 1 for at in (-1, *path)]], plain)
        assert torch.equal(feed(model, 0, [9]), feed(model, 1, [9]))

    check()
