"""Task names: numbers in the order of their coming, bounded, and restored as they were."""

from __future__ import annotations

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
