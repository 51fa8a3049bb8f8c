"""The base of all that learns, and checks of what comes back from a file of learned state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from adaptspec.errors import StateError
from adaptspec.types import FloatArray


class Learner:
    """Something with a state. This base has none."""

    def learned(self) -> dict[str, FloatArray]:
        """What is worth keeping across restarts: copies of decayed sums, by name; {} where there is nothing.

        Additive: the states of two replicas, added name by name, are the state of both. So a prior stays out of it.
        """
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Go on from what `learned` once gave, in place of what has been seen so far. Called before any row starts.

        Raises:
            StateError: not of these shapes, or not possible; nothing has changed then.
        """
        if learned:
            raise StateError(f"{', '.join(learned)} cannot be restored: this policy learns nothing")


def counts(learned: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray:
    """A copy of the decayed counts called `name`.

    Raises:
        StateError: missing, of another shape, not finite, or negative.
    """
    found = sums(learned, name, shape)
    if (found < 0.0).any():
        raise StateError(f"{name!r} has a negative count; forget this state and learn anew")
    return found


def sums(learned: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray:
    """A copy of the decayed sums called `name`, which may be negative.

    Raises:
        StateError: missing, of another shape, or not finite.
    """
    if name not in learned:
        raise StateError(f"{name!r} is missing; there are: {', '.join(learned) or 'none'}")
    found: FloatArray = np.array(learned[name], dtype=np.float64)
    if found.shape != shape:
        raise StateError(f"{name!r} has the shape {list(found.shape)}, not {list(shape)}: it is of other arms")
    if not np.isfinite(found).all():
        raise StateError(f"{name!r} holds a value that is no finite number; forget this state and learn anew")
    return found


def under(prefix: str, learned: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """What stands below `prefix`, by the names that its owner gave it."""
    return {name.removeprefix(prefix): values for name, values in learned.items() if name.startswith(prefix)}


def restore_all(
    learned: Mapping[str, FloatArray],
    known: Callable[[], dict[str, FloatArray]],
    take_over: Callable[[Mapping[str, FloatArray]], None],
) -> None:
    """Have several parts `take_over` their shares of a state; if one cannot, all go back to what is `known` now.

    Raises:
        StateError: a share does not fit; nothing has changed then.
    """
    before = known()
    try:
        take_over(learned)
    except StateError:
        take_over(before)
        raise
