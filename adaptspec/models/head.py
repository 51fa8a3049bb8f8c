"""The last product of a model: logits leave it in float32, also where states and weights have 16 bits.

Rounded to bfloat16, logits of the same size tie or change places; sums are made in float32 anyway, so they are kept.
"""

from __future__ import annotations

import torch

WIDENED = 2**20  # weights at a time: 4 MiB in float32, which a CPU's cache holds


def float32_logits(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """`hidden` [N, dim] times `head` [dim, vocab] in float32, whatever they are in.

    On a CPU, where torch has no such product of 16-bit numbers, the head is widened piece by piece, which takes least
    time if it is the transpose of a contiguous matrix.
    """
    if hidden.dtype == torch.float32:
        return torch.mm(hidden, head)
    if hidden.device.type == "cuda":
        return torch.mm(hidden, head, out_dtype=torch.float32)
    wide = hidden.float()
    pieces = torch.split(head, max(1, WIDENED // head.shape[0]), dim=1)
    return torch.cat([torch.mm(wide, piece.float()) for piece in pieces], dim=1)


class Float32Head(torch.nn.Module):
    """Stands in for a model's own head [vocab, dim]; its logits are float32."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of `hidden` [..., dim]."""
        logits = float32_logits(hidden.flatten(0, -2), self.weight.t())
        if self.bias is not None:
            logits += self.bias
        return logits.view(*hidden.shape[:-1], -1)
