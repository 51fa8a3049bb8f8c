"""A collector in this process: takes OTLP over HTTP, decodes it, and misbehaves if asked to."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class SeenSpan:
    """A span as it came over the wire."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    service: str


@dataclass
class Collector:
    """What was received. `status` is answered to every request; `stall` holds answers back until it is set."""

    status: int = 200
    spans: list[SeenSpan] = field(default_factory=list)
    requests: int = 0
    stall: threading.Event | None = None
    url: str = ""

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        self.requests += 1
        if self.status != 200:
            return
        assert path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = plain(group.resource.attributes)["service.name"]
            self.spans += [seen(span, service) for scope in group.scope_spans for span in scope.spans]


def seen(span: Any, service: str) -> SeenSpan:
    return SeenSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        plain(span.attributes),
        [(event.name, event.time_unix_nano) for event in span.events],
        service,
    )


def plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind) if kind else None
    return [value_of(item) for item in found.values] if kind == "array_value" else found


@contextmanager
def collecting(status: int = 200, *, stall: bool = False) -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector(status, stall=threading.Event() if stall else None)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if collector.stall is not None:
                collector.stall.wait(30)
            collector.take(self.path, body)
            try:
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                assert collector.stall is not None  # whoever was kept waiting has gone

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        if collector.stall is not None:
            collector.stall.set()
        server.shutdown()
        server.server_close()
        thread.join()
