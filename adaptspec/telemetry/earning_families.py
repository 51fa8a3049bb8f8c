"""What speculation earned as Prometheus metric families, built at scrape time. Knows names and labels only.

Labels are drafters and the few tiers that are estimated: none comes from a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adaptspec.telemetry.earnings import EarningsSnapshot, Estimate
from adaptspec.telemetry.static_tiers import TierEarnings

_TIER = ["drafter", "depth"]


class EarningsCollector(Collector):
    """Saved and wasted tokens, what fixed depths would have taken, switches, and how far expectations came true."""

    def __init__(self, snapshot: Callable[[], EarningsSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """One snapshot, so that the figures of a scrape agree with each other."""
        seen = self._snapshot()
        yield from _tokens(seen)
        yield from _against_tiers(seen)
        yield from _choices(seen)
        yield from _calibration(seen)


def _tokens(seen: EarningsSnapshot) -> Iterator[Metric]:
    prefix = "adaptspec_spec_decode"
    yield CounterMetricFamily(
        f"{prefix}_saved_tokens", "Drafted tokens that were emitted: plain rounds not needed", seen.saved_tokens
    )
    yield CounterMetricFamily(f"{prefix}_wasted_tokens", "Drafted tokens that were not emitted", seen.wasted_tokens)
    drafts = CounterMetricFamily(f"{prefix}_drafter_drafts", "Row-rounds that drafted, by drafter", labels=["drafter"])
    for drafter, count in seen.drafts_by_drafter.items():
        drafts.add_metric([drafter], count)
    yield drafts


def _against_tiers(seen: EarningsSnapshot) -> Iterator[Metric]:
    told = (
        ("static_tier_seconds", "Time of the same tokens at a fixed depth, as rounds that were run tell", "seconds"),
        ("compared_seconds", "Time of rounds that are compared with a fixed depth", "against"),
        ("compared_tokens", "Tokens of rounds that are compared with a fixed depth", "tokens"),
    )
    for name, help_text, field in told:
        family = CounterMetricFamily(f"adaptspec_{name}", help_text, labels=_TIER)
        for tier in seen.tiers:
            family.add_metric(_labels(tier), getattr(tier, field) if tier.known else 0.0)
        yield family
    guessed = GaugeMetricFamily(
        "adaptspec_static_tier_guessed_ratio", "Share of its tokens that nothing observed vouches for", labels=_TIER
    )
    best = GaugeMetricFamily("adaptspec_best_static_tier", "1 for the fixed depth that is best so far", labels=_TIER)
    for tier in seen.tiers:
        guessed.add_metric(_labels(tier), tier.guessed)
        best.add_metric(_labels(tier), float(tier == seen.best_static))
    yield guessed
    yield best
    yield from _estimate(seen.speedup, "speedup", "Goodput over that of plain rounds that were run, since the start")
    yield from _estimate(seen.regret, "regret", "Time beyond that of the best fixed depth so far, over the latter")
    yield GaugeMetricFamily(
        "adaptspec_costs_unsure",
        "1 while the cost table and rounds disagree, and costs are measured again",
        seen.unsure,
    )
    measured = GaugeMetricFamily(
        "adaptspec_costs_measured_timestamp_seconds", "When the table that rounds began with was measured", labels=[]
    )
    if not math.isnan(seen.measured):
        measured.add_metric([], seen.measured)
    yield measured
    yield CounterMetricFamily("adaptspec_costs_remeasured", "Times that rounds had costs measured again", seen.doubts)


def _estimate(found: Estimate | None, name: str, help_text: str) -> Iterator[Metric]:
    """A ratio and its bounds; without a sample while it is not known."""
    for suffix, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
        words = {"": "", "_low": ": at least", "_high": ": at most"}[suffix]
        family = GaugeMetricFamily(f"adaptspec_{name}{suffix}_ratio", help_text + words, labels=[])
        if found is not None:
            family.add_metric([], getattr(found, bound))
        yield family


def _choices(seen: EarningsSnapshot) -> Iterator[Metric]:
    prefix = "adaptspec_spec_decode"
    share = GaugeMetricFamily(f"{prefix}_tier_share_ratio", "Share of row-rounds by decided depth", labels=["depth"])
    for depth, part in seen.tier_share.items():
        share.add_metric([depth], part)
    yield share
    for name, help_text, count in (
        ("depth_switches", "Changes of depth within requests", seen.depth_switches),
        ("drafter_switches", "Changes of drafter within requests", seen.drafter_switches),
        ("guard_switches", "Times that a guard switched speculation off", seen.guard_switches),
        ("probes", "Tries of speculation while it was off", seen.probes),
        ("probes_won", "Tries after which it stayed on", seen.probes_won),
    ):
        yield CounterMetricFamily(f"{prefix}_{name}", help_text, count)


def _calibration(seen: EarningsSnapshot) -> Iterator[Metric]:
    found = seen.calibration
    for name, help_text, count in (
        ("predicted_tokens", "Tokens by predicted goodput over the time rounds took", found.predicted_tokens),
        ("realised_tokens", "Tokens that came of rounds with a prediction", found.realised_tokens),
        ("predicted_accepted_tokens", "Drafted tokens expected to be accepted", found.predicted_accepted),
        ("realised_accepted_tokens", "Drafted tokens accepted where some number was expected", found.realised_accepted),
    ):
        yield CounterMetricFamily(f"adaptspec_{name}", help_text, count)
    yield GaugeMetricFamily(
        "adaptspec_goodput_calibration_ratio",
        "Predicted goodput over realised; above 1: too hopeful",
        found.goodput_ratio,
    )
    yield CounterMetricFamily(
        "adaptspec_earnings_dropped_entries", "Rounds and requests left out of these figures", seen.dropped
    )


def _labels(tier: TierEarnings) -> list[str]:
    return [tier.tier.drafter or "off", str(tier.tier.depth)]
