"""Drafters that can be trained for a target: a small model, and EAGLE-3, Medusa and DFlash heads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from adaptspec.arrays import BoolArray
from adaptspec.errors import ConfigError
from adaptspec.training.head_files import make_head, save_head
from adaptspec.training.heads import target_states
from adaptspec.training.teacher import Teacher

DEPTH_DECAY = 0.8  # weight of a depth relative to the one before it: it is reached less often
LARGE_VOCABULARY, FREQUENT_TOKENS = 64_000, 32_000  # heads draft the most frequent tokens of larger vocabularies


class Student(Protocol):
    """A drafter in training."""

    module: Any  # a torch.nn.Module
    depth: int  # tokens of a round for which it is trained and measured

    def restrict_vocabulary(self, tokens: npt.NDArray[np.uint32], size: int | None) -> None:
        """Draft only the `size` most frequent of the training tokens [N]; None: what suits the vocabulary."""

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """KL(target || student) in nats, mean over positions and depths, for token ids [B, N]."""

    def agreements(self, ids: torch.Tensor, first: int) -> BoolArray:
        """[n, depth] whether drafts of a round that starts at each position from `first` on are the text's [1, N]."""

    def save(self, folder: Path) -> None:
        """Write what `serve --draft` loads."""


class DraftModel:
    """A small model with the tokenizer of the target."""

    def __init__(self, module: nn.Module, teacher: Teacher, depth: int) -> None:
        self.module: Any = module.to(teacher.device)
        self.depth = depth
        self._teacher = teacher

    @classmethod
    def fresh(cls, teacher: Teacher, depth: int, layers: int) -> DraftModel:
        """A model of the target's family, half as wide. Raises ConfigError: the target's family has none."""
        torch.manual_seed(0)
        config = _draft_config(teacher.module.config, layers)
        return cls(AutoModelForCausalLM.from_config(config, dtype=torch.float32), teacher, depth)  # type: ignore[no-untyped-call]

    def restrict_vocabulary(self, tokens: npt.NDArray[np.uint32], size: int | None) -> None:
        """A draft model has the whole vocabulary of its tokenizer."""

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return distillation_loss(self.module, self._teacher.module, ids[:, :-1], self._teacher.mixed_precision)

    @torch.no_grad()
    def agreements(self, ids: torch.Tensor, first: int) -> BoolArray:
        drafted = self.module(ids[:, :-1], use_cache=False).logits[0, first - 1 :].argmax(-1)
        # Every draft before the first wrong one has the true text in front of it.
        agreed = F.pad(drafted == ids[0, first:], (0, self.depth - 1))
        return np.asarray(agreed.unfold(0, self.depth, 1).cpu())

    def save(self, folder: Path) -> None:
        export(self.module, self._teacher.tokenizer, folder)


class Head:
    """A head that reads the target's hidden states."""

    def __init__(self, kind: str, teacher: Teacher, depth: int, layers: int) -> None:
        """Raises ConfigError: the target can have no such head."""
        self.module: Any = make_head(kind, teacher.module, depth, layers).to(teacher.device)
        self.depth = depth
        self._teacher, self._kind = teacher, kind

    def restrict_vocabulary(self, tokens: npt.NDArray[np.uint32], size: int | None) -> None:
        whole = int(self._teacher.module.config.vocab_size)
        size = size or (FREQUENT_TOKENS if whole > LARGE_VOCABULARY else whole)
        if size < whole and self._kind != "medusa":
            frequent = np.bincount(tokens, minlength=whole).argsort(kind="stable")[::-1][:size]
            self.module.draft_only(torch.from_numpy(np.sort(frequent)).to(self._teacher.device))

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        head = self.module
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self._teacher.mixed_precision):
            states, logits = target_states(self._teacher.module, ids, head)
            positions = head.training_positions(ids)
            drafted = head(states[:, : ids.shape[1] - head.depth], ids, positions)
        total = torch.zeros((), device=ids.device)
        for depth, student in enumerate(drafted):
            wanted = logits[:, positions + 1 + depth].float().log_softmax(-1)
            divergence = F.kl_div(student.float().log_softmax(-1), wanted, reduction="sum", log_target=True)
            total = total + DEPTH_DECAY**depth * divergence / (len(ids) * len(positions))
        return total / sum(DEPTH_DECAY**depth for depth in range(len(drafted)))

    @torch.no_grad()
    def agreements(self, ids: torch.Tensor, first: int) -> BoolArray:
        states, _ = target_states(self._teacher.module, ids, self.module)
        # The states of the token before the newest are known when a round begins.
        positions = torch.arange(first - 2, ids.shape[1] - 2, device=ids.device)
        padded = F.pad(ids, (0, self.depth))
        logits = self.module(states[:, : ids.shape[1] - 2], padded, positions)
        drafted = torch.stack([each[0].argmax(-1) for each in logits], 1)
        if self.module.vocabulary is not None:
            drafted = self.module.vocabulary[drafted]
        wanted = padded[0, first:].unfold(0, self.depth, 1)[: len(positions)]
        return np.asarray((drafted == wanted).cpu())

    def save(self, folder: Path) -> None:
        save_head(self.module, self._teacher.module, folder, self._teacher.name)


STUDENTS: Mapping[str, Callable[[Teacher, int, int], Student]] = {
    "draft": DraftModel.fresh,
    "eagle": partial(Head, "eagle"),
    "medusa": partial(Head, "medusa"),
    "dflash": partial(Head, "dflash"),
}
"""By kind: makes a student of a teacher, tokens of a round and layers."""


def distillation_loss(student: nn.Module, teacher: nn.Module, ids: torch.Tensor, mixed_precision: bool) -> torch.Tensor:
    """KL(teacher || student) over the vocabulary in nats, mean over all positions of token ids [B, N].

    The student learns the target's distribution, not the text: drafts are accepted if they are what the target writes.
    """
    with torch.no_grad():
        target = logits_of(teacher, ids, mixed_precision).log_softmax(-1)
    drafted = logits_of(student, ids, mixed_precision).log_softmax(-1)
    return F.kl_div(drafted, target, reduction="sum", log_target=True) / ids.numel()


def logits_of(module: nn.Module, ids: torch.Tensor, mixed_precision: bool) -> torch.Tensor:
    """Logits [B, N, vocab] in float32; `mixed_precision`: products are computed in bfloat16."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=mixed_precision):
        logits: torch.Tensor = module(ids, use_cache=False).logits
    return logits.float()


def export(module: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model of transformers and its tokenizer as a directory, in bfloat16."""
    # A copy: casting the module itself there and back would also round its rotary frequencies.
    copy.deepcopy(module).bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _draft_config(target: Any, layers: int) -> Any:
    """A model of the target's family, half as wide."""
    config = copy.deepcopy(target)
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        if not hasattr(target, name):
            raise ConfigError(
                f"the target is a {target.model_type}, whose config.json has no {name}, so no smaller model can be "
                "made of it; draft with ngram and counts, which need no training"
            )
        setattr(config, name, max(1, getattr(target, name) // 2))
    for whole, part in (("hidden_size", "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
        while getattr(config, whole) % getattr(config, part):
            setattr(config, part, getattr(config, part) - 1)
    config.num_hidden_layers, config.tie_word_embeddings = layers, True
    config.layer_types = (getattr(target, "layer_types", None) or [])[:layers] or None
    return config
