"""The optimizer: which parameters each part takes, and that it learns."""

from __future__ import annotations

import torch
from torch import nn

from adaptspec.training.optimizer import Optimizer


class _Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.Linear(8, 8, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(self.norm(self.embed(ids))) @ self.embed.weight.T
        return out


def test_it_learns_with_every_parameter_and_clears_gradients() -> None:
    """Both parts step; a schedule of zero moves nothing."""
    torch.manual_seed(0)
    model, ids = _Toy(), torch.arange(5)
    optimizer = Optimizer(model, 0.02)
    before = [p.clone() for p in model.parameters()]
    losses = []
    for step in range(30):
        loss = nn.functional.cross_entropy(model(ids), ids)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(0.0 if step == 0 else 1.0)
        assert all(float(p.grad.abs().sum()) == 0 for p in model.parameters() if p.grad is not None)
        if step == 0:
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
