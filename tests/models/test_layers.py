"""The quick form of RMS norm is RMS norm, down to vectors of zeros."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from adaptspec.models.layers import rms_norm, rms_norm_into


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_equal_torchs(scale: float, dtype: torch.dtype) -> None:
    """Where eps matters (tiny vectors) as well as where it does not."""
    torch.manual_seed(0)
    x, weight = (torch.randn(3, 5, 48) * scale).to(dtype), torch.randn(48).to(dtype)
    kept = x.clone()
    torch.testing.assert_close(rms_norm(weight, 1e-6)(x), F.rms_norm(x, (48,), weight, 1e-6))
    assert torch.equal(x, kept), "the residual stream must not change"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_head_may_have_its_own_weight(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4, 16).to(dtype), torch.randn(4, 16).to(dtype)
    got = rms_norm(weight, 1e-5)(x)
    for head in range(4):
        expected = F.rms_norm(x[:, head], (16,), weight[head], 1e-5)
        torch.testing.assert_close(got[:, head], expected, atol=1e-5 if dtype == torch.float32 else 0.05, rtol=0.02)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_the_matrix_behind_it_may_share_a_weight(scale: float, dtype: torch.dtype) -> None:
    """Wherever the weight went, the product is that of the plain norm with the plain matrix."""
    torch.manual_seed(0)
    x, weight, matrix = (torch.randn(5, 48) * scale).to(dtype), torch.randn(48).to(dtype), torch.randn(48, 7).to(dtype)
    expected = F.rms_norm(x, (48,), weight, 1e-6) @ matrix
    torch.testing.assert_close(rms_norm_into(weight, 1e-6, matrix)(x) @ matrix, expected)
