"""Totals, earnings and what others keep as Prometheus metric families, made at scrape time.

Labels are depths, reasons, drafters, policies: none comes from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adaptspec.control.rollout import Reloads
from adaptspec.decision import Reason
from adaptspec.telemetry.earnings import EarningsSnapshot, Estimate
from adaptspec.telemetry.totals import DEPTH_LABELS, Totals

if TYPE_CHECKING:  # where another engine is the host, none of ours is there
    from adaptspec.engine.async_engine import EngineStats

DEPTHS_AT_START = 7  # the deepest draft of the default policy: these positions are served before they are reached
_SPEC = "adaptspec_spec_decode"
Samples = Iterable[tuple[str | Sequence[str], float]]  # values of labels, and the metric's


class Asked(Collector):
    """Families that are asked for at every scrape, on the scraping thread."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def round_families(totals: Totals, vllm_labels: dict[str, str] | None) -> Iterator[Metric]:
    """What rounds did: `adaptspec_*`, and vLLM's names where labels for them are given."""
    for name, help_text, count in (
        (f"{_SPEC}_drafts", "Row-rounds that drafted", totals.drafts),
        (f"{_SPEC}_draft_tokens", "Tokens drafted along the longest path of each draft", totals.drafted_tokens),
        (f"{_SPEC}_nodes", "Drafted tokens submitted for verification, on all branches", totals.nodes),
        (f"{_SPEC}_accepted_tokens", "Drafted tokens that were emitted", totals.accepted_tokens),
        (f"{_SPEC}_emitted_tokens", "Tokens emitted by decoding rounds", totals.emitted),
        ("adaptspec_rounds", "Rounds run", totals.rounds),
        ("adaptspec_prefill_tokens", "Prompt tokens read", totals.prefill_tokens),
        ("adaptspec_verify_tokens", "Tokens the target model computed", totals.target_tokens),
        ("adaptspec_draft_steps", "Forward passes of the draft model", totals.draft_steps),
        ("adaptspec_catch_up_tokens", "Tokens read to catch up a draft cache", totals.caught_up),
        ("adaptspec_draft_seconds", "Time spent drafting", totals.draft_seconds),
        ("adaptspec_verify_seconds", "Time spent in the target model", totals.verify_seconds),
        ("adaptspec_round_seconds", "Time spent in rounds, overhead included", totals.total_seconds),
    ):
        yield CounterMetricFamily(name, help_text, count)
    yield _per_position(f"{_SPEC}_accepted_tokens_per_pos", totals, {})
    yield _counter(f"{_SPEC}_depth", "Row-rounds by decided depth", ["depth"], totals.labelled_depths)
    decisions = [(reason.name.lower(), int(totals.reasons[reason])) for reason in Reason]
    yield _counter(f"{_SPEC}_decisions", "Row-rounds by the reason of their depth", ["reason"], decisions)
    if vllm_labels is not None:
        yield from _vllm(totals, vllm_labels)


def _vllm(totals: Totals, labels: dict[str, str]) -> Iterator[Metric]:
    """Draft tokens are positions drafted for, not nodes: dashboards divide accepted tokens by them."""
    prefix = "vllm:spec_decode_num"
    for name, help_text, count in (
        ("drafts", "Number of drafts", totals.drafts),
        ("draft_tokens", "Number of draft tokens", totals.drafted_tokens),
        ("accepted_tokens", "Number of accepted tokens", totals.accepted_tokens),
    ):
        yield _counter(f"{prefix}_{name}", help_text, list(labels), [(tuple(labels.values()), count)])
    yield _per_position(f"{prefix}_accepted_tokens_per_pos", totals, labels)


def _per_position(name: str, totals: Totals, labels: dict[str, str]) -> Metric:
    counts = totals.accepted_per_position[:DEPTH_LABELS].tolist()
    counts += [0] * (DEPTHS_AT_START - len(counts))
    samples = [((*labels.values(), str(position)), count) for position, count in enumerate(counts)]
    return _counter(name, "Drafted tokens accepted, by position in the draft", [*labels, "position"], samples)


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
    """How many CPU threads a forward pass uses now."""
    yield GaugeMetricFamily("adaptspec_compute_threads", "CPU threads of a forward pass", count)


def exactness_families(equal_passes: int) -> Iterator[Metric]:
    """Whether logits depend on how many tokens share a pass."""
    help_text = "Tokens of a pass up to which logits had the same bits in all passes tried at start; 0: they had not"
    yield GaugeMetricFamily("adaptspec_equal_passes", help_text, equal_passes)


def reload_families(reloads: Reloads) -> Iterator[Metric]:
    """Reloads of policies, good and bad, and when the last good one was."""
    results = (("success", reloads.applied), ("failure", reloads.refused))
    yield _counter("adaptspec_policy_reloads", "Policies that came anew, by outcome", ["result"], results)
    yield GaugeMetricFamily(
        "adaptspec_policy_last_reload_success_timestamp_seconds",
        "When a policy last came anew and was served, in seconds since 1970; 0: never",
        reloads.last_applied or 0.0,
    )


