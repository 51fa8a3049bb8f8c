"""The recipe's optimizer: Muon for the weight matrices, AdamW for embeddings and norms.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of
each matrix; with updates scaled to AdamW's root mean square (Liu et al. 2025, "Muon is scalable for
LLM training") both share one learning rate. On two CPU cores tokens are the scarce thing, and it
needs clearly fewer of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from adaptspec.errors import ConfigError


class Optimizer:
    """Muon and AdamW behind one `step`, with a learning rate that is set from outside."""

    def __init__(self, model: nn.Module, learning_rate: float, weight_decay: float = 0.1) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError(f"training needs torch >= 2.9 (found {torch.__version__}): pip install -U 'torch>=2.9'")
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._model = model
        self._peak = learning_rate
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=learning_rate, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )

    def step(self, schedule: float) -> None:
        """Apply the gathered gradients at `schedule` (0..1) times the peak learning rate, then clear them."""
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._peak * schedule
            part.step()
        self.clear()

    def clear(self) -> None:
        """Forget the gathered gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=False)

    def state_dict(self) -> dict[str, Any]:
        """Both parts' state, for a checkpoint."""
        return {str(i): part.state_dict() for i, part in enumerate(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `state_dict` gave."""
        for i, part in enumerate(self._parts):
            part.load_state_dict(state[str(i)])
