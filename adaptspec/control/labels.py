"""What requests are labelled with, as numbers: names of tasks and of API keys. Knows no request and no policy.

A label is a line in tables of counts, so there is room for so many; what finds none counts as `OTHER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from adaptspec.control.tasks import TASKS

OTHER = "other"  # number 0: whatever has no number of its own
MOST_OWN = 64  # names of users' own, of each kind


class Names:
    """Names and their numbers: `known` from 1 on, then others in the order they come, `room` of them.

    One thread adds names, any may read them.
    """

    def __init__(self, known: Iterable[str] = (), room: int = MOST_OWN) -> None:
        self._numbers = {name: 1 + i for i, name in enumerate(known)}
        self._known = len(self._numbers)
        self._room = room

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._numbers))

    def __contains__(self, name: str) -> bool:
        return name == OTHER or name in self._numbers

    @property
    def size(self) -> int:
        """Numbers that there may ever be, 0 included."""
        return 1 + self._known + self._room

    @property
    def left(self) -> int:
        """How many more names there is room for."""
        return self.size - 1 - len(self._numbers)

    @property
    def own(self) -> tuple[str, ...]:
        """Names that came beyond the known ones, in their order."""
        return tuple(self._numbers)[self._known :]

    def number(self, name: str | None) -> int:
        """The number of a name; 0 where it has none."""
        return self._numbers.get(name or OTHER, 0)

    def add(self, name: str) -> int:
        """The number of a name, which gets one if there is room; else 0."""
        if name not in self and self.left > 0:
            self._numbers[name] = 1 + len(self._numbers)
        return self.number(name)

    def forget(self, count: int) -> None:
        """Forget the newest own names, all but the first `count`."""
        for name in self.own[count:]:
            del self._numbers[name]

    def follow(self, own: Sequence[str]) -> bool:
        """Add names as they once came; whether they have the numbers that they had then. If not, none is added."""
        before = len(self.own)
        done = all(self.add(name) == 1 + self._known + i for i, name in enumerate(own))
        if not done:
            self.forget(before)
        return done

    def copy(self) -> Names:
        """The same names, to add others to on trial."""
        twin = Names(self, 0)
        twin._known, twin._room = self._known, self._room
        return twin


@dataclass(frozen=True)
class Labels:
    """The labels of one engine. Of API keys only those that policies name have numbers."""

    tasks: Names = field(default_factory=lambda: Names(TASKS))
    keys: Names = field(default_factory=Names)

    def copy(self) -> Labels:
        """The same, to try a policy with."""
        return Labels(self.tasks.copy(), self.keys.copy())

    @contextmanager
    def kept_if_done(self) -> Iterator[None]:
        """Names that are added inside stay only if nothing is raised there."""
        before = [(names, len(names.own)) for names in (self.tasks, self.keys)]
        try:
            yield
        except BaseException:
            for names, count in before:
                names.forget(count)
            raise
