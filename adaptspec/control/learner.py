"""The base of all that learns: a state of named arrays, which is copied out and written back whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adaptspec.errors import StateError
from adaptspec.types import FloatArray

# Sums of differences; all else that is kept counts something.
_SIGNED = "gains"


class Learner:
    """Something with a state. This base has none."""

    def state(self) -> dict[str, FloatArray]:
        """The arrays themselves that it learns in, by name: whoever asks may write to them.

        Decayed sums. They are additive: the states of two replicas, added name by name, are the state of both. So a
        prior stays out of them. Names of optional parts begin with `@` and the part's name, and a slash.
        """
        return {}

    def learned(self) -> dict[str, FloatArray]:
        """Copies of what is worth keeping across restarts; {} where there is nothing."""
        return {name: np.array(values) for name, values in self.state().items()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Go on from what `learned` once gave, in place of what has been seen so far. Called before any row starts.

        An optional part of which it says nothing, or of another kind, starts anew.

        Raises:
            StateError: not of these shapes, or not possible; nothing has changed then.
        """
        own = self.state()
        taken: dict[str, FloatArray] = {}
        for part in {_part(name) for name in (*own, *learned)}:
            names, given = ([name for name in all_ if _part(name) == part] for all_ in (own, learned))
            if part and set(names) != set(given):
                continue
            if set(given) - set(names):
                strange = f"{', '.join(sorted(set(given) - set(names)))} cannot be restored: "
                raise StateError(strange + ("it is of another algorithm" if names else "this policy learns nothing"))
            taken.update({name: _checked(learned, name, own[name].shape) for name in names})
        for name, values in taken.items():
            own[name][...] = values


def _part(name: str) -> str:
    return name.rpartition("/")[0] if name.startswith("@") else ""


def _checked(learned: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray:
    if name not in learned:
        raise StateError(f"{name!r} is missing; there are: {', '.join(learned) or 'none'}")
    found: FloatArray = np.array(learned[name], dtype=np.float64)
    if found.shape != shape:
        raise StateError(f"{name!r} has the shape {list(found.shape)}, not {list(shape)}: it is of other arms")
    if not np.isfinite(found).all():
        raise StateError(f"{name!r} holds a value that is no finite number; forget this state and learn anew")
    if not name.endswith(_SIGNED) and (found < 0.0).any():
        raise StateError(f"{name!r} has a negative count; forget this state and learn anew")
    return found
