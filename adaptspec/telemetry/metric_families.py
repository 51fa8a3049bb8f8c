"""Totals as Prometheus metric families, built at scrape time. Knows names and labels, and nothing of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adaptspec.telemetry.totals import DEPTH_LABELS, RoundLedger, Totals
from adaptspec.types import Reason

DEPTHS_AT_START = 7  # the deepest draft of the default policy: these positions are served before they are reached


class Load(Protocol):
    """How busy an engine is."""

    @property
    def running(self) -> int:
        """Requests in the batch."""

    @property
    def waiting(self) -> int:
        """Requests in the queue."""


class RoundCollector(Collector):
    """What rounds did, by name: `adaptspec_*`, and vLLM's names if asked for."""

    def __init__(self, ledger: RoundLedger, *, compat_vllm: bool, model_name: str) -> None:
        self._ledger = ledger
        self._compat_vllm = compat_vllm
        # vLLM's own: its name for the model, and which of several engines (here always the first).
        self._vllm_labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """One reading of the totals, so that the counters of a scrape agree with each other."""
        totals = self._ledger.read()
        yield from _speculation(totals)
        yield from _rounds(totals)
        if self._compat_vllm:
            yield from _vllm(totals, self._vllm_labels)


class LoadCollector(Collector):
    """How many requests run and wait at this moment."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Ask now."""
        load = self._load()
        yield GaugeMetricFamily("adaptspec_requests_running", "Requests in the batch", load.running)
        yield GaugeMetricFamily("adaptspec_requests_waiting", "Requests in the queue", load.waiting)


class Reloads(Protocol):
    """How often policies came anew."""

    @property
    def applied(self) -> int:
        """Those that are served now, or were."""

    @property
    def refused(self) -> int:
        """Those that could not be used."""

    @property
    def last_applied(self) -> float | None:
        """When, in seconds since 1970; None: never."""


class ReloadCollector(Collector):
    """Reloads of policies, good and bad, and when the last good one was."""

    def __init__(self, reloads: Callable[[], Reloads]) -> None:
        self._reloads = reloads

    def collect(self) -> Iterator[Metric]:
        """Ask now."""
        reloads = self._reloads()
        results = (("success", reloads.applied), ("failure", reloads.refused))
        yield _labelled("adaptspec_policy_reloads", "Policies that came anew, by outcome", "result", results)
        yield GaugeMetricFamily(
            "adaptspec_policy_last_reload_success_timestamp_seconds",
            "When a policy last came anew and was served, in seconds since 1970; 0: never",
            reloads.last_applied or 0.0,
        )


class CountCollector(Collector):
    """A count that somebody else keeps."""

    def __init__(self, name: str, help_text: str, count: Callable[[], int]) -> None:
        self._name, self._help, self._count = name, help_text, count

    def collect(self) -> Iterator[Metric]:
        """Ask now."""
        yield CounterMetricFamily(self._name, self._help, self._count())


class Estimate(Protocol):
    """What a shadow policy would have earned."""

    @property
    def policy(self) -> str:
        """The shadow: one of the policies that are served, so one of few."""

    @property
    def rounds(self) -> int:
        """Rounds that it is an estimate of."""

    @property
    def goodput_ratio(self) -> float:
        """Its estimated goodput over that of the policy that acts."""

    @property
    def guessed(self) -> float:
        """Share of its tokens that nothing observed vouches for."""


class ShadowCollector(Collector):
    """What shadow policies would have earned, as far as is known at this moment."""

    def __init__(self, estimates: Callable[[], Iterable[Estimate]]) -> None:
        self._estimates = estimates

    def collect(self) -> Iterator[Metric]:
        """Ask now."""
        ratio = GaugeMetricFamily(
            "adaptspec_shadow_goodput_ratio",
            "Estimated goodput of a shadow policy over that of the policy that acts",
            labels=["policy"],
        )
        guessed = GaugeMetricFamily(
            "adaptspec_shadow_guessed_ratio",
            "Share of a shadow policy's tokens that are estimated beyond what was observed",
            labels=["policy"],
        )
        rounds = GaugeMetricFamily(
            "adaptspec_shadow_rounds", "Rounds that the estimate of a shadow policy rests on", labels=["policy"]
        )
        for estimate in self._estimates():
            rounds.add_metric([estimate.policy], estimate.rounds)
            ratio.add_metric([estimate.policy], estimate.goodput_ratio)
            guessed.add_metric([estimate.policy], estimate.guessed)
        yield ratio
        yield guessed
        yield rounds


