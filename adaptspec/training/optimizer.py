"""What a training step minimises, and how: the recipe's two losses, and Muon with AdamW behind one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of each matrix; with
updates scaled to AdamW's root mean square (Liu et al. 2025, "Muon is scalable for LLM training") both share one
learning rate. On two CPU cores tokens are the scarce thing, and it needs clearly fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from adaptspec.errors import ConfigError

Loss = Callable[[torch.Tensor], torch.Tensor]  # of token ids [batch, window + 1], a scalar


class Optimizer:
    """Muon for the weight matrices, AdamW for embeddings and norms, with a learning rate set from outside."""

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
        for part in self._parts:
            part.zero_grad(set_to_none=False)

    def state_dict(self) -> dict[str, Any]:
        return {str(i): part.state_dict() for i, part in enumerate(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for i, part in enumerate(self._parts):
            part.load_state_dict(state[str(i)])


def next_token_loss(model: nn.Module, mixed_precision: bool = False) -> Loss:
    """Cross-entropy of the next token, nats, mean over all positions."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        logits = _logits(model, ids[:, :-1], mixed_precision)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))

    return loss


def distillation_loss(draft: nn.Module, target: nn.Module, mixed_precision: bool = False) -> Loss:
    """KL(target || draft) over the vocabulary, nats, mean over all positions.

    The draft learns the target's distribution, not the text: what is accepted is what the target would say.
    """

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher = _logits(target, ids[:, :-1], mixed_precision).log_softmax(-1)
        student = _logits(draft, ids[:, :-1], mixed_precision).log_softmax(-1)
        return F.kl_div(student, teacher, reduction="sum", log_target=True) / ids[:, 1:].numel()

    return loss


def _logits(model: nn.Module, ids: torch.Tensor, mixed_precision: bool) -> torch.Tensor:
    """Logits [batch, window, vocab] in float32."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=mixed_precision):
        logits: torch.Tensor = model(ids, use_cache=False).logits
    return logits.float()
