"""Plain greedy decoding by `transformers`, on the weights that an engine serves."""

from __future__ import annotations

from typing import Any

import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.errors import ConfigError
from adaptspec.models.gguf import is_gguf
from adaptspec.models.source import find_model
from adaptspec.models.transformers_runner import load_module


def check_transformers(config: EngineConfig, instead: str = "") -> None:
    """Raises ConfigError: it does not run the model, which is a GGUF file; `instead` ends the message."""
    if is_gguf(find_model(config.target_path, gguf=True)):
        raise ConfigError(
            f"transformers is not compared on a GGUF file such as {config.model}; give --model DIR with safetensors"
            f"{instead}"
        )


class TransformersDecoding:
    """A model that writes `tokens` tokens at most."""

    def __init__(self, built: Built, config: EngineConfig, tokens: int) -> None:
        info = built.target.info
        self._device, self._ends, self._tokens = built.target.device, list(info.eos_token_ids), tokens
        self._model: Any = load_module(find_model(config.target_path), getattr(torch, info.dtype), self._device)

    @torch.inference_mode()
    def write(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The answer, with the token that ends it."""
        ids = torch.tensor([prompt], device=self._device)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self._tokens,
            eos_token_id=self._ends or None,
            pad_token_id=0,
        )
        return tuple(out[0, len(prompt) :].tolist())
