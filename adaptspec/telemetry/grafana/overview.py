"""The dashboard's first rows: a server at a glance, and how fast it is."""

from __future__ import annotations

from adaptspec.telemetry.grafana.panels import Panel, Query, Row, figure
from adaptspec.telemetry.grafana.promql import quantiles, rate, ratio

_EMITTED, _ROUNDS = "adaptspec_spec_decode_emitted_tokens_total", "adaptspec_round_seconds_total"
_DRAFT, _VERIFY = "adaptspec_draft_seconds_total", "adaptspec_verify_seconds_total"
_ANSWERS = "adaptspec_http_responses_total"
_FAULTS = rate(_ANSWERS, where='status=~"5.."')
SPEEDUP = ratio("adaptspec_static_tier_seconds_total", "adaptspec_compared_seconds_total", above_where='drafter="off"')
ACCEPTANCE_LENGTH = "1 + " + ratio("adaptspec_spec_decode_accepted_tokens_total", "adaptspec_spec_decode_drafts_total")

GLANCE = Row(
    "At a glance",
    [
        figure("Tokens per second", "Output tokens of all requests.", "short", rate(_EMITTED), decimals=0),
        figure(
            "Acceptance length",
            "Tokens that a round with drafts yields, the target's own one included: 1 + accepted per draft.",
            "short",
            ACCEPTANCE_LENGTH,
            decimals=2,
        ),
        figure(
            "Drafting",
            "Share of row-rounds that drafted. Low is no fault: policies keep off where drafts do not pay.",
            "percentunit",
            ratio("adaptspec_spec_decode_drafts_total", "adaptspec_spec_decode_depth_total"),
            decimals=0,
        ),
        figure(
            "First token, p95",
            "From arrival to the first token; one request in twenty waits longer.",
            "s",
            quantiles("adaptspec_time_to_first_token_seconds")[1].expr,
            decimals=2,
        ),
        figure(
            "Speedup",
            "Estimated time without speculation over the time that rounds took; 1: speculation earns nothing.",
            "short",
            SPEEDUP,
            bounds=((None, "red"), (0.98, "orange"), (1.0, "green")),
            decimals=2,
        ),
        figure(
            "Server errors",
            "Share of HTTP answers that were the server's fault (5xx).",
            "percentunit",
            f"({_FAULTS} or vector(0)) / {rate(_ANSWERS)}",
            bounds=((None, "green"), (0.01, "orange"), (0.05, "red")),
            decimals=1,
        ),
    ],
)

SPEED = Row(
    "Speed",
    [
        Panel(
            "Tokens per second",
            "Output tokens, beside what they would have been without speculation (estimated), and prompt tokens read.",
            "short",
            [
                Query(rate(_EMITTED), "output"),
                Query(f"{rate(_EMITTED)} / ({SPEEDUP})", "without speculation"),
                Query(rate("adaptspec_prefill_tokens_total"), "prompt"),
            ],
        ),
        Panel(
            "Goodput",
            "Output tokens per second of rounds: how fast the engine is while it works, whatever the traffic.",
            "short",
            [Query(ratio(_EMITTED, _ROUNDS), "goodput")],
        ),
        Panel(
            "Where a round's time goes",
            "Shares of the rounds' time: drafting, the target's pass, and deciding and committing.",
            "percentunit",
            [
                Query(ratio(_DRAFT, _ROUNDS), "draft"),
                Query(ratio(_VERIFY, _ROUNDS), "verify"),
                Query(f"1 - ({rate(_DRAFT)} + {rate(_VERIFY)}) / {rate(_ROUNDS)}", "host"),
            ],
            stack=True,
            most=1.0,
        ),
        Panel(
            "Time to first token",
            "From arrival to the first token.",
            "s",
            quantiles("adaptspec_time_to_first_token_seconds"),
        ),
        Panel(
            "Time between tokens",
            "Mean of each request, over those that ended.",
            "s",
            quantiles("adaptspec_inter_token_seconds"),
        ),
        Panel(
            "Time of a request",
            "From arrival to the end.",
            "s",
            quantiles("adaptspec_request_seconds"),
        ),
    ],
)
