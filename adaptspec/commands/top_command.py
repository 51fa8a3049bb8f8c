"""`adaptspec top`: what a server does now, in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from rich.console import Console

from adaptspec.top.feed import Feed
from adaptspec.top.summary import summary
from adaptspec.top.terminal import Page, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec top`."""
    parser.description = (
        "Watch a server: tokens per second against the estimate without speculation, running requests with a bar per "
        "round, acceptance and entropy by task, depths, reasons and the policy in force. q quits."
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    add("--api-key", metavar="KEY", help="its key, if it asks for one")
    add("--once", action="store_true", help="print it once and end; what a pipe gets anyway")
    add("--json", action="store_true", help="print the figures once, as one JSON object")
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    # The variable may be the server's own, which holds a key in each line.
    key = (arguments.api_key or "").partition("\n")[0].strip() or None
    feed, console = Feed(arguments.url, key), Console()
    if not (arguments.once or arguments.json) and console.is_terminal:
        asyncio.run(show(feed, console))
        return 0
    asyncio.run(feed.once())
    if feed.state is None:
        return 0
    if arguments.json:
        sys.stdout.write(json.dumps(summary(feed.state).to_json(), indent=1) + "\n")
    else:
        console.print(Page(feed))
    return 0
