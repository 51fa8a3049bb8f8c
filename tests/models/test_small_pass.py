"""The quick pass for a few tokens of a few rows is the plain pass: logits and what is cached, for every family."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.models.attention import Span
from adaptspec.models.small_pass import MOST, WIDEST, SmallPass
from tests.conftest import MakeModel
from tests.models.packing import assert_alike_but_for_rounding, cached, load_runner, pack, random_tokens
from tests.models.test_decoder import VARIANTS, lean, model_path

PAGED = 5  # tokens in a block of a paged cache, whose passes are always plain
LONG = 2050  # tokens: more than masks are kept for


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "window" not in name])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(widths=st.lists(st.tuples(st.integers(1, WIDEST), st.integers(1, WIDEST)), min_size=1, max_size=4))
def test_it_is_the_plain_pass(make_model: MakeModel, variant: str, widths: list[tuple[int, int]]) -> None:
    """Passes of changing width on one text, each with some of its logits wanted."""
    path = model_path(make_model, variant)
    quick, plain = lean(path), lean(path, PAGED)
    for width, wanted in widths:
        tokens = random_tokens(width, seed=width)
        packed = pack((0, tokens, min(wanted, width)))
        assert_alike_but_for_rounding(quick.forward(packed), plain.forward(packed))
    length = quick.length(0)
    assert length == plain.length(0) == sum(width for width, _ in widths)
    assert_alike_but_for_rounding(cached(quick, 0), cached(plain, 0))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "window" not in name])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    passes=st.lists(
        st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_rows_together_are_the_plain_pass(
    make_model: MakeModel, variant: str, passes: list[dict[int, tuple[int, int]]]
) -> None:
    """Rows come and go between passes, each with tokens of its own, and with none, some or all of its logits wanted."""
    path = model_path(make_model, variant)
    quick, plain = lean(path), lean(path, PAGED)
    for rows in passes:
        parts = [
            (row, random_tokens(width, seed=row + width), min(wanted, width)) for row, (width, wanted) in rows.items()
        ]
        assert_alike_but_for_rounding(quick.forward(pack(*parts)), plain.forward(pack(*parts)))
    for row in range(4):
        length = quick.length(row)
        assert length == plain.length(row) == sum(rows[row][0] for rows in passes if row in rows)
        if length:
            assert_alike_but_for_rounding(cached(quick, row), cached(plain, row))


def test_large_passes_are_left_to_the_plain_form() -> None:
    """Many tokens, or many of one row, are faster there."""
    assert SmallPass.takes([Span(row, 5, 5 + WIDEST) for row in range(MOST // WIDEST)])
    assert not SmallPass.takes([Span(0, 0, WIDEST + 1)])
    assert not SmallPass.takes([Span(0, 0, WIDEST + 1), Span(1, 3, 4)])
    assert not SmallPass.takes([Span(row, 5, 6) for row in range(MOST + 1)])


def test_logits_stay_when_the_next_pass_runs(make_model: MakeModel) -> None:
    """Its memory is used again and again; what it hands out is the caller's."""
    runner = lean(model_path(make_model, "llama"))
    first = runner.forward(pack((0, [1, 2, 3], 3)))
    kept = first.clone()
    runner.forward(pack((0, [4, 5, 6], 3)))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_rows_longer_than_the_masks_at_hand(make_model: MakeModel, variant: str) -> None:
    """A mask made for the pass hides what the ready one hides. The first pass of a row is too long for a quick one."""
    path = str(make_model(variant, max_position_embeddings=LONG + 64))
    quick, plain = (
        load_runner(path, device="cpu", max_rows=2, context=LONG + 64, block_size=size) for size in (None, PAGED)
    )
    for width in (LONG, 5, 3, 9):
        packed = pack((0, random_tokens(width, seed=width), 1), (1, random_tokens(2, seed=width), 1))
        assert_alike_but_for_rounding(quick.forward(packed), plain.forward(packed))
