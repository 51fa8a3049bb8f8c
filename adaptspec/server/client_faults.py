"""Keeps what clients send out of the log: one line for broken HTTP, tracebacks only for our own faults.

Errors of aiohttp's parser quote the bytes they stumble over, and these may be a prompt or a key. All that is said of
such an error is its kind and how long its message is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_FAULTS = (HttpProcessingError, web.RequestPayloadError)
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
