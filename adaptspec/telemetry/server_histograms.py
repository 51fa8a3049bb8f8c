"""Latencies of requests under the names, and in the buckets, of OpenTelemetry's conventions for GenAI servers.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/ (status: development). Knows finished requests only.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from adaptspec.types import Completion, FinishReason, Request

PROVIDER = "adaptspec"
OPERATIONS = ("chat", "text_completion")
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class ServerHistograms:
    """`gen_ai.server.*`. The model is the served one: names that clients make up are refused, and never become labels.

    Tokens and first tokens are of answers that were given; durations of all, with the kind of error if there was one.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model = model_name
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From arrival to the last token",
            (*_LABELS, "error_type"),
            registry=registry,
            buckets=DURATION,
        )
        self._per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Time per output token after the first",
            _LABELS,
            registry=registry,
            buckets=PER_TOKEN,
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From arrival to the first token",
            _LABELS,
            registry=registry,
            buckets=FIRST_TOKEN,
        )

    def note(self, request: Request, completion: Completion) -> None:
        """One request has ended."""
        timings, finish = completion.timings, completion.finish
        operation = request.operation if request.operation in OPERATIONS else "_OTHER"
        labels = (operation, PROVIDER, self._model)
        failed = finish in (FinishReason.ABORT, FinishReason.ERROR)
        self._duration.labels(*labels, finish.value if failed else "").observe(timings.finished - timings.arrived)
        if failed or timings.first_token is None:
            return
        self._first_token.labels(*labels).observe(timings.first_token - timings.arrived)
        if len(completion.tokens) > 1:
            each = (timings.finished - timings.first_token) / (len(completion.tokens) - 1)
            self._per_token.labels(*labels).observe(each)
