"""`adaptspec trace ...`: what a journal holds, for tools that draw timelines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from adaptspec.commands.arguments import seconds
from adaptspec.errors import JournalError
from adaptspec.journal import Entry, read_entries
from adaptspec.quantity import quantity
from adaptspec.telemetry.timeline import Timeline, latest
from adaptspec.telemetry.trace_events import write_trace, write_trace_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec trace`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("export", help="make a timeline of a journal, for ui.perfetto.dev or chrome://tracing")
    one.description = (
        "Make a Chrome trace of a journal: the engine's rounds with drafting and verification, a track per request "
        "with its rounds (tier, drafted, accepted, reason, policy), and curves of tokens per second, batch and "
        "acceptance length. Open it with ui.perfetto.dev (nothing is uploaded) or chrome://tracing."
    )
    add = one.add_argument
    add("--journal", type=Path, required=True, metavar="FILE", help="the file given to serve --journal")
    add("-o", "--output", type=Path, metavar="FILE", help="file to write, packed if it ends in .gz (default: print it)")
    add("--request", action="append", metavar="ID", help="only this request's track; may be given again (default: all)")
    add("--last", type=seconds, metavar="SECONDS", help="only the last so many seconds (default: all)")
    one.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    wanted = None if arguments.request is None else set(arguments.request)
    entries: Iterable[Entry] = read_entries(arguments.journal)
    if arguments.last is not None:
        entries = latest(entries, arguments.last)
    timeline = Timeline(lambda name: wanted is None or name in wanted)
    events = timeline.events(entries)
    if arguments.output is None:
        write_trace(events, sys.stdout)
    else:
        write_trace_file(events, arguments.output)
        rounds, requests = quantity(timeline.rounds, "round", form=","), quantity(timeline.tracks, "request", form=",")
        said = f"{rounds}, {requests}; open it with https://ui.perfetto.dev"
        sys.stderr.write(f"{arguments.output}: {said}\n")
    if wanted and not timeline.tracks:
        raise JournalError(f"{arguments.journal}: no such request; ids are those of the responses, without choice")
    return 0