def host_families(ignored: Mapping[str, int], opted_out: int, errors: int, *, detached: bool) -> Iterator[Metric]:
    """What a control plane inside another engine has to say; wishes that were `ignored` by reason, of which few are."""
    help_text = "What requests asked for and did not get, by reason"
    yield _counter("adaptspec_host_ignored_wishes", help_text, ["reason"], ignored.items())
    yield CounterMetricFamily("adaptspec_host_opted_out_requests", "Requests that asked for no drafts", opted_out)
    help_text = "Failures inside AdaptSpec, each of which cost a decision and no request"
    yield CounterMetricFamily("adaptspec_host_failures", help_text, errors)
    help_text = "1: nothing is decided until the next start, since too much has failed"
    yield GaugeMetricFamily("adaptspec_host_detached", help_text, detached)


def earning_families(seen: EarningsSnapshot) -> Iterator[Metric]:
    """Saved and wasted tokens, what fixed depths would have taken, switches, and how far expectations came true."""
    told = seen.forecast
    for name, help_text, count in (
        (f"{_SPEC}_saved_tokens", "Drafted tokens that were emitted: plain rounds not needed", seen.saved_tokens),
        (f"{_SPEC}_wasted_tokens", "Drafted tokens, on all branches, that were not emitted", seen.wasted_tokens),
        (f"{_SPEC}_depth_switches", "Changes of depth within requests", seen.depth_switches),
        (f"{_SPEC}_drafter_switches", "Changes of drafter within requests", seen.drafter_switches),
        (f"{_SPEC}_guard_switches", "Times that a guard switched speculation off", seen.guard_switches),
        (f"{_SPEC}_probes", "Tries of speculation while it was off", seen.probes),
        (f"{_SPEC}_probes_won", "Tries after which it stayed on", seen.probes_won),
        ("adaptspec_earnings_dropped_entries", "Rounds and requests left out of these figures", seen.dropped),
        ("adaptspec_costs_remeasured", "Times that rounds had costs measured again", seen.resets),
    ):
        yield CounterMetricFamily(name, help_text, count)
    for name, help_text, tokens in (
        ("predicted_tokens", "Tokens by predicted goodput over the time rounds took", told.predicted_tokens),
        ("realised_tokens", "Tokens that came of rounds with a prediction", told.realised_tokens),
        ("predicted_accepted_tokens", "Drafted tokens expected to be accepted", told.predicted_accepted),
        ("realised_accepted_tokens", "Drafted tokens accepted where some number was expected", told.realised_accepted),
    ):
        yield CounterMetricFamily(f"adaptspec_{name}", help_text, tokens)
    for name, help_text, counts in (
        ("drafts", "Row-rounds that drafted, by the drafter they were decided for", seen.drafts_by_drafter),
        ("nodes", "Drafted tokens submitted for verification, by who proposed them", seen.nodes_by_drafter),
        ("accepted_tokens", "Drafted tokens that were emitted, by who proposed them", seen.accepted_by_drafter),
    ):
        yield _counter(f"{_SPEC}_drafter_{name}", help_text, ["drafter"], counts.items())
    name, help_text = "adaptspec_goodput_calibration_ratio", "Predicted goodput over realised; above 1: too hopeful"
    yield GaugeMetricFamily(name, help_text, told.goodput_ratio)
    shares, help_text = seen.tier_share.items(), "Share of row-rounds by decided depth"
    yield _gauge(f"{_SPEC}_tier_share_ratio", help_text, ["depth"], shares)
    yield from _tier_families(seen)
    yield from _estimate(
        seen.speedup,
        "speedup",
        "Predicted time of plain decoding over predicted time of the rounds that ran, since the start",
    )
    yield from _estimate(seen.regret, "regret", "Time beyond that of the best fixed depth so far, over the latter")
    yield GaugeMetricFamily(
        "adaptspec_costs_unsure",
        "1 while the cost model and rounds disagree, and costs are measured again",
        seen.uncertain,
    )


def _tier_families(seen: EarningsSnapshot) -> Iterator[Metric]:
    def told(values: Iterable[float]) -> Samples:
        labels = ((one.tier.drafter or "off", str(one.tier.depth)) for one in seen.tiers)
        return zip(labels, values, strict=True)

    labels = ["drafter", "depth"]
    for name, help_text, field in (
        ("static_tier_seconds", "Estimated time of the same tokens at a fixed depth", "seconds"),
        ("compared_seconds", "Estimated time of rounds that are compared with a fixed depth", "against"),
        ("compared_tokens", "Tokens of rounds that are compared with a fixed depth", "tokens"),
    ):
        known = (getattr(one, field) if one.known else 0.0 for one in seen.tiers)
        yield _counter(f"adaptspec_{name}", help_text, labels, told(known))
    help_text = "Share of its tokens that nothing observed vouches for"
    yield _gauge("adaptspec_static_tier_guessed_ratio", help_text, labels, told(one.guessed for one in seen.tiers))
    best, help_text = seen.best_static, "1 for the fixed depth that is best so far"
    yield _gauge("adaptspec_best_static_tier", help_text, labels, told(float(one == best) for one in seen.tiers))


def _estimate(found: Estimate | None, name: str, help_text: str) -> Iterator[Metric]:
    """A ratio and its bounds; without a sample while it is not known."""
    for suffix, words, bound in (("", "", "value"), ("_low", ": at least", "low"), ("_high", ": at most", "high")):
        samples = [] if found is None else [((), getattr(found, bound))]
        yield _gauge(f"adaptspec_{name}{suffix}_ratio", help_text + words, [], samples)


def _counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(name, help_text, labels=labels), samples)


def _gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, help_text, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, value in samples:
        family.add_metric([values] if isinstance(values, str) else values, value)
    return family
