"""What repeats in the log: a few lines of it, and then how many there were."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

from adaptspec.server.repeats import Repeats, limited


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def repeats(clock: Clock) -> Iterator[Repeats]:
    repeats, logger = Repeats(most=2, seconds=10.0, clock=clock), logging.getLogger("talkative")
    logger.addFilter(repeats)
    yield repeats
    logger.removeFilter(repeats)


logger = logging.getLogger("talkative")


def test_a_line_is_written_so_often_and_then_counted(
    repeats: Repeats, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of tracebacks in a few seconds were what one client could have written."""
    for number in range(500):
        logger.warning("client %d did it again", number)
    assert caplog.messages == ["client 0 did it again", "client 1 did it again"]
    repeats.tell()
    assert len(caplog.messages) == 2, "its time is not up"
    clock.now = 10.0
    repeats.tell()
    repeats.tell()
    assert caplog.messages[2:] == ["498 more lines like this were left out: client %d did it again"]
    assert caplog.records[-1].levelno == logging.WARNING
    logger.warning("client %d did it again", 7)
    assert caplog.messages[-1] == "client 7 did it again"


def test_other_lines_are_not_held_up(repeats: Repeats, caplog: pytest.LogCaptureFixture) -> None:
    """Nor are errors from other places, or of another kind, behind the same words."""
    for _ in range(9):
        logger.warning("one")
        logger.error("one")
        logger.warning("another\nwith more")
    assert len(caplog.messages) == 6
    for kind in (ValueError, KeyError):
        for _ in range(9):
            try:
                raise kind
            except kind:
                logger.exception("it failed")
    assert caplog.messages[6:] == ["it failed"] * 4


def test_no_error_is_held_on_to(repeats: Repeats) -> None:
    """A traceback keeps a whole request."""

    class Large:
        pass

    def fail() -> weakref.ref[Large]:
        large = Large()
        try:
            raise ValueError(large)
        except ValueError:
            logger.debug("it failed", exc_info=True)
            repeats.filter(logging.LogRecord("talkative", 40, "", 0, "it failed", (large,), None))
        return weakref.ref(large)

    gone = fail()
    gc.collect()
    assert gone() is None


def test_lines_without_number_take_no_memory_without_end(repeats: Repeats, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3000):
        for _ in range(3):
            logger.warning(f"line {number}")
    assert len(repeats._kinds) <= 1025
    repeats.tell(everything=True)
    told = [line for line in caplog.messages if not line.startswith("1 more lines")]
    assert len(told) + len([line for line in caplog.messages if line.startswith("1 more lines")]) == 9000


async def test_loggers_are_held_to_it_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """And what was left out is told at the latest when it ends."""
    async with limited(Repeats(most=1, seconds=60.0), ["talkative"]):
        for _ in range(5):
            logger.warning("here")
        await asyncio.sleep(0)
    assert caplog.messages == ["here", "4 more lines like this were left out: here"]
    assert not logger.filters


async def test_what_was_left_out_is_told_when_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    async with limited(Repeats(most=1, seconds=0.01), ["talkative"]):
        for _ in range(5):
            logger.warning("here")
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.005)
    assert "4 more lines" in caplog.messages[1]
