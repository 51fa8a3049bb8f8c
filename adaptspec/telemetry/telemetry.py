"""All telemetry of a server: one event stream, and its sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptspec.control.cost_model import CostModel
from adaptspec.journal import JournalHeader
from adaptspec.telemetry.events import PolicyReloaded
from adaptspec.telemetry.journal_writer import JournalWriter, open_journal
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp import TraceSettings
from adaptspec.telemetry.requests import RequestLog
from adaptspec.telemetry.stream import EventStream
from adaptspec.telemetry.tracer import Tracer, open_tracer


@dataclass(frozen=True)
class Telemetry:
    """The stream, which is a sink of the engine, and its readers. `tracer` None: requests are not traced."""

    stream: EventStream
    log: RequestLog
    metrics: Metrics
    live: LiveFeed
    tracer: Tracer | None
    journal: JournalWriter | None

    def start(self, costs: CostModel, drafters: Sequence[str], header: JournalHeader) -> None:
        """Begin to handle events of an engine that is built. Raises JournalError: the journal cannot be written."""
        if self.journal is not None:
            self.journal.begin(header)
        self.stream.start(costs, drafters)

    def policy_reloaded(self, policy: str) -> None:
        """Note that a policy was replaced, on all of its running requests."""
        self.stream.note(PolicyReloaded(policy))

    def close(self) -> None:
        """Write what is left; a disk or a collector that hangs is given some seconds."""
        self.stream.close()


def open_telemetry(
    model_name: str, *, journal: Path | None = None, traces: TraceSettings, vllm_names: bool = True
) -> Telemetry:
    """Open files and exporters before an engine is built. `model_name` is the label of traces and of vLLM's metrics.

    Raises:
        ConfigError: a setting of traces cannot be used.
        JournalError: the journal cannot be written.
    """
    stream, log = EventStream(), RequestLog()
    metrics = Metrics(stream, model_name=model_name, vllm_names=vllm_names)
    live = LiveFeed(stream, log)
    sinks = log, metrics, live
    for sink in sinks:
        stream.add(sink)
    metrics.watch_count(
        "adaptspec_telemetry_dropped_events",
        "Events that were lost to metrics, the log of requests or the live feed",
        lambda: stream.lost(*sinks),
    )
    writer = None if journal is None else open_journal(journal, stream, metrics)
    return Telemetry(stream, log, metrics, live, open_tracer(traces, stream, metrics, model_name), writer)
