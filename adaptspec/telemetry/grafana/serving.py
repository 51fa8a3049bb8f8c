"""The dashboard's last row: the server itself, its load and what it loses."""

from __future__ import annotations

from adaptspec.telemetry.grafana.panels import Panel, Query, Row
from adaptspec.telemetry.grafana.promql import growth, now, rate

SERVER = Row(
    "Server",
    [
        Panel(
            "Load",
            "Requests in the batch and in the queue.",
            "short",
            [Query(now("adaptspec_requests_running"), "running"), Query(now("adaptspec_requests_waiting"), "waiting")],
        ),
        Panel(
            "Requests, by how they ended",
            "stop and length are the normal ends; abort: the client left; error: the engine failed.",
            "reqps",
            [Query(rate("adaptspec_requests_total", "finish_reason"), "{{finish_reason}}")],
            stack=True,
        ),
        Panel(
            "HTTP answers",
            "By status code.",
            "reqps",
            [Query(rate("adaptspec_http_responses_total", "status"), "{{status}}")],
            stack=True,
        ),
        Panel(
            "Policy reloads",
            "Policies that came anew, and those that were refused; the last good one stays.",
            "short",
            [Query(growth("adaptspec_policy_reloads_total", "result"), "{{result}}")],
            width=12,
            height=6,
        ),
        Panel(
            "Losses beside serving",
            "What could not be written down or kept; nothing of it touches an answer. There are curves for what is in "
            "use: a journal, a state directory, a collector.",
            "short",
            [
                Query(growth("adaptspec_journal_dropped_lines_total"), "journal lines dropped"),
                Query(growth("adaptspec_earnings_dropped_entries_total"), "rounds without an estimate"),
                Query(growth("adaptspec_trace_dropped_spans_total"), "spans dropped"),
                Query(growth("adaptspec_metrics_failed_pushes_total"), "metrics not sent"),
                Query(growth("adaptspec_state_failed_saves_total"), "states not saved"),
                Query(growth("adaptspec_state_quarantined_files_total"), "states quarantined"),
            ],
            width=12,
            height=6,
        ),
    ],
)
