"""The dashboard's rows about speculation: what was drafted and why, what it came to, and which policy it was."""

from __future__ import annotations

from adaptspec.telemetry.grafana.overview import ACCEPTANCE_LENGTH
from adaptspec.telemetry.grafana.panels import Panel, Query, Row
from adaptspec.telemetry.grafana.promql import now, rate, ratio, shares

_DRAFTS, _DEPTHS = "adaptspec_spec_decode_drafts_total", "adaptspec_spec_decode_depth_total"
_ALL_ROUNDS = "adaptspec_rounds_total"

SPECULATION = Row(
    "Speculation",
    [
        Panel(
            "Acceptance length",
            "1 + accepted per draft. It grows with depth: compare it with itself, not across tiers.",
            "short",
            [Query(ACCEPTANCE_LENGTH, "acceptance length")],
            least=1.0,
        ),
        Panel(
            "Accepted at position",
            "Share of drafts that were accepted up to this position (0 is the first drafted token).",
            "percentunit",
            [
                Query(
                    f"{rate('adaptspec_spec_decode_accepted_tokens_per_pos_total', 'position')} "
                    f"/ on () group_left () {rate(_DRAFTS)}",
                    "{{position}}",
                )
            ],
            most=1.0,
        ),
        Panel(
            "Drafted tokens",
            "Saved: came out in the answer, each a plain round that was not needed. Wasted: the target's pass over "
            "them earned nothing.",
            "short",
            [
                Query(rate("adaptspec_spec_decode_saved_tokens_total"), "saved"),
                Query(rate("adaptspec_spec_decode_wasted_tokens_total"), "wasted"),
            ],
            stack=True,
        ),
        Panel(
            "Tiers",
            "Share of row-rounds by the depth that was decided; 0 is off.",
            "percentunit",
            [Query(shares(_DEPTHS, "depth"), "{{depth}}")],
            stack=True,
            most=1.0,
        ),
        Panel(
            "Reasons",
            "Why row-rounds had the depth they had, as shares.",
            "percentunit",
            [Query(shares("adaptspec_spec_decode_decisions_total", "reason"), "{{reason}}")],
            stack=True,
            most=1.0,
        ),
        Panel(
            "Drafters",
            "Drafts per second, by who made them.",
            "short",
            [Query(rate("adaptspec_spec_decode_drafter_drafts_total", "drafter"), "{{drafter}}")],
            stack=True,
        ),
        Panel(
            "Draft model",
            "Forward passes of the draft model per round, and tokens it reads to catch up after a pause.",
            "short",
            [
                Query(ratio("adaptspec_draft_steps_total", _ALL_ROUNDS), "passes per round"),
                Query(ratio("adaptspec_catch_up_tokens_total", _ALL_ROUNDS), "catch-up per round"),
            ],
        ),
        Panel(
            "Changes",
            "Changes of depth and of drafter within requests, per round.",
            "short",
            [
                Query(ratio("adaptspec_spec_decode_depth_switches_total", _ALL_ROUNDS), "depth"),
                Query(ratio("adaptspec_spec_decode_drafter_switches_total", _ALL_ROUNDS), "drafter"),
            ],
        ),
    ],
)

POLICIES = Row(
    "Policies",
    [
        Panel(
            "Speed of a request, by policy",
            "Tokens after the first over the seconds they took: what a canary is judged by.",
            "short",
            [
                Query(
                    ratio("adaptspec_policy_decode_tokens_total", "adaptspec_policy_decode_seconds_total", "policy"),
                    "{{policy}}",
                )
            ],
        ),
        Panel(
            "Requests, by policy",
            "Requests that ended, per second.",
            "reqps",
            [Query(rate("adaptspec_policy_requests_total", "policy"), "{{policy}}")],
            stack=True,
        ),
        Panel(
            "Shadow policies",
            "Estimated goodput over that of the policy that acts: above 1 the shadow would have been faster. Empty "
            "where no policy is served in shadow mode.",
            "short",
            [
                Query(now("adaptspec_shadow_goodput_ratio", "avg", "policy"), "{{policy}}"),
                Query(now("adaptspec_shadow_guessed_ratio", "avg", "policy"), "{{policy}}, guessed share"),
            ],
        ),
    ],
)
