"""PromQL over AdaptSpec's metrics: rates and ratios of sums, over the jobs and instances that the dashboard has chosen.

Knows the shape of expressions; it does not know which are worth showing.
"""

from __future__ import annotations

from adaptspec.telemetry.grafana.panels import Query

_CHOSEN = '{job=~"$job",instance=~"$instance"'


def rate(name: str, by: str = "", where: str = "") -> str:
    """PromQL: how fast a counter grows, summed up but for the labels in `by`."""
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({chosen(name, where)}[$__rate_interval]))"


def now(name: str, function: str = "sum", by: str = "") -> str:
    """PromQL: a gauge as it stands."""
    total = f"{function} by ({by})" if by else function
    return f"{total} ({chosen(name)})"


def ratio(above: str, below: str, by: str = "", above_where: str = "") -> str:
    """PromQL: rates of two counters over each other; `above_where` narrows the first."""
    return f"{rate(above, by, above_where)} / {rate(below, by)}"


def quantiles(name: str) -> list[Query]:
    """The median, and what one request in 20 and in 100 goes beyond."""
    return [
        Query(f"histogram_quantile({q}, {rate(name + '_bucket', 'le')})", f"p{round(100 * q)}")
        for q in (0.5, 0.95, 0.99)
    ]


def chosen(name: str, where: str = "") -> str:
    """PromQL: the series of a metric; `where` narrows them further."""
    more = f",{where}" if where else ""
    return f"{name}{_CHOSEN}{more}}}"


def growth(name: str, by: str = "") -> str:
    """PromQL: by how much a counter grew."""
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (increase({chosen(name)}[$__rate_interval]))"


def shares(name: str, by: str) -> str:
    """PromQL: the shares of a counter's growth by a label; they add up to 1."""
    return f"{rate(name, by)} / on () group_left () {rate(name)}"
