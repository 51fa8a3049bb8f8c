"""Pairwise covering arrays: every two values of different axes that go together meet in at least one case."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def covering(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Values], bool], seed: int = 0) -> list[Values]:
    """Cases that cover all pairs of values. `allowed` judges cases, also those in which axes are still missing.

    Greedy: each case begins with a pair that is not covered yet, and takes for each other axis the value that covers
    most. The same axes give the same cases.
    """
    chance, names = random.Random(seed), list(axes)
    missing: dict[Pair, None] = {}  # in a fixed order
    for first, second in itertools.combinations(names, 2):
        for a, b in itertools.product(axes[first], axes[second]):
            missing[(first, a), (second, b)] = None
    cases: list[Values] = []
    while missing:
        start = next(iter(missing))
        missing.pop(start)
        case = _filled(dict(start), axes, allowed, missing, chance)
        if case is not None:  # else the two do not go together
            cases.append({name: case[name] for name in names})
            for pair in _pairs(cases[-1]):
                missing.pop(pair, None)
    return cases


def _pairs(case: Values) -> list[Pair]:
    return list(itertools.combinations(case.items(), 2))


def _filled(
    case: Values,
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Values], bool],
    missing: Mapping[Pair, None],
    chance: random.Random,
) -> Values | None:
    """The case with a value for every axis; None: there is none that is allowed."""
    if not allowed(case):
        return None
    rest = [name for name in axes if name not in case]
    if not rest:
        return case
    name = chance.choice(rest)
    order = {other: i for i, other in enumerate(axes)}

    def gain(value: Any) -> int:
        met = (sorted([(name, value), item], key=lambda part: order[part[0]]) for item in case.items())
        return sum((first, second) in missing for first, second in met)

    values = chance.sample(list(axes[name]), len(axes[name]))
    for value in sorted(values, key=gain, reverse=True):
        if (found := _filled(case | {name: value}, axes, allowed, missing, chance)) is not None:
            return found
    return None
