"""Names of tasks and their numbers.

Acceptance is learned by task: a task is a row in tables of counts. A request names its task, or `TaskDetector` detects
it from the prompt. In addition to the known tasks there is room for `MAX_ADDED` names of users; a task without a number
counts as `OTHER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

TASKS = ("chat", "code", "instruction", "json", "math", "rag", "story", "summarize", "template", "translate")
OTHER = "other"  # number 0: each task without a number
MAX_ADDED = 64  # names of tasks that users add


class TaskNames:
    """Task names and their numbers: `known` from 1 on, then added ones in their order.

    One thread adds names, any may read them.
    """

    def __init__(self, known: Iterable[str] = TASKS, max_added: int = MAX_ADDED) -> None:
        self._numbers = {name: number for number, name in enumerate(known, start=1)}
        self._num_known = len(self._numbers)
        self._max_added = max_added

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._numbers))

    def __contains__(self, name: str) -> bool:
        return name == OTHER or name in self._numbers

    @property
    def size(self) -> int:
        """How many numbers there may ever be, 0 included."""
        return 1 + self._num_known + self._max_added

    @property
    def room(self) -> int:
        """How many more names can be added."""
        return self.size - 1 - len(self._numbers)

    @property
    def added(self) -> tuple[str, ...]:
        """The added names in their order."""
        return tuple(self._numbers)[self._num_known :]

    def number(self, name: str | None) -> int:
        return self._numbers.get(name or OTHER, 0)

    def add(self, name: str) -> int:
        """The number of a name, which gets one if there is room; else 0."""
        if name not in self and self.room > 0:
            self._numbers[name] = 1 + len(self._numbers)
        return self.number(name)

    def restore(self, added: Sequence[str]) -> bool:
        """Add names as `added` had them. Returns False, and adds none, if one would get another number than it had."""
        before = len(self.added)
        same = all(self.add(name) == number for number, name in enumerate(added, start=1 + self._num_known))
        if not same:
            self._keep(before)
        return same

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Names that are added inside stay only if nothing is raised there."""
        before = len(self.added)
        try:
            yield
        except BaseException:
            self._keep(before)
            raise

    def copy(self) -> TaskNames:
        """The same names and numbers; later additions to one do not change the other. Any thread may call it."""
        copy = TaskNames(tuple(self._numbers))  # at once: another thread may be adding
        copy._num_known, copy._max_added = self._num_known, self._max_added
        return copy

    def _keep(self, count: int) -> None:
        """Forget all but the first `count` added names."""
        for name in self.added[count:]:
            del self._numbers[name]
