"""Golden heads, and their texts as a target would read and write them."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from adaptspec.models.heads.head_checkpoint import PLAIN_HEADS, HeadMakers, load_head
from adaptspec.models.heads.head_runner import ABSENT, HeadRunner
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import LoadedModel, load_model
from tests.conftest import MakeModel
from tests.models.packing import pack

HEADS = Path(__file__).parents[2] / "goldens" / "heads"
HIDDEN, VOCAB = 16, 260
FIRST = 7  # the token that a text begins with, which no state comes before


def golden_target(make_model: MakeModel, dtype: str = "float32") -> LoadedModel:
    """One that the heads of tests/goldens fit."""
    return load_model(str(make_model("llama", hidden_size=16, num_hidden_layers=4)), dtype=dtype)


def names_of(*kinds: str) -> list[str]:
    return sorted(folder.name for folder in HEADS.iterdir() if folder.is_dir() and folder.name.startswith(kinds))


def head_runner(
    folder: Path, target: LoadedModel, *, pickles: bool = False, makers: HeadMakers = PLAIN_HEADS, **limits: int
) -> HeadRunner:
    """A head with a cache of a few short rows."""
    limits = {"context": 64, **limits}
    runner = load_head(str(folder), target, pickles=pickles, makers=makers).runner(CacheLimits(4, **limits))
    assert isinstance(runner, HeadRunner)
    return runner


def head_of(
    make_model: MakeModel,
    name: str,
    folder: Path,
    target: LoadedModel | None = None,
    makers: HeadMakers = PLAIN_HEADS,
    **limits: int,
) -> HeadRunner:
    """With what it was computed with where it does not bring its own (see make.py)."""
    place = folder / name
    if not place.exists():
        copytree(HEADS / name, place)
        tensors = load_file(place / "model.safetensors")
        line = torch.linspace(-1, 1, 260 * 16)
        tensors.setdefault("embed_tokens.weight", line.view(260, 16).clone())
        tensors.setdefault("lm_head.weight", line.sin().view(260, 16).clone())
        save_file(tensors, place / "model.safetensors")
    return head_runner(place, target or golden_target(make_model), makers=makers, **limits)


class Text:
    """A golden text as the target would read and write it."""

    def __init__(self, runner: HeadRunner, name: str, row: int = 0) -> None:
        saved = load_file(HEADS / name / "expected.safetensors")
        self.runner, self.row, self.passed = runner, row, 0
        self.states, self.expected = saved["states"], saved["logits"]
        self.tokens = [FIRST, *saved["tokens"].tolist()]

    def pass_states(self, upto: int) -> None:
        """The target has read on, and what it read is committed."""
        new = self.states[self.passed : upto]
        self.runner.on_hidden_states([self.row], [self.passed], [len(new)], new)
        self.passed = upto

    def draft(self, upto: int) -> torch.Tensor:
        """The drafter reads on, and asks for the logits after the last token [vocab]."""
        return drafted(self.runner, self.tokens[:upto], self.row)

    def own(self, logits: torch.Tensor) -> torch.Tensor:
        """Of the head's own vocabulary; others are never drafted."""
        tokens = self.runner.spec.vocabulary
        if tokens is None:
            return logits
        assert (logits > ABSENT).sum() == len(tokens)
        return logits[tokens]


def drafted(runner: HeadRunner, text: list[int], row: int = 0) -> torch.Tensor:
    """Logits after a text of which the head has read a part."""
    assert runner.reserve(row, len(text))
    return runner.forward(pack((row, text[runner.length(row) :], 1))).logits[0]


def medusa(folder: Path, own: bool, heads: int = 3) -> dict[str, torch.Tensor]:
    """A Medusa of random weights by the names of its project, or by vLLM's."""
    torch.manual_seed(2)
    names = ("blocks.{}.layers.0", "lm_heads.{}") if own else ("{}.0.linear", "{}.1")
    tensors = {}
    for i in range(heads):
        tensors[f"{names[0].format(i)}.weight"] = torch.randn(HIDDEN, HIDDEN) * 0.3
        tensors[f"{names[0].format(i)}.bias"] = torch.randn(HIDDEN) * 0.3
        tensors[f"{names[1].format(i)}.weight"] = torch.randn(VOCAB, HIDDEN)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    about: dict[str, Any] = {"medusa_num_heads": heads, "medusa_num_layers": 1}
    if own:
        about = {"model_type": "medusa", "num_heads": heads, "num_hidden_layers": 1, "hidden_size": HIDDEN}
    (folder / "config.json").write_text(json.dumps(about))
    return tensors


def write_mtp(folder: Path) -> None:
    """Add a random layer for multi-token prediction to a Qwen 3 of one file."""
    tensors = load_file(folder / "model.safetensors")
    hidden = tensors["model.norm.weight"].numel()
    norms = {
        f"mtp.{name}.weight": torch.ones(hidden) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    layer = {
        name.replace("model.layers.0.", "mtp.layers.0."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.")
    }
    save_file(
        tensors | norms | layer | {"mtp.fc.weight": torch.randn(hidden, 2 * hidden) / 8}, folder / "model.safetensors"
    )
