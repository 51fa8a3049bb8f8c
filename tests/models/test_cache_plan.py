"""Cache sizes: what was asked for is kept, what cannot fit is said."""

from __future__ import annotations

import pytest
import torch

from adaptspec.errors import ModelError
from adaptspec.models.cache_plan import CacheLimits, CachePlan, plan_cache

EACH = 256  # bytes per token
CPU = torch.device("cpu")


def plan(
    *,
    tokens: int | None = None,
    context: int | None = None,
    ceiling: bool = False,
    block: int | None = None,
    room: int | None = None,
) -> CachePlan:
    limits = CacheLimits(4, tokens, context, context_is_ceiling=ceiling, block_size=block, room=room)
    return plan_cache("some/model", EACH, CPU, longest=1000, limits=limits)


def test_on_cpu_a_block_is_a_whole_row_and_all_rows_fit() -> None:
    assert plan() == CachePlan(4000, 1000, 1000)
    assert plan(context=64) == CachePlan(256, 64, 64)


def test_fewer_tokens_mean_shorter_rows_unless_the_context_is_given() -> None:
    assert plan(tokens=400) == CachePlan(400, 100, 100)
    assert plan(tokens=400, context=300) == CachePlan(300, 300, 300)


def test_small_blocks_share_the_tokens() -> None:
    assert plan(tokens=400, context=90, block=16) == CachePlan(96 * 4, 90, 16)
    assert plan(tokens=200, context=90, block=16) == CachePlan(192, 90, 16)
    assert plan(tokens=200, block=32) == CachePlan(192, 192, 32)


@pytest.mark.parametrize(("tokens", "context"), [(None, 2000), (None, 3), (100, 500)])
def test_what_cannot_fit_is_refused(tokens: int | None, context: int) -> None:
    with pytest.raises(ModelError, match=r"^some/model: .*context"):
        plan(tokens=tokens, context=context)


def test_a_context_that_is_a_ceiling_is_cut_to_the_models_own() -> None:
    """A draft may hold less than its target."""
    assert plan(context=2000, ceiling=True) == CachePlan(4000, 1000, 1000)
    assert plan(context=64, ceiling=True) == CachePlan(256, 64, 64)


def test_a_share_of_the_memory_is_kept() -> None:
    """Two models on one device: neither takes what is meant for the other."""
    assert plan(room=800 * EACH) == CachePlan(800, 200, 200)
