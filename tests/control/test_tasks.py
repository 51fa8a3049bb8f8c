"""Task names: numbers in the order of their coming, bounded, and restored as they were."""

from __future__ import annotations

import sys
from threading import Thread

import pytest

from adaptspec.control.tasks import TaskNames


def test_names_are_numbered_as_they_come() -> None:
    names = TaskNames(("code", "json"), max_added=2)
    assert (names.size, names.room) == (5, 2)
    assert [names.add(name) for name in ("acme", "json", "acme", "bolt", "late")] == [3, 2, 3, 4, 0]
    assert (names.added, names.room) == (("acme", "bolt"), 0)
    assert [names.number(name) for name in ("bolt", "late", None)] == [4, 0, 0]


def test_names_of_what_fails_leave_no_trace() -> None:
    """A refused policy must not use up the room."""
    task_names = TaskNames()
    task_names.add("acme")

    def refused() -> None:
        with task_names.undone_on_error():
            task_names.add("bolt")
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refused()
    assert task_names.added == ("acme",)
    with task_names.undone_on_error():
        task_names.add("bolt")
    assert task_names.added == ("acme", "bolt")


def test_names_are_restored_with_their_numbers_or_not_at_all() -> None:
    """What was learned of tasks goes by number."""
    names = TaskNames(("code",))
    assert names.restore(("acme", "bolt"))
    assert names.restore(("acme",))
    assert not names.restore(("bolt",))
    few = TaskNames((), max_added=1)
    assert not few.restore(("acme", "bolt"))
    assert few.added == (), "none of them stays"


def test_names_are_copied_while_another_thread_adds_some() -> None:
    """The copy has the names that were there, in their order."""
    names = TaskNames(max_added=30_000)
    added = Thread(target=lambda: [names.add(f"task-{number}") for number in range(30_000)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        added.start()
        copies = [names.copy() for _ in range(20)]
    finally:
        sys.setswitchinterval(interval)
        added.join()
    for copy in copies:
        assert copy.added == tuple(f"task-{number}" for number in range(len(copy.added)))
    assert names.copy().added == names.added
