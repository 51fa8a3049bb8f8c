"""What messages of all kinds share."""

from __future__ import annotations

import pytest

from adaptspec.quantity import quantity


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (4096, "4,096 entries")]
)
def test_quantities_are_of_one_thing_or_of_several(number: int, said: str) -> None:
    assert quantity(number, "entry", "entries", form=",") == said
    assert quantity(1, "item") == "1 item"
    assert quantity(4096, "item") == "4096 items"
