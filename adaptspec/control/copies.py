"""Copies of frozen data with some fields changed, for where a round's time counts. Knows no particular data."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def changed(thing: T, **fields: object) -> T:
    """`dataclasses.replace`, in a fifth of the time: that goes through `__init__`, which sets every field of a frozen
    dataclass by a call. Nothing is checked, so `fields` must be fields. What a thing worked out once and keeps is
    copied with the rest: it must not rest on what is changed.
    """
    copy = object.__new__(type(thing))
    copy.__dict__.update(thing.__dict__, **fields)
    return copy
