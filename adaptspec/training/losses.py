"""The two losses of the recipe: next token for the target, distillation for the draft."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from adaptspec.training.loop import Loss


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
