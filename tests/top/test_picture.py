"""What a feed told becomes one picture: nothing twice, nothing lost, nothing without bound."""

from __future__ import annotations

import pytest

from adaptspec.top.picture import KEPT_REQUESTS, KEPT_ROUNDS, Picture
from tests.top.recorded import picture, recorded


def test_updates_add_up_to_what_a_later_snapshot_says() -> None:
    """Requests come, gain rounds and tokens, and go; a second that is told again is replaced."""
    snapshot, updates = recorded()
    made = picture()
    gone = {one["id"] for update in updates for one in update["finished"]}
    came = {one["id"] for one in snapshot["running"]} | {one["id"] for update in updates for one in update["started"]}
    assert set(made.running) == came - gone
    assert {seen.id for seen in made.recent} == gone | {one["id"] for one in snapshot["recent"]}
    assert [second["at"] for second in made.seconds] == sorted({second["at"] for second in made.seconds})
    newest = {second["at"]: second for update in updates for second in update["seconds"]}
    assert [second for second in made.seconds if second["at"] in newest] == [newest[at] for at in sorted(newest)]
    assert made.earnings == updates[-1]["earnings"]


def test_rounds_stay_with_a_request_when_it_ends() -> None:
    """Short answers would never be seen otherwise."""
    made = picture()
    watched = [seen for seen in made.recent if seen.bars]
    assert watched
    assert all(seen.ended and len(seen.bars) <= seen.told["rounds"] for seen in watched)


def test_it_does_not_grow_without_bound() -> None:
    """It runs for days beside a server."""
    made = picture()
    _, updates = recorded()
    for _ in range(100):
        for update in updates:
            made.update(update)
    assert len(made.recent) == KEPT_REQUESTS
    assert len(made.seconds) <= 12
    assert all(len(seen.bars) <= KEPT_ROUNDS for seen in made.running.values())


def test_its_clock_is_the_servers() -> None:
    """Rates are of the last seconds there, wherever the terminal is."""
    snapshot, _ = recorded()
    assert Picture.of(snapshot).now() == pytest.approx(snapshot["now"], abs=0.5)
