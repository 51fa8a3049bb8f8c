"""Prometheus metric families that are made at scrape time, from what other parts keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adaptspec.control.rollout import Reloads

if TYPE_CHECKING:  # inside another engine, ours is not imported
    from adaptspec.engine.async_engine import EngineStats

DEPTH_LABELS = 64  # deeper than any sensible policy; bounds the number of series
_DEPTHS_AT_START = 7  # the deepest draft of the default policy: these positions exist before they are reached
Samples = Iterable[tuple[str | Sequence[str], float]]  # values of labels, and the metric's


class Collected(Collector):
    """Families that are asked for at every scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def load_families(load: EngineStats) -> Iterator[Metric]:
    """Running and waiting requests, cache use, and prefix cache counters."""
    yield GaugeMetricFamily("adaptspec_requests_running", "Requests in the batch", load.running)
    yield GaugeMetricFamily("adaptspec_requests_waiting", "Requests in the queue", load.waiting)
    help_text = "Times that a request gave way to an older one, as the cache was full, and read its tokens again"
    yield CounterMetricFamily("adaptspec_preemptions", help_text, load.preemptions)
    yield GaugeMetricFamily("adaptspec_cache_used_ratio", "Share of the KV cache that is used", load.cache_used)
    for name, help_text, count in (
        ("queries", "Prompt tokens of requests that may reuse cached ones", load.prefix_queried),
        ("hits", "Prompt tokens that were cached and not read again", load.prefix_hits),
        ("evictions", "Idle rows evicted from the prefix cache", load.prefix_evictions),
    ):
        yield CounterMetricFamily(f"adaptspec_prefix_cache_{name}", help_text, count)


def thread_families(count: int) -> Iterator[Metric]:
    """The number of CPU threads that a forward pass uses now."""
    yield GaugeMetricFamily("adaptspec_compute_threads", "CPU threads of a forward pass", count)


def exactness_families(equal_passes: int) -> Iterator[Metric]:
    """Whether logits depend on how many tokens share a pass."""
    help_text = "Tokens of a pass up to which logits had the same bits in all passes tried at start; 0: they differed"
    yield GaugeMetricFamily("adaptspec_equal_passes", help_text, equal_passes)


def reload_families(reloads: Reloads) -> Iterator[Metric]:
    """Reloads of policies, good and bad, and when the last good one was."""
    results = (("success", reloads.applied), ("failure", reloads.refused))
    yield counter("adaptspec_policy_reloads", "Policies that were reloaded, by outcome", ["result"], results)
    yield GaugeMetricFamily(
        "adaptspec_policy_last_reload_success_timestamp_seconds",
        "When a policy was last reloaded and served, in seconds since 1970; 0: never",
        reloads.last_applied or 0.0,
    )


def host_families(ignored: Mapping[str, int], opted_out: int, errors: int, *, detached: bool) -> Iterator[Metric]:
    """The control plane inside another engine; `ignored` counts overrides of requests by reason, one of few."""
    help_text = "Overrides of requests that had no effect, by reason"
    yield counter("adaptspec_host_ignored_wishes", help_text, ["reason"], ignored.items())
    yield CounterMetricFamily("adaptspec_host_opted_out_requests", "Requests that asked for no drafts", opted_out)
    help_text = "Failures inside AdaptSpec, each of which cost a decision and no request"
    yield CounterMetricFamily("adaptspec_host_failures", help_text, errors)
    help_text = "1: nothing is decided until the next start, since too much has failed"
    yield GaugeMetricFamily("adaptspec_host_detached", help_text, detached)


def position_samples(counts: Sequence[int]) -> list[tuple[str, int]]:
    """Counts by position in the draft; the first positions exist before a draft reaches them."""
    shown = [*counts[:DEPTH_LABELS], *[0] * (_DEPTHS_AT_START - len(counts))]
    return [(str(position), count) for position, count in enumerate(shown)]


def counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A counter with a sample for each tuple of label values."""
    return _with_samples(CounterMetricFamily(name, help_text, labels=labels), samples)


def gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A gauge with a sample for each tuple of label values."""
    return _with_samples(GaugeMetricFamily(name, help_text, labels=labels), samples)


def _with_samples(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, value in samples:
        family.add_metric([values] if isinstance(values, str) else values, value)
    return family
