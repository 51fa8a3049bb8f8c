"""Heads draft for targets that transformers runs as for those of our own decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, GPT2Config, GPTNeoXConfig, OPTConfig, PretrainedConfig

from adaptspec.control.cost import CostTable
from adaptspec.engine.assembly import build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.models import loading
from adaptspec.models.heads.formats import load_head
from adaptspec.models.heads.hearing import HeadRunner
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import LoadedModel, load_model
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.runner import Heard
from adaptspec.models.transformers_runner import TransformersRunner
from tests.conftest import MakeModel, tiny_tokenizer
from tests.engine.policies import COSTS
from tests.exactness.harness import SCRIPTS, Case, hold, run
from tests.exactness.worlds import World
from tests.models.heads.golden import HEADS, medusa
from tests.models.packing import TOLERANCE, pack, random_tokens
from tests.models.test_transformers_runner import saved

COMMON: dict[str, Any] = {"vocab_size": 260, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SIZES = COMMON | {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 128}
TARGETS: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(n_embd=16, n_layer=4, n_head=2, n_positions=128, **COMMON),
    "gpt-neox": GPTNeoXConfig(intermediate_size=24, **SIZES),
    "opt": OPTConfig(ffn_dim=24, word_embed_proj_dim=16, **SIZES),
    "gemma2": Gemma2Config(intermediate_size=24, num_key_value_heads=1, head_dim=8, **SIZES),
}


def head_for(target: LoadedModel, head: Path) -> HeadRunner:
    """After the target has read a text."""
    found, runner = load_head(str(head), target).runner(CacheLimits(2, context=64)), target.runner(CacheLimits(2))
    assert isinstance(found, HeadRunner)
    assert isinstance(runner, Heard)
    runner.listen(found)
    assert runner.reserve(0, 20)
    runner.forward(pack((0, random_tokens(20), 1)))
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["eagle3", "eagle3-vocabulary", "dflash", "medusa"])
def test_drafts_are_those_beside_the_lean_decoder(
    make_model: MakeModel, tmp_path: Path, name: str, *, tied: bool
) -> None:
    """The same weights, run by transformers: embedding, head and norm are the same ones."""
    place = make_model("llama", hidden_size=16, num_hidden_layers=4, tie_word_embeddings=tied)
    if name == "medusa":
        medusa(tmp_path / name, own=False)
    head = tmp_path / name if name == "medusa" else HEADS / name
    other = loading.load_other(place, read_json(place / CONFIG), torch.float32, torch.device("cpu"))
    heads = [head_for(target, head) for target in (load_model(str(place)), other)]
    for tokens in ([*random_tokens(20), 7], [8], [9]):
        assert all(one.reserve(0, 24) for one in heads)
        lean, through = (one.forward(pack((0, tokens, 1))) for one in heads)
        torch.testing.assert_close(through, lean, **TOLERANCE)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_text_is_that_of_plain_decoding(tmp_path: Path, name: str, head: str) -> None:
    """Of families whose layers and norms have other names."""
    place = saved(tmp_path, TARGETS[name])
    tiny_tokenizer().save_pretrained(place)
    config = EngineConfig(str(place), str(HEADS / head), device="cpu", limits=EngineLimits(max_rows=4), context=96)
    built = build(config, costs=lambda *_: CostTable(COSTS))
    assert isinstance(built.target, TransformersRunner)
    world, script = World(built.target, built.drafters, built.tokenizer), SCRIPTS["batch"]
    for temperature in (0.0, 0.8):
        result = run(Case(temperature=temperature, depths="3"), world, script)
        hold(result, world, script)
        assert all(one.stats.drafted for one in result.done.values())
