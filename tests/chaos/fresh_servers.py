"""Ten fresh servers beside busy processes: each must have found out by its last requests that drafting pays.

    python -m tests.chaos.fresh_servers

Each starts with an empty cache, so that it measures what passes cost while others compute, and answers equal requests
one after the other. The bundled pair earns with drafts on this text: a server that drafts in none of its last requests
has believed a wrong table for good.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from tests.chaos.busy import competing
from tests.chaos.harness import COMPLETIONS
from tests.e2e.conftest import Server, start_server

LAST = 10
BUSY = 2
SECONDS = 7200.0  # after which busy processes end by themselves
REQUEST = {"prompt": "Once upon a time there was a little fox who", "max_tokens": 64, "temperature": 0, "seed": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """One line for each server; 1 if one of them drafted in none of its last requests."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fresh_servers", description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=10, help="one after the other (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=40, help="to each (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=BUSY, help="processes beside them (default: %(default)s)")
    asked = parser.parse_args(arguments)
    drafting = 0
    with competing(asked.busy, SECONDS):
        for number in range(1, asked.servers + 1):
            drafted = served(asked.requests)
            late = [count for count in drafted[-LAST:] if count]
            drafting += bool(late)
            sys.stdout.write(
                f"server {number}: drafted in {len([count for count in drafted if count])} of {len(drafted)} requests, "
                f"in {len(late)} of the last {LAST}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{drafting} of {asked.servers} servers draft in their last {LAST} requests\n")
    return int(drafting < asked.servers)


def served(requests: int) -> list[int]:
    """Tokens that a fresh server drafted for each of so many equal requests."""
    with tempfile.TemporaryDirectory() as folder, closing(_Started(folder)) as server:
        return [server.drafted() for _ in range(requests)]


class _Started:
    """A server that knows nothing yet."""

    def __init__(self, folder: str) -> None:
        self._server: Server = start_server(XDG_CACHE_HOME=folder)

    def drafted(self) -> int:
        """Tokens drafted for one request."""
        body = json.dumps(REQUEST).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._server.url + COMPLETIONS, body, headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            answer: dict[str, Any] = json.load(response)
        return int(answer["metrics"]["speculative_decoding"]["num_draft_tokens"])

    def close(self) -> None:
        """End it."""
        assert self._server.terminate() == 0


if __name__ == "__main__":
    sys.exit(main())
