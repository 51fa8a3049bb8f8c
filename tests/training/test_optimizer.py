"""The optimizer: which parameters each part takes, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from adaptspec.training.optimizer import Optimizer, distillation_loss, next_token_loss


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


IDS = torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(0))


def _model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, num_key_value_heads=2, initializer_range=0.3, **sizes))


def test_next_token_loss_is_the_mean_negative_log_likelihood() -> None:
    """Token t is predicted from those before it."""
    model = _model(0)
    log_p = model(IDS).logits.log_softmax(-1)
    wanted = -torch.stack([log_p[b, t, IDS[b, t + 1]] for b in range(2) for t in range(6)]).mean()
    assert next_token_loss(model)(IDS).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_distillation_is_the_divergence_from_the_target_and_trains_the_draft_alone() -> None:
    """KL(target || draft) per position; zero for equal models."""
    draft, target = _model(0), _model(1)
    loss = distillation_loss(draft, target)(IDS)
    p, q = target(IDS[:, :-1]).logits.softmax(-1), draft(IDS[:, :-1]).logits.softmax(-1)
    assert loss.item() == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-4)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in draft.parameters())
    assert distillation_loss(draft, draft)(IDS).item() == pytest.approx(0.0, abs=1e-6)


def test_mixed_precision_is_near_float32() -> None:
    """The bfloat16 path computes the same thing."""
    model = _model(0)
    assert next_token_loss(model, True)(IDS).item() == pytest.approx(next_token_loss(model)(IDS).item(), rel=0.02)
