"""How many connections there is room for among the files that the process may open. Knows the system's limits alone."""

from __future__ import annotations

import resource
from contextlib import suppress

# Files of our own, and connections that asyncio has accepted, a hundred at a time, before we can refuse them.
RESERVE = 512


def room_for(connections: int) -> int:
    """As many of them as may be open at once.

    The process's soft limit is raised for them, as far as the hard one allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + RESERVE
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        # A system may allow less than it says.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max(1, min(connections, soft - min(RESERVE, soft // 2)))
