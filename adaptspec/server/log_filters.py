"""Keeps clients from filling the log, or their words from reaching it.

Errors of aiohttp's parser quote the bytes they stumble over, and these may be a prompt or a key: only their kind and
length are told. Lines that repeat are written a few times in a while, with how many more there were.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_FAULTS = (HttpProcessingError, web.RequestPayloadError)
_COUNT = "left_out"  # what our own lines have beside those of others
_MOST = 1024  # kinds of lines that are remembered
_log = logging.getLogger(__name__)


class ClientFaults(logging.LoggerAdapter):  # type: ignore[type-arg]  # Python 3.10 cannot subscript it
    """The logger for aiohttp's server, which logs every error with its traceback, also those of a client's bytes."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As usual, but an error that quotes a client without its words, and hardly at all if one has just left."""
        error = kwargs.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        if isinstance(error, ConnectionError):
            super().log(logging.DEBUG, f"{msg}: the client has gone", *args)
        elif isinstance(error, BaseException) and quotes_client(error):
            # Its kind is part of the line, by which lines that repeat themselves are told from others.
            told = without_words(error).removeprefix(type(error).__name__)
            super().log(min(level, logging.WARNING), f"{msg}: {type(error).__name__}%s", *args, told)
        else:
            super().log(level, msg, *args, **kwargs)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: the same for errors that nobody has waited for, or that ended a connection."""
    error = context.get("exception")
    if isinstance(error, BaseException) and ("protocol" in context or quotes_client(error)):
        _log.warning("%s: %s", context.get("message"), without_words(error))
    else:
        loop.default_exception_handler(context)


def quotes_client(error: BaseException) -> bool:
    """Whether it, or what it came of, is of a client's bytes."""
    return any(isinstance(one, _FAULTS) for one in _chain(error))


def without_words(error: BaseException) -> str:
    """An error by its kind and length; one of our own that came of a client's with the place where it came up."""
    told = f"{type(error).__name__} ({len(str(error))} characters)"
    if isinstance(error, _FAULTS):
        return told
    return f"{told}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@dataclass
class _Seen:
    """Lines of one kind since `began`; without the error of one, which would hold on to a whole request."""

    line: dict[str, Any]
    began: float
    count: int = 0


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
        if hasattr(record, _COUNT):
            return True
        with self._lock:
            seen = self._kinds.setdefault(_kind(record), _Seen(_line(record), self._clock()))
            seen.count += 1
            crowded = len(self._kinds) > _MOST
        if crowded:
            self.tell(everything=True)
        return seen.count <= self._most

    def tell(self, *, everything: bool = False) -> None:
        """Write how many lines were left out, and count anew: of kinds whose time is up, or of all."""
        with self._lock:
            now = self._clock()
            over = [key for key, seen in self._kinds.items() if everything or now - seen.began >= self.seconds]
            ended = [self._kinds.pop(key) for key in over]
        for seen in ended:
            left_out = seen.count - self._most
            if left_out > 0:
                said = {"msg": f"{left_out} more lines like this were left out: {seen.line['msg']}"}
                marked = logging.makeLogRecord({**seen.line, **said, _COUNT: left_out})
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
