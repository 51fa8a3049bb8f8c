"""Prometheus metrics: a sink that counts, and the text a scrape gets.

Rounds go into a ledger and become metric families only when scraped; finished requests, which are rare, go
straight into prometheus_client's own counters and histograms, as do HTTP answers. Has a registry of its own, so
several engines can live in one process. Knows no endpoints, and of HTTP only the Accept header and status codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import choose_encoder

from adaptspec.telemetry.earning_families import EarningsCollector
from adaptspec.telemetry.earnings import EarningsSnapshot
from adaptspec.telemetry.metric_families import (
    CountCollector,
    Estimate,
    Load,
    LoadCollector,
    ReloadCollector,
    Reloads,
    RoundCollector,
    ShadowCollector,
)
from adaptspec.telemetry.server_histograms import ServerHistograms
from adaptspec.telemetry.totals import RoundLedger
from adaptspec.types import Completion, FinishReason, Request, RoundRecord

_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Speculation moves what is far below the conventions' first bound for tokens.
_PER_TOKEN = (
    1e-4,
    2e-4,
    3e-4,
    4e-4,
    5e-4,
    7e-4,
    0.001,
    0.0015,
    0.002,
    0.003,
    0.005,
    0.007,
    0.01,
    0.015,
    0.02,
    0.05,
    0.1,
    0.5,
    1.0,
)
_WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """A `Sink` whose counters can be scraped.

    `compat_vllm` also serves the speculative decoding counters under vLLM's names, so that dashboards and
    load tools made for it work unchanged; `model_name` is the label they pick a model by.
    """

    def __init__(self, *, compat_vllm: bool = False, model_name: str = "") -> None:
        self._ledger = RoundLedger()
        self._registry = CollectorRegistry()
        self._registry.register(RoundCollector(self._ledger, compat_vllm=compat_vllm, model_name=model_name))
        self._responses = self._counter(
            "adaptspec_http_responses", "HTTP answers, by route and status", "route", "status"
        )
        self._requests = self._counter("adaptspec_requests", "Requests that ended, by finish reason", "finish_reason")
        for reason in FinishReason:
            self._requests.labels(reason.value)  # from the start at 0, so that rates see the first one
        self._prompt = self._counter("adaptspec_prompt_tokens", "Prompt tokens of requests that ended")
        self._generated = self._counter("adaptspec_generation_tokens", "Output tokens of requests that ended")
        self._lossy = self._counter(
            "adaptspec_lossy_requests", "Requests that ended under a lossy verification method, by policy", "policy"
        )
        # What a canary is judged by: tokens after the first over the seconds they took, beside the default's.
        self._by_policy = self._counter("adaptspec_policy_requests", "Requests that ended, by policy", "policy")
        self._decoded = self._counter(
            "adaptspec_policy_decode_tokens", "Output tokens after the first of each request, by policy", "policy"
        )
        self._decoding = self._counter(
            "adaptspec_policy_decode_seconds", "From the first token to the end of each request, by policy", "policy"
        )
        self._first_token = self._histogram(
            "adaptspec_time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN
        )
        self._per_token = self._histogram(
            "adaptspec_inter_token_seconds", "Mean time between two output tokens, one value per request", _PER_TOKEN
        )
        self._whole = self._histogram("adaptspec_request_seconds", "From arrival to the end of a request", _WHOLE)
        self._server = ServerHistograms(self._registry, model_name)

    def watch(self, load: Callable[[], Load]) -> None:
        """Also serve the running and waiting gauges; `load` is called at every scrape, on the scraping thread."""
        self._registry.register(LoadCollector(load))

    def watch_shadows(self, estimates: Callable[[], Iterable[Estimate]]) -> None:
        """Also serve what shadow policies would have earned; asked at every scrape, on the scraping thread."""
        self._registry.register(ShadowCollector(estimates))

    def watch_reloads(self, reloads: Callable[[], Reloads]) -> None:
        """Also serve how often policies came anew; asked at every scrape, on the scraping thread."""
        self._registry.register(ReloadCollector(reloads))

    def watch_earnings(self, snapshot: Callable[[], EarningsSnapshot]) -> None:
        """Also serve what speculation earned; asked at every scrape, on the scraping thread."""
        self._registry.register(EarningsCollector(snapshot))

    def watch_count(self, name: str, help_text: str, count: Callable[[], int]) -> None:
        """Also serve a count that somebody else keeps; asked at every scrape, on the scraping thread."""
        self._registry.register(CountCollector(name, help_text, count))

    def started(self, request: Request) -> None:
        """Nothing is counted before a request ends."""

    def emit(self, record: RoundRecord) -> None:
        """One round has ended."""
        self._ledger.note(record)

    def finished(self, request: Request, completion: Completion) -> None:
        """One request has ended."""
        self._server.note(request, completion)
        timings, tokens = completion.timings, len(completion.tokens)
        self._requests.labels(completion.finish.value).inc()
        self._prompt.inc(completion.prompt_tokens)
        self._generated.inc(tokens)
        policy = completion.stats.policy
        self._by_policy.labels(policy).inc()
        if completion.stats.lossy:
            self._lossy.labels(policy).inc()
        self._whole.observe(timings.finished - timings.arrived)
        if timings.first_token is None:
            return
        self._first_token.observe(timings.first_token - timings.arrived)
        if tokens > 1:
            seconds = timings.finished - timings.first_token
            self._per_token.observe(seconds / (tokens - 1))
            self._decoded.labels(policy).inc(tokens - 1)
            self._decoding.labels(policy).inc(seconds)

    def responded(self, route: str, status: int) -> None:
        """One HTTP answer was made. `route` becomes a label: it must be one of few."""
        self._responses.labels(route, str(status)).inc()

    def families(self) -> list[Metric]:
        """Everything as it is now, in prometheus_client's own words."""
        return list(self._registry.collect())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type, in the format an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self._registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, registry=self._registry, buckets=buckets)
