"""Covering arrays: any two values of different axes that go together meet in at least one case; or each is in one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = dict[str, Any]
Combination = tuple[tuple[str, Any], ...]  # values by the names of their axes, in the order of the axes


def covering(
    axes: Mapping[str, Sequence[Any]], allowed: Callable[[Values], bool], strength: int = 2, seed: int = 0
) -> list[Values]:
    """Cases that cover all combinations of `strength` values (2: pairs, 1: each value by itself).

    `allowed` judges cases, also those in which axes are still missing. Greedy: each case begins with a combination that
    is not covered yet, and takes for each other axis the value that covers most. The same axes give the same cases.
    """
    chance, names = random.Random(seed), list(axes)
    missing: dict[Combination, None] = {}  # in a fixed order
    for some in itertools.combinations(names, strength):
        for values in itertools.product(*(axes[name] for name in some)):
            missing[tuple(zip(some, values, strict=True))] = None
    cases: list[Values] = []
    while missing:
        start = next(iter(missing))
        missing.pop(start)
        case = _filled(dict(start), axes, allowed, missing, chance)
        if case is not None:  # else these do not go together
            cases.append({name: case[name] for name in names})
            for covered in itertools.combinations(cases[-1].items(), strength):
                missing.pop(covered, None)
    return cases


def _filled(
    case: Values,
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Values], bool],
    missing: Mapping[Combination, None],
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

    strength = len(next(iter(missing), ()))

    def gain(value: Any) -> int:
        met = itertools.combinations(case.items(), max(strength - 1, 0))
        return sum(tuple(sorted([(name, value), *some], key=lambda part: order[part[0]])) in missing for some in met)

    values = chance.sample(list(axes[name]), len(axes[name]))
    for value in sorted(values, key=gain, reverse=True):
        if (found := _filled(case | {name: value}, axes, allowed, missing, chance)) is not None:
            return found
    return None
