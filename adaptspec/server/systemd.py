"""Reports to systemd, for a unit with `Type=notify`: ready, stopping, and alive where the unit has `WatchdogSec`.

A report is a datagram to the socket that $NOTIFY_SOCKET names; without that variable there is none. The protocol:
https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
_log = logging.getLogger(__name__)


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a report, if systemd asks for them; returns whether it was sent. Never waits and never raises."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, which has no file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("systemd cannot be notified of %s (%s)", state, error.strerror)
        return False
    return True


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often systemd wants to be notified that this process is alive: it kills one that is silent for longer."""
    try:
        microseconds, process = int(environment["WATCHDOG_USEC"]), int(environment.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return microseconds / 1e6 if microseconds > 0 and process == os.getpid() else None


async def send_watchdog_reports(
    alive: Callable[[], bool], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Notify systemd in half the time it allows, as long as `alive()`; returns at once where it does not ask for it."""
    seconds = watchdog_seconds()
    while seconds is not None:
        if alive():
            notify(ALIVE)
        await sleep(seconds / 2)