def _speculation(totals: Totals) -> Iterator[Metric]:
    prefix = "adaptspec_spec_decode"
    yield CounterMetricFamily(f"{prefix}_drafts", "Row-rounds that drafted", totals.drafts)
    yield CounterMetricFamily(f"{prefix}_draft_tokens", "Tokens submitted for verification", totals.drafted_tokens)
    yield CounterMetricFamily(f"{prefix}_accepted_tokens", "Drafted tokens that were emitted", totals.accepted_tokens)
    yield CounterMetricFamily(f"{prefix}_emitted_tokens", "Tokens emitted by decoding rounds", totals.emitted)
    yield _per_position(f"{prefix}_accepted_tokens_per_pos", totals)
    yield _labelled(f"{prefix}_depth", "Row-rounds by decided depth", "depth", totals.labelled_depths)
    decisions = ((reason.name.lower(), int(totals.reasons[reason])) for reason in Reason)
    yield _labelled(f"{prefix}_decisions", "Row-rounds by the reason of their depth", "reason", decisions)


def _rounds(totals: Totals) -> Iterator[Metric]:
    yield CounterMetricFamily("adaptspec_rounds", "Rounds run", totals.rounds)
    yield CounterMetricFamily("adaptspec_prefill_tokens", "Prompt tokens read", totals.prefill_tokens)
    yield CounterMetricFamily("adaptspec_verify_tokens", "Tokens the target model computed", totals.verify_tokens)
    yield CounterMetricFamily("adaptspec_draft_steps", "Forward passes of the draft model", totals.draft_steps)
    yield CounterMetricFamily("adaptspec_catch_up_tokens", "Tokens read to catch up a draft cache", totals.caught_up)
    yield CounterMetricFamily("adaptspec_draft_seconds", "Time spent drafting", totals.draft_seconds)
    yield CounterMetricFamily("adaptspec_verify_seconds", "Time spent in the target model", totals.verify_seconds)
    yield CounterMetricFamily(
        "adaptspec_round_seconds", "Time spent in rounds, overhead included", totals.total_seconds
    )


def _vllm(totals: Totals, labels: dict[str, str]) -> Iterator[Metric]:
    prefix = "vllm:spec_decode_num"
    for name, help_text, count in (
        ("drafts", "Number of drafts", totals.drafts),
        ("draft_tokens", "Number of draft tokens", totals.drafted_tokens),
        ("accepted_tokens", "Number of accepted tokens", totals.accepted_tokens),
    ):
        family = CounterMetricFamily(f"{prefix}_{name}", help_text, labels=list(labels))
        family.add_metric(list(labels.values()), count)
        yield family
    yield _per_position(f"{prefix}_accepted_tokens_per_pos", totals, labels)


def _per_position(name: str, totals: Totals, labels: dict[str, str] | None = None) -> Metric:
    counts = totals.accepted_per_position[:DEPTH_LABELS].tolist()
    counts += [0] * (DEPTHS_AT_START - len(counts))
    pairs = ((str(position), count) for position, count in enumerate(counts))
    return _labelled(name, "Drafted tokens accepted, by position in the draft", "position", pairs, labels)


def _labelled(
    name: str, help_text: str, label: str, pairs: Iterable[tuple[str, int]], shared: dict[str, str] | None = None
) -> Metric:
    """One sample per pair; `shared` labels come first, the same for all."""
    shared = shared or {}
    family = CounterMetricFamily(name, help_text, labels=[*shared, label])
    for value, count in pairs:
        family.add_metric([*shared.values(), value], count)
    return family
