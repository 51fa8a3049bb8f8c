"""What a server really exports: names of metrics with their labels, from a scrape of one that has served."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.running import Running, config_of, get

Labels = dict[str, set[str]]
# Also those that rules record: level:metric:operations.
NAME = re.compile(r"\b(?:[a-z_]+:)?adaptspec_[a-z0-9_:]+")


REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("completions", {"prompt": "Hello", "seed": 1, "stop": "zzz", "adaptspec": {"task": "code", "max_depth": 2}}),
    ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "adaptspec": {"policy": "static-3"}}),
)


async def exposition(target: Path, draft: Path, folder: Path, collector: str = "http://127.0.0.1:9") -> str:
    """What `/metrics` of a server with everything on shows after two answers. By default its collector does not exist.

    The server writes `journal.jsonl` and `state/` into the folder.
    """
    config = replace(config_of(target, draft, folder), otlp_traces_endpoint=collector, trace_level="round")
    server = Running(config)
    url = await server.url()
    async with aiohttp.ClientSession() as session:
        for route, body in REQUESTS:
            asked = body | {"max_tokens": 20, "ignore_eos": True}
            async with session.post(f"{url}/v1/{route}", json=asked) as response:
                assert response.status == 200, await response.text()
        text: str = await get(session, f"{url}/metrics")
    await server.stop()
    return text


async def exported(target: Path, draft: Path, folder: Path) -> Labels:
    """Labels by metric of such a server."""
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(await exposition(target, draft, folder)):
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
