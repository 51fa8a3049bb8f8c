"""Weights are fused and reordered so that the decoder's plain products are the model's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from adaptspec.models.config import Part, read_decoder_config
from adaptspec.models.layers import has_products
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.weights import load_weights
from tests.conftest import MakeModel

CPU = torch.device("cpu")
FORMS = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if has_products(dtype)]


def memory(name: str) -> int:
    """Bytes of this process: `RssAnon`, its own, or `RssFile`, those of mapped files."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", FORMS, ids=str)
def test_weights_are_held_once(make_model: MakeModel, dtype: torch.dtype) -> None:
    """Packed, and not beside the file that they were read from; only a layer is there twice while it is packed."""
    path = make_model("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=10)
    config = read_decoder_config(read_json(path / CONFIG))
    load_weights(path, config, dtype, CPU)  # libraries have their own memory from here on
    own, mapped = memory("RssAnon"), memory("RssFile")
    weights = load_weights(path, config, dtype, CPU)
    size, layer = weights.parameters * dtype.itemsize, weights.parameters // config.layers * 4
    assert memory("RssAnon") - own < size + 3 * layer
    assert memory("RssFile") - mapped < layer


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_parts_are_the_whole(make_model: MakeModel, family: str) -> None:
    """Heads and columns side by side, sums summed, biases once."""
    path = make_model(family)
    config = read_decoder_config(read_json(path / CONFIG))
    whole = load_weights(path, config, torch.bfloat16, CPU)
    parts = [load_weights(path, config, torch.bfloat16, CPU, Part(rank, 2)) for rank in range(2)]
    assert all(part.parameters == whole.parameters for part in parts)
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
