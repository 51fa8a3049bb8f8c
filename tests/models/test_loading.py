"""Loading picks the right runner, and every broken or dangerous directory ends in an error that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from adaptspec.errors import ConfigError, ModelError
from adaptspec.models.decoder import Decoder
from adaptspec.models.loading import load_model
from adaptspec.models.transformers_runner import TransformersRunner
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, feed, load_runner, random_tokens, reference_logits


def copied(make_model: MakeModel, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(make_model("llama"), folder)
    return folder


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def set_tensor(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if tensor is None else {name: tensor}), folder / "model.safetensors")


def test_info_describes_the_model(make_model: MakeModel) -> None:
    path = make_model("llama")
    info = load_runner(str(path), device="cpu", max_rows=2).info
    assert (info.name, info.architecture, info.vocab_size, info.context) == ("model", "llama", 260, 256)
    assert info.eos_token_ids == (1,)
    assert info.parameters == AutoModelForCausalLM.from_pretrained(path).num_parameters()


def test_sharded_checkpoints_load(make_model: MakeModel, tmp_path: Path) -> None:
    path = make_model("llama")
    AutoModelForCausalLM.from_pretrained(path).save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    tokens = random_tokens(12)
    runner = load_runner(str(tmp_path), device="cpu", max_rows=1)
    torch.testing.assert_close(feed(runner, 0, tokens), reference_logits(path, tokens), **TOLERANCE)


def test_configs_written_by_older_transformers_load(make_model: MakeModel, tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling` at the top level, `torch_dtype`, no head_dim; frequencies among the weights."""
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    path = make_model("llama", rope_parameters=scaling)
    folder = tmp_path / "old"
    shutil.copytree(path, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"], config["dtype"]
    config |= {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    set_tensor(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4))
    tokens = random_tokens(12)
    runner = load_runner(str(folder), device="cpu", max_rows=1)
    torch.testing.assert_close(feed(runner, 0, tokens), reference_logits(path, tokens), **TOLERANCE)


def test_variants_the_lean_decoder_lacks_go_through_transformers(make_model: MakeModel) -> None:
    path = make_model("llama", hidden_act="gelu")
    runner = load_runner(str(path), device="cpu", max_rows=1)
    assert isinstance(runner, TransformersRunner)
    assert isinstance(load_runner(str(make_model("llama")), device="cpu", max_rows=1), Decoder)
    tokens = random_tokens(12)
    torch.testing.assert_close(feed(runner, 0, tokens), reference_logits(path, tokens), **TOLERANCE)


def shards(folder: Path, index: str) -> None:
    """Only an index, no file that it could name."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)


NORM = "model.layers.1.input_layernorm.weight"
BREAKAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "config.json").unlink(), "is this a model directory"),
    (lambda folder: (folder / "config.json").write_text("{,}"), "not valid JSON"),
    (lambda folder: (folder / "model.safetensors").unlink(), "is the download complete"),
    (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "convert it to safetensors",
    ),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"oops"), "not a readable safetensors"),
    (lambda folder: shards(folder, '{"weight_map": {"a": "two.safetensors"}}'), "lacks two.safetensors"),
    (lambda folder: shards(folder, "{}"), "no weight_map"),
    (lambda folder: shards(folder, "[1"), "not valid JSON"),
    (lambda folder: set_config(folder, auto_map={"AutoModel": "x.Y"}), "run code"),
    (lambda folder: set_config(folder, text_config={"parts": [{"auto_map": {}}]}), "run code"),
    (lambda folder: set_config(folder, attn_implementation="some/kernels"), "fetch attention code from some/kernels"),
    (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter"),
    (lambda folder: set_config(folder, quantization_config={"bits": 4}), "quantized"),
    (lambda folder: set_config(folder, architectures=["LlamaForSequenceClassification"]), "does not generate text"),
    (lambda folder: set_config(folder, model_type=None), "no model_type"),
    (lambda folder: set_config(folder, model_type="nonesuch"), "nonesuch"),
    (lambda folder: set_config(folder, hidden_size="wide"), "hidden_size is 'wide'"),
    (lambda folder: set_config(folder, num_hidden_layers=3), r"tensor model.layers.2.*is missing"),
    (lambda folder: set_config(folder, num_hidden_layers=1), r"does not account for model.layers.1"),
    (lambda folder: set_config(folder, vocab_size=300), r"\(260, 32\) where config.json asks for \(300, 32\)"),
    (lambda folder: set_config(folder, tie_word_embeddings=False), "lm_head.weight is missing"),
    (lambda folder: set_config(folder, rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "'dynamic'"),
    (lambda folder: set_tensor(folder, NORM, None), "input_layernorm.weight is missing"),
    (lambda folder: set_tensor(folder, NORM, torch.ones(31)), r"\(31,\)"),
    (lambda folder: set_tensor(folder, "score.weight", torch.ones(2, 32)), "does not account for score.weight"),
]


@pytest.mark.parametrize(("break_it", "message"), BREAKAGES)
def test_broken_directories_are_explained(
    make_model: MakeModel, tmp_path: Path, break_it: Callable[[Path], object], message: str
) -> None:
    folder = copied(make_model, tmp_path)
    break_it(folder)
    with pytest.raises(ModelError, match=message):
        load_runner(str(folder), device="cpu", max_rows=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "meta"}, "device is 'meta'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
    ],
)
def test_unknown_devices_and_dtypes_are_refused(make_model: MakeModel, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_runner(str(make_model("llama")), max_rows=1, **({"device": "cpu"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": -4},
        {"vocab_size": 10**12},
        {"hidden_size": 0},
        {"rms_norm_eps": float("inf")},
        {"num_key_value_heads": 3},
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_config_that_no_model_has_is_one_line(
    make_model: MakeModel, tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """By whichever runner: nothing is built of it first, which would take for ever or all memory."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": family} | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        load_model(str(folder), device="cpu")
