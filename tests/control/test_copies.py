"""Copies with changes are what `dataclasses.replace` makes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from adaptspec.control.copies import changed
from tests.control.helpers import record, signals


def test_a_copy_is_what_replace_makes() -> None:
    for thing, change in ((record([3, 1], [2, 0]), {"emitted": np.array([1, 1])}), (signals([7]), {"beside": 2})):
        quick, slow = changed(thing, **change), replace(thing, **change)  # type: ignore[arg-type]
        assert type(quick) is type(slow)
        for field in fields(thing):
            assert getattr(quick, field.name) is getattr(slow, field.name)


def test_the_thing_itself_stays_as_it_was() -> None:
    thing = signals([7])
    assert changed(thing, beside=2).beside == 2
    assert thing.beside == 0
