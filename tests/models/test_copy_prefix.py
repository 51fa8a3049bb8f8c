"""Copies of a prefix: logits after one have the same bits as after reading it, and rows never affect each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import GPT2Config

from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Runner
from adaptspec.models.transformers_runner import TransformersRunner
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, feed, random_tokens
from tests.models.test_transformers_runner import SMALL, saved
from tests.models.tiny_gguf import write_gguf

CONTEXT, ROWS, BLOCK = 96, 4, 8
TEXT = random_tokens(CONTEXT, vocab=60)
KINDS = ("float32", "bfloat16", "paged", "transformers", "Q4_1")
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=KINDS)
def model(
    request: pytest.FixtureRequest, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """A random model; its examples share it, as requests do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind, limits = request.param, CacheLimits(ROWS, context=CONTEXT)
    if kind == "transformers":
        folder = saved(tmp_path, GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=CONTEXT, **SMALL))
        return load_model(str(folder), device="cpu", dtype="float32").runner(limits)
    folder = make_model("llama", max_position_embeddings=CONTEXT, hidden_size=64, intermediate_size=64)
    if kind == "Q4_1":
        write_gguf(folder, tmp_path / "model.gguf", kind)
        return load_model(str(tmp_path / "model.gguf")).runner(limits)
    if kind == "paged":
        limits = CacheLimits(ROWS, context=CONTEXT, block_size=BLOCK, cache_tokens=3 * CONTEXT)
    dtype = "bfloat16" if kind == "bfloat16" else "float32"
    return load_model(str(folder), device="cpu", dtype=dtype).runner(limits)


def test_what_follows_a_copy_has_the_same_bits(model: Runner) -> None:
    """Of any length, from a row that goes on meanwhile, and after the row was cut and has written something else."""
    texts = {row: [*TEXT] for row in range(ROWS)}
    plain = {False: [*TEXT], True: [*TEXT[:36], *reversed(TEXT[36:])]}
    expected = {}
    for other, tokens in plain.items():
        feed(model, 0, tokens[:1])
        expected[other] = torch.cat([feed(model, 0, [token]) for token in tokens[1:60]])
        model.free(0)

    @SETTINGS
    @given(
        held=st.integers(1, 50),
        length=st.integers(0, 50),
        later=st.integers(0, 9),
        cut=st.integers(0, 50),
        other=st.booleans(),
    )
    @example(held=50, length=48, later=0, cut=34, other=True)  # within a block that the copy shares
    def check(held: int, length: int, later: int, cut: int, other: bool) -> None:
        for row in texts:
            model.free(row)
        feed(model, 0, TEXT[:held])
        copied = model.copy_prefix(0, 1, length)
        assert copied == model.length(1) == min(length, held)
        if later:
            feed(model, 0, TEXT[held : held + later])
        # The source is cut and continued with another text from position 40, while its copy stays.
        kept = model.copy_prefix(0, 0, cut)
        assert kept == model.length(0) <= min(cut, held + later)
        assert kept > min(cut, held + later) - BLOCK
        for row, tokens, want in ((0, plain[other], expected[other]), (1, TEXT, expected[False])):
            start = model.length(row)
            if other and row == 0 and start > 36:
                continue  # it holds another text already
            found = feed(model, row, tokens[start:60])
            at = max(start, 1)
            assert_same(model, found[at - start :], want[at - 1 :])
        for row in texts:
            model.free(row)
        assert model.free_memory == 1.0

    check()


def test_where_memory_is_short_less_is_copied(model: Runner) -> None:
    """The copied tokens are right, and no other row is changed."""
    for row in (0, 2, 3):
        assert model.reserve(row, CONTEXT) or row == 3
    feed(model, 0, TEXT[:50])
    held = model.copy_prefix(0, 1, 45)
    assert held == model.length(1) <= 45
    assert model.length(0) == 50
    if model.reserve(1, 46):
        assert_same(model, feed(model, 1, TEXT[held:46])[-1:], feed_alone(model))


def assert_same(model: Runner, found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, but for `transformers`, whose products round by the size of a pass."""
    if isinstance(model, TransformersRunner):
        torch.testing.assert_close(found, expected, **TOLERANCE)
    else:
        assert torch.equal(found, expected)


def feed_alone(model: Runner) -> torch.Tensor:
    """Logits after 46 tokens that are read at once."""
    model.free(2)
    model.free(3)
    return feed(model, 2, TEXT[:46], wanted=1)
