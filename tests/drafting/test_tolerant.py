"""A drafter made tolerant can do what it could before, and raises nothing."""

from __future__ import annotations

from collections.abc import Sequence

from adaptspec.drafting.drafter import Lookup, Shadow
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.drafting.tolerant import SHORTEST_REST, TolerantLookup, tolerant

REPEATS = [5, 6, 7, 8, 5, 6]


def test_a_lookup_stays_one() -> None:
    """The engine asks drafters what they are: one that lost a method of `Lookup` would offer nothing, and nobody see it."""
    made = tolerant(NgramDrafter())
    assert isinstance(made, Lookup)
    assert made.offer(0, REPEATS, 2) == NgramDrafter().offer(0, REPEATS, 2) == 2
    made.expect(1, [9, 10, 11], 1)
    assert made.offer(1, [4, 9], 2) == 2


class Broken(NgramDrafter):
    def offer(self, row: int, tokens: list[int], most: int) -> int:
        raise MemoryError("no room")

    def expect(self, row: int, tokens: Sequence[int], start: int) -> None:
        raise ValueError("not now")

    def shadow(self, row: int, tokens: list[int], start: int) -> Shadow:
        raise RuntimeError("never")


def test_what_a_lookup_raises_costs_offers_until_it_has_rested() -> None:
    now = [0.0]
    inner = Broken()
    made = TolerantLookup(inner, inner, lambda: now[0])
    made.expect(0, [1], 0)
    now[0] += 2 * SHORTEST_REST
    assert made.offer(0, REPEATS, 2) == 0
    now[0] += 8 * SHORTEST_REST
    assert made.shadow(0, REPEATS, 4) == Shadow(0, 0)
    assert made.shadow(0, REPEATS, 4) == Shadow(0, 0)
