"""What drafts in the matrix: models made for the tests, heads of random weights, and drafters without a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from adaptspec.config import model_path
from tests.conftest import TINY_VOCAB, write_tiny_model
from tests.drafting.spellings import respelled_draft, translated_draft
from tests.models.heads.golden import HEADS, medusa, write_mtp
from tests.models.tiny_gguf import write_gguf

# Sizes that the golden heads were made for. Their tokens: 4 special ones and 256 bytes.
TARGET = {"hidden_size": 16, "num_hidden_layers": 4}
NOISE = 0.02  # of the weights of a draft model, whose target draws them 0.25 wide
PADDED = TINY_VOCAB + 8
FEW = 4  # tokens that are likely where a drafter agrees with its target by chance only


@dataclass(frozen=True)
class Drafter:
    """A drafter as a policy names it, and the models that it needs.

    `target` and `draft` are names of `Models`, or of parts of the target. `agrees`: its drafts are
    often accepted, whatever is asked for; others need requests that leave a target few tokens. `copies`: it drafts what
    the target writes. `grows`: it drafts on from nodes off its main chain. `united`: the model-free drafter that adds
    to its drafts.
    """

    policy: str = "draft-model"
    target: str = "target"
    draft: str = "noisy"
    agrees: bool = True
    copies: bool = False
    grows: bool = False
    united: str = "ngram"

    @property
    def is_head(self) -> bool:
        return self.draft.startswith("head:")

    @property
    def is_own(self) -> bool:
        """Whether it is made of weights of a Llama-like target."""
        return self.draft == "mtp" or (":" in self.draft and not self.is_head)

    @property
    def runs_model(self) -> bool:
        return self.policy == "draft-model"


def _head(name: str) -> Drafter:
    return Drafter(draft=f"head:{name}", agrees=False)


DRAFTERS: Mapping[str, Drafter] = {
    "draft-model": Drafter(grows=True),
    "copy": Drafter(draft="target", copies=True, grows=True),
    "wider-vocabulary": Drafter(draft="noisy-padded", grows=True),
    "narrower-vocabulary": Drafter(target="target-padded", draft="noisy-unpadded", grows=True),
    "bundled": Drafter(target="bundled", draft="bundled-draft", grows=True),
    "shared-tokens": Drafter(target="bundled", draft="respelled", grows=True),
    "through-text": Drafter(target="bundled", draft="translated"),
    "first-layers": Drafter(draft="first-layers:3", grows=True),
    "quantized": Drafter(draft="quantized:int4", grows=True),
    "ngram": Drafter("ngram", agrees=False, united="counts"),
    "counts": Drafter("counts", agrees=False),
    "lookahead": Drafter("lookahead", agrees=False),
    "prediction": Drafter("ngram", united="counts"),
    "own-mtp": Drafter(target="qwen3-mtp", draft="mtp", agrees=False),
    "eagle3": _head("eagle3"),
    "eagle3.1": _head("eagle3.1"),
    "mtp": _head("mtp"),
    "dflash": _head("dflash"),
    "medusa": _head("medusa"),
}

# Models that a runtime runs in place of others.
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "transformers": {"target": "transformers", "noisy": "noisy-transformers"},
    "llama.cpp": {"target": "gguf", "noisy": "noisy-gguf"},
}
WHOLE_BLOCKS = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3}  # Q8_0 has blocks of 32 weights


class Models:
    """Folders of models by name, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, name: str) -> str:
        """The folder of a model, or the name itself where it is a part of the target."""
        if name in ("bundled", "bundled-draft"):
            return model_path("bundled", "draft" if name == "bundled-draft" else "target")
        if name.startswith("head:"):
            return str(self._head(name.removeprefix("head:")))
        if name not in self._makers:
            return name
        if not (self._root / name).exists():
            self._makers[name](self._root / name)
        return str(self._root / name)

    def vocabulary(self, name: str) -> list[int]:
        """The tokens that a head of a vocabulary of its own can draft; none where it can draft all of the target's."""
        if not name.startswith("head:"):
            return []
        offsets = load_file(Path(self.place(name)) / "model.safetensors").get("d2t")
        return [] if offsets is None else (offsets + torch.arange(len(offsets))).tolist()

    @cached_property
    def _makers(self) -> dict[str, Callable[[Path], Any]]:
        return {
            "target": lambda folder: write_tiny_model(folder, "llama", 0, TARGET),
            "target-padded": lambda folder: self._resized(folder, "target", PADDED),
            "noisy": lambda folder: self._noisy(folder, "target"),
            "noisy-padded": lambda folder: self._resized(folder, "noisy", PADDED),
            "noisy-unpadded": lambda folder: shutil.copytree(self.place("noisy"), folder),
            "qwen3-mtp": _with_mtp,
            "transformers": lambda folder: write_tiny_model(
                folder, "gpt2", 0, {**TARGET, "max_position_embeddings": 128}
            ),
            "noisy-transformers": lambda folder: self._noisy(folder, "transformers"),
            "wide": lambda folder: write_tiny_model(folder, "llama", 0, WHOLE_BLOCKS),
            "noisy-wide": lambda folder: self._noisy(folder, "wide"),
            "gguf": lambda folder: self._as_gguf(folder, "wide"),
            "noisy-gguf": lambda folder: self._as_gguf(folder, "noisy-wide"),
            "respelled": respelled_draft,
            "translated": translated_draft,
        }

    def _noisy(self, folder: Path, original: str) -> None:
        """A model that mostly agrees with the original: its weights with noise."""
        shutil.copytree(self.place(original), folder)
        chance = torch.Generator().manual_seed(1)
        tensors = load_file(folder / "model.safetensors")
        noisy = {name: one + NOISE * torch.randn(one.shape, generator=chance) for name, one in tensors.items()}
        _save(noisy, folder)

    def _resized(self, folder: Path, original: str, vocabulary: int) -> None:
        """The same model with rows for more tokens than its tokenizer has, which are as likely as others."""
        shutil.copytree(self.place(original), folder)
        tensors, name = load_file(folder / "model.safetensors"), "model.embed_tokens.weight"
        more = 1.5 * tensors[name][-(vocabulary - TINY_VOCAB) :]
        _save(tensors | {name: torch.cat([tensors[name], more])}, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": vocabulary}))

    def _as_gguf(self, folder: Path, original: str) -> None:
        """A folder with a GGUF file alone, in 8 bits."""
        folder.mkdir()
        write_gguf(Path(self.place(original)), folder / "model.gguf", "Q8_0")

    def _head(self, name: str) -> Path:
        if name != "medusa":
            return HEADS / name
        if not (self._root / name).exists():
            medusa(self._root / name, own=True)
        return self._root / name


def _with_mtp(folder: Path) -> None:
    """A model that brings a layer for multi-token prediction in its own files."""
    write_tiny_model(folder, "qwen3", 0, {})
    write_mtp(folder)


def _save(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
