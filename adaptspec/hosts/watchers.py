"""Who watches a pilot: the journal, Prometheus metrics and traces, as a server of our own has them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from opentelemetry.trace import SpanKind
from prometheus_client import start_http_server

from adaptspec import __version__
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.host import DRAFTER
from adaptspec.errors import ConfigError
from adaptspec.journal import JournalHeader
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.otlp import TraceSettings
from adaptspec.telemetry.telemetry import open_telemetry
from adaptspec.telemetry.tracer import Trace

_ROWS, _TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 3, 4, 6, 8)  # of the profile in a journal's header
_REASONS = {reason.value for reason in FinishReason}


class Watchers:
    """A `Sink` for those that were asked for; on the deciding thread an entry goes into a queue."""

    def __init__(
        self,
        models: Mapping[str, str],
        journal: Path | None,
        metrics_port: int | None,
        traces: TraceSettings,
    ) -> None:
        """Raises ConfigError, JournalError: the port is taken, the file cannot be written, there is no such URL."""
        self._models, model = models, models.get("target", "")
        self._telemetry = open_telemetry(model, journal=journal, traces=traces, vllm_names=False)
        self.metrics = self._telemetry.metrics
        self._traces: dict[str, Trace] = {}
        self._server = None
        if metrics_port is not None:
            try:
                self._server, _ = start_http_server(metrics_port, registry=self.metrics.registry)
            except OSError as error:
                raise ConfigError(f"metrics-port {metrics_port}: {error.strerror}; choose another") from error
        self._begun = False

    def begin(self, controller: Controller, costs: CostModel) -> None:
        """Say what rounds run on; before the first, or at the end if there was none. Once."""
        if self._begun:
            return
        self._begun = True
        header = JournalHeader(
            adaptspec=__version__,
            target={"name": self._models.get("target", "")},
            pair=pair_of(self._models),
            drafters=[DRAFTER],
            policies=list(controller.policies),
            default=controller.default,
            tasks=list(controller.task_names),
            costs=json.loads(costs.learned_profile(_ROWS, _TOKENS).to_json()),
            clock=time.time() - time.monotonic(),
        )
        self._telemetry.start(costs, (DRAFTER,), header)

    def started(self, request: Request, headers: Mapping[str, str]) -> None:
        """`headers` may name the span that its own is below."""
        self._telemetry.stream.started(request)
        tracer = self._telemetry.tracer
        if tracer is not None:
            trace = self._traces[request.id] = tracer.begin("text_completion", headers, SpanKind.INTERNAL)
            trace.set_requests([request], request.id, ())

    def emit(self, record: RoundRecord) -> None:
        self._telemetry.stream.emit(record)

    def finished(self, request: Request, tokens: int, finish: str, stats: SpeculationStats, timings: Timings) -> None:
        """A request has ended, with a number of tokens whose ids are not known here."""
        reason = FinishReason(finish) if finish in _REASONS else FinishReason.ABORT
        completion = Completion(request.id, "", (0,) * tokens, len(request.prompt), reason, stats, timings)
        self._telemetry.stream.finished(request, completion)
        trace = self._traces.pop(request.id, None)
        if trace is not None:
            trace.end(None, finish if reason is FinishReason.ERROR else None)

    def close(self) -> None:
        self._telemetry.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def pair_of(models: Mapping[str, str]) -> str:
    """What names the models that something was learned with."""
    return " ".join(f"{role}={name}" for role, name in sorted(models.items())) or "unknown"
