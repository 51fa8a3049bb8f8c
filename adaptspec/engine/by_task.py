"""One thing for most requests and others for some tasks, such as how drafts are judged. Knows names of tasks only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from adaptspec.control.labels import OTHER
from adaptspec.control.language.spec import PolicySpec
from adaptspec.verification import make_method
from adaptspec.verification.method import Method

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class ByTask(Generic[T]):
    """`usual`, and what stands in for it where the task of a request is in `tasks`."""

    usual: T
    tasks: Mapping[str, T] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, task: str | None) -> T:
        """What holds for a request of this task; None: it has none, which is `OTHER`."""
        return self.tasks.get(task or OTHER, self.usual)

    def each(self, change: Callable[[T], U]) -> ByTask[U]:
        """The same with something else in every place."""
        return ByTask(change(self.usual), {task: change(value) for task, value in self.tasks.items()})


def methods_of(spec: PolicySpec) -> ByTask[Method]:
    """How drafts are judged under a policy."""
    said = ByTask(spec.verification, spec.task_verifications)
    return said.each(lambda one: make_method(one.method, one.parameters))
