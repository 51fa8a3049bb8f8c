"""Weights are fused and reordered so that the decoder's plain products are the model's."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from adaptspec.models.config import read_decoder_config
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.weights import load_weights
from tests.conftest import MakeModel

CPU = torch.device("cpu")


def test_queries_and_keys_are_reordered_in_pairs_and_values_are_not(make_model: MakeModel) -> None:
    """In 16 bits, where no norm's weight is multiplied into the matrix behind it."""
    path = make_model("qwen2")
    stored = {name: tensor.bfloat16() for name, tensor in load_file(path / "model.safetensors").items()}
    config = read_decoder_config(read_json(path / CONFIG))
    layer = load_weights(path, config, torch.bfloat16, CPU).layers[0]
    query, key, value = (stored[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv")
    assert layer.qkv.weight is not None
    fused = layer.qkv.weight.t().split([32, 16, 16])
    pairs = [0, 4, 1, 5, 2, 6, 3, 7]  # of a head of 8 dimensions
    assert torch.equal(fused[0].view(4, 8, -1), query.view(4, 8, -1)[:, pairs])
    assert torch.equal(fused[1].view(2, 8, -1), key.view(2, 8, -1)[:, pairs])
    assert torch.equal(fused[2], value)
    assert layer.qkv.bias is not None
    assert torch.equal(layer.qkv.bias[48:], stored["model.layers.0.self_attn.v_proj.bias"])
    assert layer.qkv.weight.is_contiguous()


def test_a_tied_head_is_the_embedding(make_model: MakeModel) -> None:
    path = make_model("llama")
    config = read_decoder_config(read_json(path / CONFIG))
    weights = load_weights(path, config, torch.bfloat16, CPU)
    assert weights.head.weight is not None
    assert torch.equal(weights.head.weight, weights.embedding.t())
    down = weights.layers[1].down.weight
    assert down is not None
    assert down.dtype == torch.bfloat16
