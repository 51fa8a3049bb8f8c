"""The check at start sees from how many tokens on a pass gives other bits, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.models.pass_range import SIZES, Repeating, equal_passes, exactness
from adaptspec.models.runner import Forward, Packed, Runner
from tests.conftest import MakeModel
from tests.models.packing import load_runner


class Rounding:
    """A model whose logits are rounded in another way in passes of these numbers of tokens, as by some libraries."""

    def __init__(self, model: Runner, *rounded: int) -> None:
        self.info, self.device = model.info, model.device
        self.reserve, self.truncate, self.keep = model.reserve, model.truncate, model.keep
        self.length, self.free, self.share_of = model.length, model.free, model.share_of
        self.copy_prefix = model.copy_prefix
        self._model, self._rounded = model, rounded

    @property
    def free_memory(self) -> float:
        return self._model.free_memory

    def forward(self, packed: Packed) -> Forward:
        found = self._model.forward(packed)
        return Forward(found.logits * (1 + 2**-20)) if len(packed.tokens) in self._rounded else found


class FarOn(Rounding):
    """The same, but only behind 512 tokens."""

    def repeat(self, row: int, length: int) -> None:
        assert isinstance(self._model, Repeating)
        self._model.repeat(row, length)

    def forward(self, packed: Packed) -> Forward:
        near = self._model.length(0) < 512
        return self._model.forward(packed) if near else super().forward(packed)


class Anywhere(Rounding):
    """The same, and it can repeat what it has cached."""

    def repeat(self, row: int, length: int) -> None:
        assert isinstance(self._model, Repeating)
        self._model.repeat(row, length)


@pytest.fixture
def model(make_model: MakeModel) -> Runner:
    return load_runner(make_model("llama"), max_rows=1, context=96)


@pytest.mark.parametrize(
    ("rounded", "most"),
    [((), max(SIZES)), ((1,), 0), ((2,), 0), ((16, 33), 12), ((33,), 16)],
    ids=["never", "a single token", "two", "from 16 on", "the widest"],
)
def test_the_range_ends_before_the_first_pass_with_other_bits(
    model: Runner, rounded: tuple[int, ...], most: int
) -> None:
    assert equal_passes(Rounding(model, *rounded), seconds=60.0) == most
    assert model.free_memory == 1.0


def test_a_model_that_rounds_in_every_pass_starts_all_the_same(make_model: MakeModel) -> None:
    """Nothing that could be repeated is left in its cache then."""
    model = Anywhere(load_runner(make_model("llama", max_position_embeddings=1024), max_rows=1), *SIZES)
    assert equal_passes(model, seconds=60.0) == 0


def test_a_slow_model_is_tried_at_the_first_sizes_alone(model: Runner) -> None:
    clock = iter(range(0, 1000, 10))
    assert equal_passes(model, timer=lambda: next(clock)) == 16


@pytest.mark.parametrize(("rounded", "most"), [((), max(SIZES)), ((3,), 0), ((8,), 7)])
def test_other_kernels_far_on_in_a_text_are_seen(make_model: MakeModel, rounded: tuple[int, ...], most: int) -> None:
    """Libraries choose kernels by the number of keys, too."""
    far = FarOn(load_runner(make_model("llama", max_position_embeddings=1024), max_rows=1), *rounded)
    assert isinstance(far, Repeating)
    assert equal_passes(far, seconds=60.0) == most


def test_a_short_context_is_no_obstacle(make_model: MakeModel) -> None:
    assert equal_passes(load_runner(make_model("llama"), max_rows=1, context=18)) == 16


def test_what_was_found_is_said(model: Runner) -> None:
    assert "same bits in passes of 1 to 33 tokens" in exactness(replace(model.info, equal_passes=33))
    for nothing in (0, None):
        assert "nearly equally likely" in exactness(replace(model.info, equal_passes=nothing))
