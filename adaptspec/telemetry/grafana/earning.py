"""The dashboard's row about earnings: what decisions were worth, against plain decoding and every fixed depth."""

from __future__ import annotations

from adaptspec.telemetry.grafana.overview import SPEEDUP
from adaptspec.telemetry.grafana.panels import Panel, Query, Row
from adaptspec.telemetry.grafana.promql import growth, now, rate, ratio

_TIERS, _TIME = "adaptspec_static_tier_seconds_total", "adaptspec_compared_seconds_total"
_OFF = rate(_TIERS, where='drafter="off"')

EARNINGS = Row(
    "Earnings",
    [
        Panel(
            "Against every fixed depth",
            "Speed over plain decoding: what serves, and what each fixed depth would have had on the same text "
            "(estimated from what was observed).",
            "short",
            [
                Query(SPEEDUP, "as it serves"),
                Query(f"{_OFF} / on () group_right () {rate(_TIERS, 'drafter, depth')}", "{{drafter}} {{depth}}"),
            ],
        ),
        Panel(
            "Regret",
            "Time beyond that of the best fixed depth, over the latter: in this window, and since the start. Below 0: "
            "deciding beats every fixed depth.",
            "percentunit",
            [
                Query(f"{rate(_TIME)} / min ({rate(_TIERS, 'drafter, depth')}) - 1", "in this window"),
                Query(now("adaptspec_regret_ratio", "avg"), "since the start"),
            ],
            least=None,
        ),
        Panel(
            "How much of it is guessed",
            "Share of each fixed depth's tokens that nothing observed vouches for: the more, the less its curve means.",
            "percentunit",
            [Query(now("adaptspec_static_tier_guessed_ratio", "avg", "drafter, depth"), "{{drafter}} {{depth}}")],
            most=1.0,
        ),
        Panel(
            "Predicted over realised",
            "What policies expected over what came; above 1 they are too hopeful.",
            "short",
            [
                Query(ratio("adaptspec_predicted_tokens_total", "adaptspec_realised_tokens_total"), "goodput"),
                Query(
                    ratio("adaptspec_predicted_accepted_tokens_total", "adaptspec_realised_accepted_tokens_total"),
                    "accepted tokens",
                ),
            ],
        ),
        Panel(
            "Off and back",
            "Times that a guard switched speculation off, tries while it was off, and those after which it stayed on.",
            "short",
            [
                Query(growth("adaptspec_spec_decode_guard_switches_total"), "switched off"),
                Query(growth("adaptspec_spec_decode_probes_total"), "probes"),
                Query(growth("adaptspec_spec_decode_probes_won_total"), "probes won"),
            ],
        ),
        Panel(
            "Best fixed depth",
            "The one that is best so far, by server: with it, regret is measured.",
            "short",
            [Query(now("adaptspec_best_static_tier", "sum", "drafter, depth"), "{{drafter}} {{depth}}")],
            stack=True,
        ),
    ],
)
