"""What a scrape shows of earnings: the figures of one snapshot, under few labels."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from adaptspec.request import Request
from adaptspec.telemetry.earnings import Earnings
from adaptspec.telemetry.metric_families import earning_families
from adaptspec.telemetry.metrics import Metrics
from tests.control.helpers import caught_up, record, table
from tests.telemetry.feeding import made

Scrape = dict[tuple[str, tuple[str, ...]], float]


def scraped(rounds: int, drafted: int, accepted: int) -> tuple[Scrape, Earnings]:
    store, earnings = made(Earnings, rows=1)
    metrics = Metrics(store)
    metrics.watch(lambda: earning_families(earnings.snapshot()))
    earnings.begin(table(), ("draft-model",), 1, 1)
    store.started(Request("r", (1, 2, 3)))
    drafting = record([drafted], [accepted])
    for own in [record([0], [0]), caught_up(drafting, 1), *[drafting] * 9] * (rounds // 10):
        store.emit(replace(own, request_ids=("r",)))
    families = text_string_to_metric_families(metrics.render()[0].decode())
    seen = {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
    }
    return seen, earnings


def test_a_scrape_shows_one_snapshot() -> None:
    """Tokens, tiers, the best of them, and how it compares."""
    seen, earnings = scraped(100, 3, 2)
    now = earnings.snapshot()
    assert seen["adaptspec_spec_decode_saved_tokens_total", ()] == 200
    assert seen["adaptspec_spec_decode_wasted_tokens_total", ()] == 100
    assert seen["adaptspec_spec_decode_tier_share_ratio", ("3",)] == 100 / 110
    for name, told in (("speedup", now.speedup), ("regret", now.regret)):
        assert told is not None
        bounds = [seen[f"adaptspec_{name}{which}_ratio", ()] for which in ("_low", "", "_high")]
        assert bounds == [told.low, told.value, told.high]
    assert now.best_static is not None
    for tier in now.tiers:
        labels = tuple(sorted((tier.tier.drafter or "off", str(tier.tier.depth))))
        assert seen["adaptspec_static_tier_seconds_total", labels] == (tier.seconds if tier.known else 0.0)
        assert seen["adaptspec_compared_seconds_total", labels] == (tier.against if tier.known else 0.0)
    assert seen["adaptspec_best_static_tier", ("3", "draft-model")] == 1.0
    assert seen["adaptspec_costs_unsure", ()] == 0.0


def test_what_is_not_known_has_no_sample() -> None:
    """A scraper meets no NaN and no figure that was made up, and counters start at zero."""
    seen, _ = scraped(0, 0, 0)
    assert ("adaptspec_speedup_ratio", ()) not in seen
    assert ("adaptspec_regret_ratio", ()) not in seen
    assert seen["adaptspec_costs_remeasured_total", ()] == 0.0
    assert not any(math.isnan(value) for value in seen.values())
