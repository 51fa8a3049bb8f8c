"""What a server really exports: names of metrics with their labels, from a scrape of one that has served."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from adaptspec.telemetry.trace_settings import PushSettings, TraceSettings
from tests.running import Running, config_of, get

# Also those that rules record: level:metric:operations.
NAME = re.compile(r"\b(?:[a-z_]+:)?(?:adaptspec|gen_ai)_[a-z0-9_:]+")


async def exported(target: Path, draft: Path, folder: Path) -> dict[str, set[str]]:
    """Labels by metric of a server with everything on, after one answer. Its collector does not exist."""
    nowhere = "http://127.0.0.1:9"
    config = replace(
        config_of(target, draft, folder),
        traces=TraceSettings(endpoint=nowhere),
        push=PushSettings(wanted=True, endpoint=nowhere),
    )
    server = Running(config)
    url = await server.url()
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "Hello", "max_tokens": 20, "temperature": 0}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200
        text = await get(session, f"{url}/metrics")
    await server.stop()
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        if family.type == "gauge":  # one that is not known yet has no sample
            labels[family.name] |= set()
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels)
    return dict(labels)


def unknown(expr: str, known: Mapping[str, set[str]]) -> list[str]:
    """Metrics of a PromQL expression that no server exports, and labels that it matches or groups by in vain.

    `job` and `instance` are Prometheus' own. `known` may hold recorded series, too: their names have colons.
    """
    names = set(NAME.findall(re.sub(r'"[^"]*"', "", expr)))
    labels = {"job", "instance"}.union(*(known.get(name, ()) for name in names))
    matched = [label for part in re.findall(r"\{([^}]*)\}", expr) for label in re.findall(r"(\w+)\s*(?:=|!)", part)]
    grouped = [label for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr) for label in re.findall(r"\w+", part)]
    return sorted(names - known.keys()) + sorted({*matched, *grouped} - labels)
