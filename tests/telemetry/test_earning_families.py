"""What a scrape shows of earnings: the figures of one snapshot, under few labels."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from adaptspec.control.labels import Names
from adaptspec.telemetry.earnings import Earnings
from adaptspec.telemetry.metrics import Metrics
from adaptspec.types import Request
from tests.control.helpers import record, table

Scrape = dict[tuple[str, tuple[str, ...]], float]


def scraped(rounds: int, drafted: int, accepted: int) -> tuple[Scrape, Earnings]:
    earnings, metrics = Earnings(pause=60.0), Metrics()
    metrics.watch_earnings(earnings.snapshot)
    earnings.begin(table(), ("draft-model",), 1, Names())
    earnings.started(Request("r", (1, 2, 3)))
    for _ in range(rounds):
        earnings.emit(replace(record([drafted], [accepted]), request_ids=("r",)))
    families = text_string_to_metric_families(metrics.render()[0].decode())
    seen = {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
    }
    earnings.close()
    return seen, earnings


def test_a_scrape_shows_one_snapshot() -> None:
    """Tokens, tiers, the best of them, and how it compares."""
    seen, earnings = scraped(100, 3, 2)
    now = earnings.snapshot()
    assert seen["adaptspec_spec_decode_saved_tokens_total", ()] == 200
    assert seen["adaptspec_spec_decode_wasted_tokens_total", ()] == 100
    assert seen["adaptspec_spec_decode_tier_share_ratio", ("3",)] == 1.0
    assert seen["adaptspec_speedup_ratio", ()] == now.speedup
    assert seen["adaptspec_regret_ratio", ()] == now.regret
    for tier in now.tiers:
        labels = tuple(sorted((tier.tier.drafter or "off", str(tier.tier.depth))))
        assert seen["adaptspec_static_tier_seconds_total", labels] == tier.seconds
    assert seen["adaptspec_best_static_tier", ("2", "draft-model")] == 1.0


def test_before_the_first_round_everything_is_a_number() -> None:
    """A scraper meets no NaN, and counters start at zero."""
    seen, _ = scraped(0, 0, 0)
    assert seen["adaptspec_speedup_ratio", ()] == 1.0
    assert seen["adaptspec_regret_ratio", ()] == 0.0
    assert not any(math.isnan(value) for value in seen.values())


def test_labels_do_not_grow_with_depths() -> None:
    seen, _ = scraped(2, 500, 400)
    assert seen["adaptspec_spec_decode_tier_share_ratio", ("64+",)] == 1.0
    assert len(seen) < 300
