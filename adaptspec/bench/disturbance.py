"""Busy neighbours: processes that only compute, to see what a machine that has other work makes of a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BUSY = 2
# Ends by itself when whoever started it is gone, however that ended.
_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))\n"


@contextmanager
def disturbed(count: int = BUSY) -> Iterator[list[int]]:
    """So many busy processes, by their ids, for as long as this lasts."""
    with ExitStack() as closing:
        started = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", _LOOP, str(os.getpid())])
            closing.callback(process.wait)
            closing.callback(process.kill)
            started.append(process.pid)
        yield started
