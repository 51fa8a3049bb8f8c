"""The bundled target with the cost of a wider one: `python -m tests.inflated FOLDER [--times 4]`.

Its function, and so the draft model's acceptance, stays what it is. States are repeated, which RMS norms do not notice;
matrices are repeated both ways and divided by how often. What is measured with it is to be called inflated.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import adaptspec

TARGET = Path(adaptspec.__file__).parent / "models" / "bundled" / "target"
WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


def inflate(folder: Path, times: int, target: Path = TARGET) -> Path:
    """Write the target, `times` as wide, to a new folder; powers of two change no rounding but that of sums."""
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.npz"))
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"]
    config |= {width: times * config[width] for width in WIDTHS} | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    weights = {name: _repeated(name, value, times) for name, value in load_file(target / "model.safetensors").items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] / times
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _repeated(name: str, value: torch.Tensor, times: int) -> torch.Tensor:
    if value.ndim == 1:
        return value.repeat(times)
    if "embed_tokens" in name:
        return value.repeat(1, times)
    return value.repeat(times, times) / times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.inflated", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=4)
    told = parser.parse_args()
    inflate(told.folder, told.times)
