"""Counts with their nouns, for messages."""

from __future__ import annotations


def quantity(number: int, noun: str, plural: str | None = None, *, form: str = "") -> str:
    """A count with its noun: `1 item`, `2 items`. `plural` defaults to the noun and an s; `form` formats the number."""
    return f"{number:{form}} {noun if number == 1 else plural or f'{noun}s'}"
