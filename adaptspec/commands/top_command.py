"""`adaptspec top`: what a server does now, in a terminal. It polls `/live/snapshot`, which holds all of its figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adaptspec.bench.openai_server import server_root
from adaptspec.command_line import variable
from adaptspec.errors import ConfigError, ServerError
from adaptspec.quantity import quantity

_EVERY_SECONDS, _TIMEOUT_SECONDS = 1.0, 10.0
_MAX_REQUESTS, _STRIP = 12, 40  # requests and rounds of each that are shown
_DEPTHS = "·▁▂▃▄▅▆▇█"  # of a round: off, and then deeper and deeper; the last one stands for all beyond
_UNKNOWN = "-"

Json = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec top`."""
    parser.description = (
        "Watch a server: tokens per second over plain decoding, what is drafted and why, by task, and running requests "
        "with a mark per round (the higher, the deeper it drafted). Ctrl-C ends it."
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    add("--api-key", metavar="KEY", help="its key, if it asks for one (or ADAPTSPEC_API_KEY)")
    add("--once", action="store_true", help="print it once and end; what a pipe gets anyway")
    add("--json", action="store_true", help="print the figures once, as one JSON object")
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    # The variable may be the server's own, which holds a key in each line.
    given = arguments.api_key or os.environ.get(variable("--api-key"), "")
    key = given.partition("\n")[0].strip() or None
    if not arguments.url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {arguments.url}: give an address such as http://127.0.0.1:8000")
    console, shown = Console(), snapshot(arguments.url, key)
    if arguments.json:
        figures = {name: shown[name] for name in ("now", "server", "load", "summary", "costs_unsure", "missed_rounds")}
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    elif arguments.once or not console.is_terminal:
        console.print(page(shown))
    else:
        _watch(arguments.url, key, shown, console)
    return 0


def _watch(url: str, key: str | None, shown: Json, console: Console) -> None:
    """Draw until Ctrl-C. A server that is away is asked again; its last figures stay, marked as old."""
    with Live(page(shown), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_SECONDS)
            lost = ""
            try:
                shown = snapshot(url, key)
            except ServerError as error:
                lost = f"{error}; these are its last figures"
            live.update(page(shown, lost), refresh=True)


def snapshot(url: str, key: str | None) -> Json:
    """The server's `/live/snapshot`. Raises ServerError: there is no answer; ConfigError: it refuses, or has none."""
    root = server_root(url)
    try:
        request = urllib.request.Request(
            f"{root}/live/snapshot", headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            found: Json = json.load(response)
            found["summary"], found["running"]
    except HTTPError as error:
        remedies = {401: "give its key (--api-key)", 403: "ask by an address that it allows (--url)"}
        remedy = remedies.get(error.code, "is it an AdaptSpec server?")
        raise ConfigError(f"{root}: answers {error.code} at /live/snapshot; {remedy}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ServerError(f"{root}: no answer ({reason})") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{root}: /live/snapshot is not that of an AdaptSpec server of this version") from error
    return found


def page(shown: Json, lost: str = "") -> RenderableType:
    """A snapshot as a page; `lost` says why it is old."""
    recent = shown["summary"]["recent"]
    figures = recent or shown["summary"]["total"]
    load, server = shown["load"], shown["server"]
    waiting = f"{quantity(load['running'], 'request')} running, {load['waiting']} waiting"
    head = [Text(f"{server['model']}: {waiting}; policy {server['default_policy']}", style="bold")]
    if lost:
        head.append(Text(lost, style="red"))
    if shown["costs_unsure"]:
        head.append(Text("Rounds contradict the cost model, which learns anew: estimates are unsure.", style="yellow"))
    if shown["missed_rounds"]:
        head.append(Text(f"{shown['missed_rounds']:,} rounds came too fast to be counted.", style="yellow"))
    if figures is None:
        return Group(*head, Text("No round has ended yet."))
    span = "the last 30 seconds" if recent else "since its start"
    head.append(Text(f"{figures['tokens_per_second']:.1f} tokens/s, {_speedup(figures)} x plain decoding ({span})"))
    head.append(Text(figures["why"]))
    return Group(*head, _shares(figures), _tasks(figures["tasks"]), *_requests(shown))


def _shares(figures: Json) -> Table:
    """Depths, reasons and drafters, most frequent first."""
    table = _table("depths", "why", "drafters (accepted)")
    depths = (f"{'off' if depth == '0' else depth}: {share:.0%}" for depth, share in _sorted(figures["depths"]))
    reasons = (f"{name}: {share:.0%}" for name, share in _sorted(figures["reasons"]))
    drafters = (f"{name} ({_share(one['acceptance_rate'])})" for name, one in figures["drafters"].items())
    table.add_row(*("\n".join(cells) for cells in (depths, reasons, drafters)))
    return table


def _tasks(tasks: Mapping[str, Json]) -> Table:
    table = _table("task", "drafted", "accepted", "tokens a pass", "entropy", "over plain")
    for name, one in sorted(tasks.items(), key=lambda item: -item[1]["rows"]):
        entropy = _UNKNOWN if one["entropy"] is None else f"{one['entropy']:.2f}"
        passes = _UNKNOWN if one["tokens_per_pass"] is None else f"{one['tokens_per_pass']:.2f}"
        cells = (_share(one["drafted_share"]), _share(one["acceptance_rate"]), passes, entropy, _speedup(one))
        table.add_row(Text(name), *cells)
    return table


def _requests(shown: Json) -> Iterator[Table]:
    """Running requests, or those that ended last."""
    requests = shown["running"] or shown["recent"][::-1]
    if not requests:
        return
    depth = shown["columns"]["round"].index("depth")
    table = _table("running" if shown["running"] else "ended", "task", "policy", "tokens", "over plain", "rounds")
    for one in requests[:_MAX_REQUESTS]:
        strip = "".join(_DEPTHS[min(row[depth], len(_DEPTHS) - 1)] for row in one["rounds"][-_STRIP:])
        words = (Text(str(one[name] or _UNKNOWN)) for name in ("id", "task", "policy"))
        table.add_row(*words, f"{one['tokens']}/{one['max_tokens']}", _speedup(one), strip)
    yield table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _sorted(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0%}"


def _speedup(figures: Json) -> str:
    found = figures["speedup"]
    return "unknown" if found is None else f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
