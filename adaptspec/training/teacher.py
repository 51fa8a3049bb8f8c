"""The target as a frozen module of transformers, which drafters learn from: of a directory or a GGUF file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from adaptspec.config import model_path
from adaptspec.errors import ModelError
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.gguf_tensors import GgufTensors, torch_config
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.models.transformers_runner import load_module


@dataclass(frozen=True)
class Teacher:
    """A model in float32 with its tokenizer and chat template. `name` is what the user calls it."""

    name: str
    path: Path  # a directory or a GGUF file
    module: Any  # of transformers, whose annotations are incomplete
    tokenizer: PreTrainedTokenizerFast
    template: ChatTemplate
    device: torch.device

    @property
    def context(self) -> int:
        return int(self.module.config.max_position_embeddings)

    @property
    def mixed_precision(self) -> bool:
        """Whether products are computed in bfloat16: where that is faster."""
        capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
        return self.device.type != "cpu" or bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the weights, whatever file they come from."""
        digest = hashlib.blake2b(digest_size=16)
        for name, weights in sorted(self.module.named_parameters()):
            digest.update(f"{name} {list(weights.shape)} {weights.dtype} ".encode())
            digest.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def load_teacher(name: str, device: torch.device) -> Teacher:
    """Load a directory, a hub id, "bundled", or a GGUF file, whose weights are converted to float32.

    Raises ModelError: the model cannot be loaded.
    """
    path = find_model(model_path(name, "target"), gguf=True)
    module = _load_gguf(path) if is_gguf(path) else load_module(path, torch.float32, torch.device("cpu"))
    tokenizer = load_tokenizer(str(path))
    module.requires_grad_(False)
    return Teacher(name, path, nn.Module.to(module, device).eval(), tokenizer, ChatTemplate(tokenizer), device)


def _load_gguf(path: Path) -> Any:
    header = read_header(path)
    settings = torch_config(header)
    if header.end_tokens:
        settings["eos_token_id"] = list(header.end_tokens)
    config = AutoConfig.for_model(**settings)
    module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    tensors = GgufTensors(header)
    weights = {name: tensors.get_tensor(name) for name in list(tensors.keys())}
    report = module.load_state_dict(weights, strict=False)
    missing = [name for name in report.missing_keys if not (config.tie_word_embeddings and name == "lm_head.weight")]
    if missing or report.unexpected_keys:
        raise ModelError(f"{path}: tensors are missing or unknown ({[*missing, *report.unexpected_keys][:3]})")
    module.tie_weights()
    return module
