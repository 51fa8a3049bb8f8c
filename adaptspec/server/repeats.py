"""Keeps lines that repeat from filling the log: a few in a while, and how many more there were.

Knows logging; nothing of what is logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_COUNT = "left_out"  # what our own lines have beside those of others
_MOST = 1024  # kinds of lines that are remembered


@dataclass
class _Seen:
    """Lines of one kind since `began`; without the error of one, which would hold on to a whole request."""

    line: dict[str, Any]
    began: float
    told: int = 0
    left_out: int = 0


class Repeats(logging.Filter):
    """Lets `most` lines of one kind through in `seconds`, and counts the others.

    Of one kind are lines of one logger and level that begin alike before their arguments are put in, and whose errors
    were raised at the same place.
    """

    def __init__(self, most: int = 3, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self.seconds = seconds
        self._clock = clock
        self._kinds: dict[Hashable, _Seen] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if hasattr(record, _COUNT):
            return True
        with self._lock:
            seen = self._kinds.setdefault(_kind(record), _Seen(_line(record), self._clock()))
            told = seen.told < self._most
            seen.told += told
            seen.left_out += not told
            crowded = len(self._kinds) > _MOST
        if crowded:
            self.tell(everything=True)
        return told

    def tell(self, *, everything: bool = False) -> None:
        """Write how many lines were left out, and count anew: of kinds whose time is up, or of all."""
        with self._lock:
            now = self._clock()
            over = [key for key, seen in self._kinds.items() if everything or now - seen.began >= self.seconds]
            ended = [self._kinds.pop(key) for key in over]
        for seen in ended:
            if seen.left_out:
                said = {"msg": f"{seen.left_out} more lines like this were left out: {seen.line['msg']}"}
                marked = logging.makeLogRecord({**seen.line, **said, _COUNT: seen.left_out})
                logging.getLogger(seen.line["name"]).handle(marked)


@asynccontextmanager
async def limited(repeats: Repeats, loggers: Sequence[str]) -> AsyncGenerator[None, None]:
    """Meanwhile the lines of these loggers are held to it."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(repeats.seconds)
            repeats.tell()

    telling, found = asyncio.create_task(tell()), [logging.getLogger(name) for name in loggers]
    for logger in found:
        logger.addFilter(repeats)
    try:
        yield
    finally:
        telling.cancel()
        for logger in found:
            logger.removeFilter(repeats)
        repeats.tell(everything=True)


def _line(record: logging.LogRecord) -> dict[str, Any]:
    """How a line begins, before its arguments are put in, and where it belongs."""
    beginning = str(record.msg).partition("\n")[0]
    return {"name": record.name, "levelno": record.levelno, "levelname": record.levelname, "msg": beginning}


def _kind(record: logging.LogRecord) -> Hashable:
    error = record.exc_info[1] if record.exc_info else None
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return *_line(record).values(), type(error), place
