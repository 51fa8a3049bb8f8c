"""Who watches a pilot: the journal and Prometheus metrics, as a server of our own has them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client import Metric, start_http_server

from adaptspec import __version__
from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.host import DRAFTER
from adaptspec.errors import ConfigError
from adaptspec.journal import JournalHeader
from adaptspec.request import Request
from adaptspec.telemetry.journal_writer import Journal
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.types import Completion, FinishReason, RoundRecord, SpeculationStats, Timings

_REASONS = {reason.value for reason in FinishReason}


class Watchers:
    """A `Sink` for those that were asked for; on the deciding thread an entry goes into a queue."""

    def __init__(self, models: Mapping[str, str], journal: Path | None, metrics_port: int | None) -> None:
        """Raises ConfigError, JournalError: the port is taken, or the file cannot be written."""
        self._models = models
        self.store = RequestStore()
        self._journal = None if journal is None else Journal(self.store, journal)
        self.metrics = None if metrics_port is None else Metrics(self.store, model_name=models.get("target", ""))
        self._server = None
        if metrics_port is not None and self.metrics is not None:
            try:
                self._server, _ = start_http_server(metrics_port, registry=self.metrics.registry)
            except OSError as error:
                raise ConfigError(f"metrics-port {metrics_port}: {error.strerror}; choose another") from error

    def watch(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Also serve these, if there are metrics."""
        if self.metrics is not None:
            self.metrics.watch(families)

    def begin(self, controller: Controller, costs: CostTable, max_rows: int) -> None:
        """Say what rounds run on; before the first."""
        if self._journal is not None:
            header = JournalHeader(
                adaptspec=__version__,
                target={"name": self._models.get("target", "")},
                pair=pair_of(self._models),
                drafters=[DRAFTER],
                policies=list(controller.policies),
                default=controller.default,
                tasks=list(controller.labels.tasks),
                costs=json.loads(costs.to_json()),
                clock=time.time() - time.monotonic(),
            )
            self._journal.begin(header)
        self.store.start(max_rows, (DRAFTER,))

    def started(self, request: Request) -> None:
        self.store.started(request)

    def emit(self, record: RoundRecord) -> None:
        self.store.emit(record)

    def finished(self, request: Request, tokens: int, finish: str, stats: SpeculationStats, timings: Timings) -> None:
        """A request has ended; its tokens are counted, nobody here knows them."""
        reason = FinishReason(finish) if finish in _REASONS else FinishReason.ABORT
        told = Completion(request.id, "", (0,) * tokens, len(request.prompt), reason, stats, timings)
        self.store.finished(request, told)

    def close(self) -> None:
        self.store.close()
        if self._journal is not None:
            self._journal.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def pair_of(models: Mapping[str, str]) -> str:
    """What names the models that something was learned with."""
    return " ".join(f"{role}={name}" for role, name in sorted(models.items())) or "unknown"
