"""Keeps what clients send from filling the log: one line for broken HTTP, tracebacks only for our own faults."""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SHOWN = 200  # characters of an error, which may quote what the client sent
_FAULTS = (HttpProcessingError, web.RequestPayloadError)


class ClientFaults(logging.LoggerAdapter[logging.Logger]):
    """The logger for aiohttp's server, which logs every error with its traceback, also those of a client's bytes."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        """As usual, but without traceback if the client is at fault, and hardly at all if it has just left."""
        if isinstance(exc_info, ConnectionError):
            self.debug(f"{msg}: the client has gone", *args)
        elif isinstance(exc_info, _FAULTS):
            said = " ".join(ascii(str(exc_info)).split())[:_SHOWN]
            self.warning(f"{msg}: %s %s", *args, type(exc_info).__name__, said)
        else:
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
