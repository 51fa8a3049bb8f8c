"""A pass at full size on fake CUDA reads nothing on the host, mixes no devices, and moves no more than it did."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.fake import fake_cuda

pytestmark = pytest.mark.whole
# What a captured part of a round takes now, at most: kernels, and the bytes that they move over those of weights, keys
# and values once, by (shape, rows, tokens cached in each, new tokens in each). 8B: a verify pass, 0.5B: a step
# of its draft. Whoever lowers them writes it down here.
PASSES: dict[tuple[str, int, int, int], tuple[int, float]] = {
    ("llama-8b", 1, 512, 1): (344, 1.055),
    ("llama-8b", 1, 8192, 1): (344, 1.052),
    ("llama-8b", 1, 8192, 5): (344, 1.057),
    ("llama-8b", 16, 4096, 4): (344, 1.061),
    ("llama-8b", 16, 4096, 5): (474, 1.753),  # two tiles: weights are read twice
    ("llama-8b, heard", 16, 4096, 4): (347, 1.062),
    ("qwen-0.5b", 1, 512, 1): (249, 1.05),
    ("qwen-0.5b", 16, 4096, 1): (249, 1.057),
}


@pytest.fixture(scope="module")
def taken() -> dict[tuple[str, int, int, int], dict[str, Any]]:
    return dict(zip(PASSES, fake_cuda("tests.gpu.fake_models:passes", list(PASSES)), strict=True))


@pytest.mark.parametrize("case", PASSES, ids=str)
def test_kernels_and_bytes_of_captured_parts(taken: dict[Any, dict[str, Any]], case: tuple[str, int, int, int]) -> None:
    found, (kernels, share) = taken[case], PASSES[case]
    assert found["kernels"] <= kernels, found
    assert found["moved"] / found["needed"] <= share, found
    assert not found["copies"], "a graph cannot hold what asks the host"
    assert 0.3 * found["counted"] <= found["peak"] <= found["counted"], str(found)


def test_reads_and_mixing_are_refused() -> None:
    """What would stop a capture, or fail on a device, stops here: a pass that runs does none of it."""
    found = fake_cuda("tests.gpu.fake_models:refused")
    assert found.pop("neither") == "FakeTensor"
    assert {found.pop(name) for name in ("mixed", "mixed index")} == {"FakeTensorDeviceMismatchError"}
    assert {found.pop(name) for name in ("mask", "nonzero")} == {"DynamicOutputShapeException"}
    assert set(found) == {"item", "tolist", "branch"}
    assert set(found.values()) == {"DataDependentOutputException"}
