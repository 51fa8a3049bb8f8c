"""Numbers in config.json are what they should be, or the message names the field."""

from __future__ import annotations

import pytest

from adaptspec.errors import ModelError
from adaptspec.models.fields import check_sizes, count, number


def test_missing_and_null_fields_take_the_default() -> None:
    assert count({"a": None}, "a", 3) == 3
    assert number({}, "a", 0.5) == 0.5
    assert count({"a": 7}, "a", 3) == 7
    assert number({"a": 2}, "a") == 2.0


@pytest.mark.parametrize("value", [None, 0, -1, "3", True, 2.5])
def test_what_is_no_positive_integer_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"size is .*positive integer"):
        count({"size": value}, "size")


@pytest.mark.parametrize("value", [None, 0, -0.1, "x", False, float("nan"), [1]])
def test_what_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"eps is .*positive number"):
        number({"eps": value}, "eps")


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 10**9},
        {"n_layer": -1},
        {"num_attention_heads": -4},
        {"text_config": {"num_layers": 1e9}},
        {"parts": [{"hidden_size": 10**30}]},
    ],
)
def test_sizes_that_no_model_has_are_refused_wherever_they_stand(config: dict[str, object]) -> None:
    """Before a library begins to build it."""
    with pytest.raises(ModelError, match="no model has more than"):
        check_sizes(config)
    check_sizes({"num_hidden_layers": 61, "vocab_size": 262_144, "sliding_window": None, "text_config": {"n_head": 8}})


def test_counts_and_numbers_have_an_end() -> None:
    for config in ({"a": 2**31}, {"a": 10**400}):
        with pytest.raises(ModelError, match="at most") as caught:
            count(config, "a")
        assert len(str(caught.value)) < 200
    with pytest.raises(ModelError, match="positive number"):
        number({"a": float("inf")}, "a")
