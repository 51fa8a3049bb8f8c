"""Heads draft for targets that transformers runs as for those of our own decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, GPT2Config, GPTNeoXConfig, OPTConfig, PretrainedConfig

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.build import build
from adaptspec.errors import ModelError
from adaptspec.models import loading
from adaptspec.models.loading import load_model
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.transformers_runner import TransformersRunner
from tests.conftest import MakeModel, tiny_tokenizer
from tests.engine.policies import COSTS
from tests.exactness.harness import SCRIPTS, Case, hold, run
from tests.exactness.worlds import World
from tests.models.heads.golden import HEADS, drafted, head_runner, medusa
from tests.models.packing import TOLERANCE, random_tokens
from tests.models.test_runner import states_of
from tests.models.test_transformers_runner import saved
from tests.models.tiny_gguf import write_gguf

COMMON: dict[str, Any] = {"vocab_size": 260, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SIZES = COMMON | {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 128}
HALF = {"atol": 2e-2, "rtol": 2e-2}
TARGETS: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(n_embd=16, n_layer=4, n_head=2, n_positions=128, **COMMON),
    "gpt-neox": GPTNeoXConfig(intermediate_size=24, **SIZES),
    "opt": OPTConfig(ffn_dim=24, word_embed_proj_dim=16, **SIZES),
    "gemma2": Gemma2Config(intermediate_size=24, num_key_value_heads=1, head_dim=8, **SIZES),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["eagle3", "eagle3-vocabulary", "dflash", "medusa"])
def test_embedding_norm_and_lm_head_are_the_targets(
    make_model: MakeModel, tmp_path: Path, name: str, *, tied: bool, dtype: str
) -> None:
    """Whether our decoder runs the same weights or transformers does: heads bring none of their own, and read them."""
    place = make_model("llama", hidden_size=16, num_hidden_layers=4, tie_word_embeddings=tied)
    if name == "medusa":
        medusa(tmp_path / name, own=False)
    head = tmp_path / name if name == "medusa" else HEADS / name
    lean = load_model(str(place), dtype=dtype)
    other = loading.load_other(place, read_json(place / CONFIG), loading.DTYPES[dtype], torch.device("cpu"))
    heads, text = [head_runner(head, target) for target in (lean, other)], [*random_tokens(20), 7, 8, 9]
    states = states_of(place, text[:20], layers=heads[0].spec.capture)
    for one in heads:
        one.on_hidden_states([0], [0], [20], states)
    for upto in (21, 22, 23):
        found, expected = (drafted(one, text[:upto]) for one in heads)
        torch.testing.assert_close(found, expected, **(TOLERANCE if dtype == "float32" else HALF))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_text_is_that_of_plain_decoding(tmp_path: Path, name: str, head: str) -> None:
    """Of families whose layers and norms have other names."""
    place = saved(tmp_path, TARGETS[name])
    tiny_tokenizer().save_pretrained(place)
    config = EngineConfig(model=str(place), draft=str(HEADS / head), device="cpu", max_num_seqs=4, max_model_len=96)
    built = build(config, costs=CostModel(COSTS))
    assert isinstance(built.target, TransformersRunner)
    world, script = World(built.target, built.drafters, built.tokenizer), SCRIPTS["batch"]
    for temperature in (0.0, 0.8):
        result = run(Case(temperature=temperature, depths="3"), world, script)
        hold(result, world, script)
        assert all(one.stats.drafted for one in result.done.values())


def test_gguf_files_have_heads_on_torch(make_model: MakeModel, tmp_path: Path) -> None:
    """Drafts are those for the checkpoint; LM head and embedding are read from the file. llama.cpp has no states."""
    place = make_model("llama", hidden_size=16, num_hidden_layers=4, tie_word_embeddings=False)
    path, text = write_gguf(place, tmp_path / "model.gguf", "F32"), [*random_tokens(20), 7, 8]
    models = load_model(str(place), dtype="float32"), load_model(str(path), dtype="float32", runner="torch")
    heads = [head_runner(HEADS / "dflash", target) for target in models]
    states = states_of(place, text[:20], layers=heads[0].spec.capture)
    for one in heads:
        one.on_hidden_states([0], [0], [20], states)
    for upto in (21, 22):
        expected, found = (drafted(one, text[:upto]) for one in heads)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(ModelError, match=r"is run by llama.cpp, .* use --runner torch, or a draft model"):
        head_runner(HEADS / "dflash", load_model(str(path)))
