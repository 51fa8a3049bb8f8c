"""Models with a padded vocabulary: ids that no token has, as likely as those of tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ROOM = 40  # rows of padding


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a model in place."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def padded(original: Path, folder: Path) -> Path:
    """The same model with more rows in its embeddings than its tokenizer has tokens, whose scores are high."""
    shutil.copytree(original, folder)
    edited(folder, "config.json", lambda config: config.update(vocab_size=config["vocab_size"] + ROOM))
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = torch.cat([tensors[name], 1.5 * tensors[name][-ROOM:]])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
