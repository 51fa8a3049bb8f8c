from __future__ import annotations

import pytest

from adaptspec.control.labels import OTHER, Labels, Names
from adaptspec.control.tasks import TASKS


def test_names_are_numbered_as_they_come() -> None:
    names = Names(("code", "json"), room=2)
    assert (names.size, names.left) == (5, 2)
    assert [names.add(name) for name in ("acme", "json", "acme", "bolt", "late")] == [3, 2, 3, 4, 0]
    assert (names.own, names.left) == (("acme", "bolt"), 0)
    assert [names.number(name) for name in ("bolt", "late", None)] == [4, 0, 0]


def test_other_takes_no_room() -> None:
    """It is the name of what has none."""
    names = Names(room=1)
    assert names.add(OTHER) == 0
    assert OTHER in names
    assert list(names) == []


def test_a_copy_is_on_trial() -> None:
    labels = Labels()
    twin = labels.copy()
    assert twin.tasks.add("acme") == 1 + len(TASKS)
    assert (labels.tasks.own, twin.tasks.own, twin.tasks.size) == ((), ("acme",), labels.tasks.size)


def test_names_of_what_fails_leave_no_trace() -> None:
    """A refused policy must not use up the room."""
    labels = Labels()
    labels.tasks.add("acme")

    def refused() -> None:
        with labels.kept_if_done():
            labels.tasks.add("bolt")
            labels.keys.add("gold")
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refused()
    assert (labels.tasks.own, labels.keys.own) == (("acme",), ())
    with labels.kept_if_done():
        assert labels.keys.add("silver") == 1
    assert labels.keys.own == ("silver",)


def test_numbers_from_before_are_kept_or_told_to_be_others() -> None:
    """What was learned of tasks goes by number."""
    names = Names(("code",))
    assert names.follow(("acme", "bolt"))
    assert names.follow(("acme",))
    assert not names.follow(("bolt",))
    few = Names(room=1)
    assert not few.follow(("acme", "bolt"))
    assert few.own == (), "none of them stays"
