"""Weights are fused and reordered so that the decoder's plain products are the model's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import profile

from adaptspec.models.config import Part, read_decoder_config
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.weights import load_weights
from tests.conftest import MakeModel

CPU = torch.device("cpu")


def test_loading_holds_one_matrix_twice_and_no_more(make_model: MakeModel) -> None:
    """A device that the weights fill can load them: counted are all bytes that are allocated meanwhile."""
    path = make_model("llama", intermediate_size=512, num_hidden_layers=6)
    config = read_decoder_config(read_json(path / CONFIG))
    with profile(profile_memory=True) as told:
        weights = load_weights(path, config, torch.bfloat16, CPU)
    assert told.kineto_results is not None
    held, peak = -(path / "model.safetensors").stat().st_size, 0  # which is mapped, and counted as memory
    for event in told.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    matrices = [one.weight for layer in weights.layers for one in (layer.gate_up, layer.down) if one.weight is not None]
    assert 2 * weights.parameters < peak < 2 * weights.parameters + 1.1 * max(one.nbytes for one in matrices)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_loaded_file_is_not_mapped_any_more(make_model: MakeModel) -> None:
    """Tensors that are kept as they are stored must not keep the whole file resident."""
    path = make_model("llama", seed=3)
    weights = load_weights(path, read_decoder_config(read_json(path / CONFIG)), torch.float32, CPU)
    assert weights.parameters > 0
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_parts_are_the_whole(make_model: MakeModel, family: str) -> None:
    """Heads and columns side by side, sums summed, biases once."""
    path = make_model(family)
    config = read_decoder_config(read_json(path / CONFIG))
    whole = load_weights(path, config, torch.bfloat16, CPU)
    parts = [load_weights(path, config, torch.bfloat16, CPU, Part(rank, 2)) for rank in range(2)]
    assert all(part.parameters == whole.parameters for part in parts)
    heads = [part.head.weight for part in (whole, *parts)]
    assert torch.equal(heads[0], torch.cat(heads[1:], 1))
    x = torch.randn(3, config.hidden).bfloat16()
    # Products of other widths may run on other instructions: on some processors their last bits differ.
    joined = torch.cat([part.head.logits(x) for part in parts], 1)
    torch.testing.assert_close(joined, whole.head.logits(x), atol=0.02, rtol=0.016)
    widths = {
        "qkv": [config.heads * config.head_dim] + 2 * [config.kv_heads * config.head_dim],
        "gate_up": 2 * [config.mlp],
    }
    for layer, *own in zip(whole.layers, *(part.layers for part in parts), strict=True):
        for name, sizes in widths.items():
            split = [getattr(one, name)(x).split([size // 2 for size in sizes], 1) for one in own]
            joined = torch.cat([torch.cat(pair, 1) for pair in zip(*split, strict=True)], 1)
            torch.testing.assert_close(joined, getattr(layer, name)(x))
        for name, width in (("output", config.heads * config.head_dim), ("down", config.mlp)):
            y = torch.randn(3, width).bfloat16()
            sums = [getattr(one, name)(some).float() for one, some in zip(own, y.chunk(2, 1), strict=True)]
            torch.testing.assert_close(sum(sums), getattr(layer, name)(y).float(), atol=0.05, rtol=0.02)
