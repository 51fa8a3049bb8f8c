"""Watchers get every event in order; one that is slow is let go, and harms nobody."""

from __future__ import annotations

import pytest

from adaptspec.errors import OverloadedError
from adaptspec.server.watchers import MOST_WATCHERS, WAITING_EVENTS, Watchers


async def test_a_slow_watcher_is_let_go_and_the_others_miss_nothing() -> None:
    watchers = Watchers()
    with watchers.one_more() as slow, watchers.one_more() as quick:
        for number in range(WAITING_EVENTS + 5):
            watchers.tell(b"%d" % number)
            assert await quick.events.get() == b"%d" % number
        assert slow.gone
        assert not quick.gone
        taken = [slow.events.get_nowait() for _ in range(slow.events.qsize())]
        assert taken[-1] is None
        assert len(taken) == WAITING_EVENTS + 1
    assert not len(watchers)


async def test_there_are_only_so_many() -> None:
    watchers = Watchers()
    held = [watchers.one_more() for _ in range(MOST_WATCHERS)]
    for one in held:
        one.__enter__()
    with pytest.raises(OverloadedError, match="snapshot"), watchers.one_more():
        pass
    held[0].__exit__(None, None, None)
    with watchers.one_more() as again:
        watchers.end()
        assert await again.events.get() is None
