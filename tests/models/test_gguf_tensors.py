"""GGUF files of Llama-like models on torch: the same weights, and what torch does not compute is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter, RopeScalingType

from adaptspec.config import EngineConfig
from adaptspec.engine.build import build
from adaptspec.errors import ConfigError, ModelError
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Runner
from tests.conftest import MakeModel
from tests.models.packing import feed, load_runner, random_tokens
from tests.models.tiny_gguf import write_gguf

WIDE = {"hidden_size": 64, "intermediate_size": 64}  # quantized weights lie in blocks of 32


def on_torch(path: Path, dtype: str = "float32") -> Runner:
    return load_model(str(path), runner="torch", dtype=dtype).runner(CacheLimits(1, context=64))


@pytest.mark.parametrize("tied", [True, False])
def test_float32_files_give_the_bits_of_their_checkpoints(make_model: MakeModel, tmp_path: Path, *, tied: bool) -> None:
    """Also where the head is another matrix than the embedding."""
    model = make_model("llama", tie_word_embeddings=tied, **WIDE)
    found = on_torch(write_gguf(model, tmp_path / "model.gguf", "F32"))
    expected = load_runner(model, max_rows=1, context=64)
    tokens = random_tokens(30)
    assert torch.equal(feed(found, 0, tokens), feed(expected, 0, tokens))
    assert found.info.takes_trees
    assert found.info.eos_token_ids == expected.info.eos_token_ids


@pytest.mark.parametrize(("kind", "most"), [("Q8_0", 0.05), ("Q4_1", 0.6), ("BF16", 0.05)])
def test_few_bits_are_near(make_model: MakeModel, tmp_path: Path, kind: str, most: float) -> None:
    """In what is the default on a CPU."""
    model = make_model("llama", **WIDE)
    found = on_torch(write_gguf(model, tmp_path / "model.gguf", kind), "auto")
    tokens = random_tokens(30)
    expected = feed(load_runner(model, max_rows=1, context=64), 0, tokens)
    assert (feed(found, 0, tokens) - expected).std() < most * expected.std()


@pytest.mark.parametrize("what", ["another architecture", "scaled positions"])
def test_what_torch_does_not_compute_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "gemma3" if what == "another architecture" else "llama")
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"llama\.cpp alone: leave --runner out"):
        on_torch(path)


def test_llama_cpp_is_for_gguf_files(make_model: MakeModel) -> None:
    """Torch, which may be named for any model, is not."""
    with pytest.raises(ConfigError, match=r"--runner llama\.cpp is for GGUF files"):
        build(EngineConfig(model=str(make_model("llama")), runner="llama.cpp"))
    assert load_model(str(make_model("llama")), runner="torch").info.dtype == "float32"
