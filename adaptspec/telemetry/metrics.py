"""Prometheus metrics: what the store counts, and the text a scrape gets.

Finished requests and HTTP answers go into prometheus_client's own counters and histograms, in a registry of its own, so
that several engines can live in one process. Latencies come also under the names and in the buckets of the conventions
for GenAI servers: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/ (status: development).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder

from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason
from adaptspec.telemetry.metric_families import Asked, load_families, round_families
from adaptspec.telemetry.request_store import Batch, Finished, RequestStore
from adaptspec.telemetry.vllm_names import VllmNames

if TYPE_CHECKING:  # where another engine is the host, none of ours is there
    from adaptspec.engine.async_engine import EngineStats

# Long prompts on slow machines take minutes to be read.
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Speculation moves what is far below the conventions' first bound for tokens. Large models on CPUs take 0.1 to 0.5 s.
_PER_TOKEN = (
    *(1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 7e-4, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 1.0),
)
_WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)

PROVIDER = "adaptspec"
OPERATIONS = ("chat", "text_completion")
# The conventions' bounds, and further ones where those end before long prompts and long answers do.
GENAI_DURATION = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    *(163.84, 327.68, 655.36, 1310.72),
)
GENAI_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
GENAI_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0),
)
_GENAI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class Metrics:
    """Counters that can be scraped; a scrape has everything up to now.

    `compat_vllm` also serves what dashboards, autoscalers and load tools made for vLLM read under vLLM's names (see
    `VllmNames`); `model_name` is the label they pick a model by. `gen_ai_server_*` have it as well: names that
    clients make up never become labels. Their tokens and first tokens are of answers that were given; their durations
    of all, with the kind of error if there was one. `registry` has all of it; `render` settles the store before.
    """

    def __init__(self, store: RequestStore | None = None, *, compat_vllm: bool = False, model_name: str = "") -> None:
        """`store` None: nothing but HTTP answers is counted."""
        self._store = store or RequestStore()
        self._store.counts(self._take)
        self.registry = CollectorRegistry()
        # vLLM's own: its name for the model, and which of several engines (here always the first).
        vllm_labels = {"model_name": model_name, "engine": "0"} if compat_vllm else None
        self._vllm = None if vllm_labels is None else VllmNames(self.registry, vllm_labels)
        self.watch(lambda: round_families(self._store.totals, vllm_labels))
        count, time = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._responses = count("adaptspec_http_responses", "HTTP answers, by route and status", ("route", "status"))
        self._warnings = count(
            "adaptspec_request_warnings", "What was dropped from requests or had no effect, by kind", ("kind",)
        )
        self._requests = count("adaptspec_requests", "Requests that ended, by finish reason", ("finish_reason",))
        for reason in FinishReason:
            self._requests.labels(reason.value)  # from the start at 0, so that rates see the first one
        self._prompt = count("adaptspec_prompt_tokens", "Prompt tokens of requests that ended")
        self._generated = count("adaptspec_generation_tokens", "Output tokens of requests that ended")
        # What a canary is judged by: tokens after the first over the seconds they took, beside the default's.
        self._lossy, self._by_policy, self._decoded, self._decoding = (
            count(f"adaptspec_{name}", f"{help_text}, by policy", ("policy",))
            for name, help_text in (
                ("lossy_requests", "Requests that ended under a lossy verification method"),
                ("policy_requests", "Requests that ended"),
                ("policy_decode_tokens", "Output tokens after the first of each request"),
                ("policy_decode_seconds", "From the first token to the end of each request"),
            )
        )
        self._first_token, self._per_token, self._whole = (
            time(f"adaptspec_{name}_seconds", help_text, buckets=bounds)
            for name, help_text, bounds in (
                ("time_to_first_token", "From arrival to the first token", _FIRST_TOKEN),
                ("inter_token", "Mean time between two output tokens, one value per request", _PER_TOKEN),
                ("request", "From arrival to the end of a request", _WHOLE),
            )
        )
        self._model = model_name
        self._genai_whole, self._genai_per_token, self._genai_first_token = (
            time(f"gen_ai_server_{name}_seconds", help_text, labels, buckets=bounds)
            for name, help_text, labels, bounds in (
                ("request_duration", "From arrival to the last token", (*_GENAI_LABELS, "error_type"), GENAI_DURATION),
                ("time_per_output_token", "Time per output token after the first", _GENAI_LABELS, GENAI_PER_TOKEN),
                ("time_to_first_token", "From arrival to the first token", _GENAI_LABELS, GENAI_FIRST_TOKEN),
            )
        )

    def watch_count(self, name: str, help_text: str, count: Callable[[], int]) -> None:
        """Also serve a count that somebody else keeps."""
        self.watch(lambda: [CounterMetricFamily(name, help_text, count())])

    def watch_load(self, load: Callable[[], EngineStats]) -> None:
        """Also serve what runs and waits, by every name it has here."""
        self.watch(lambda: load_families(load()))
        names = self._vllm
        if names is not None:
            self.watch(lambda: names.load(load()))

    def watch(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Also serve families that are asked for at every scrape, on the scraping thread."""
        self.registry.register(Asked(families))

    def _take(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, Finished) and event.record.completion is not None:
                self._finished(event.record.request, event.record.completion)

    def _finished(self, request: Request, completion: Completion) -> None:
        timings, finish, tokens = completion.timings, completion.finish, len(completion.tokens)
        policy = completion.stats.policy
        if self._vllm is not None:
            self._vllm.finished(request, completion)
        operation = request.operation if request.operation in OPERATIONS else "_OTHER"
        labels, failed = (operation, PROVIDER, self._model), finish in (FinishReason.ABORT, FinishReason.ERROR)
        took = timings.finished - timings.arrived
        self._requests.labels(finish.value).inc()
        self._prompt.inc(completion.prompt_tokens)
        self._generated.inc(tokens)
        self._by_policy.labels(policy).inc()
        if completion.stats.lossy:
            self._lossy.labels(policy).inc()
        self._whole.observe(took)
        self._genai_whole.labels(*labels, finish.value if failed else "").observe(took)
        if timings.first_token is None:
            return
        first, seconds = timings.first_token - timings.arrived, timings.finished - timings.first_token
        self._first_token.observe(first)
        if not failed:
            self._genai_first_token.labels(*labels).observe(first)
        if tokens > 1:
            self._per_token.observe(seconds / (tokens - 1))
            self._decoded.labels(policy).inc(tokens - 1)
            self._decoding.labels(policy).inc(seconds)
            if not failed:
                self._genai_per_token.labels(*labels).observe(seconds / (tokens - 1))

    def responded(self, route: str, status: int) -> None:
        """One HTTP answer was made. `route` becomes a label: it must be one of few."""
        self._responses.labels(route, str(status)).inc()

    def warned(self, kind: str, number: int) -> None:
        """So many warnings of requests. `kind` becomes a label: it must be one of few."""
        self._warnings.labels(kind).inc(number)

    def families(self) -> list[Metric]:
        self._store.settle()
        return list(self.registry.collect())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type, in the format an Accept header asks for."""
        self._store.settle()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
