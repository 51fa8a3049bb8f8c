"""The contract of names: metrics, spans, what a server writes into its files, routes and the OpenAPI document.

Dashboards, collectors, clients and readers of journals go by these names. The policy language has a file of its own,
which a test holds equal as well: policies/policy.schema.json.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.files.contracts import Document, name_set
from tests.files.servers import ADMIN_KEY, KEY, World, running, send
from tests.telemetry.exported import exposition
from tests.telemetry.otlp import Collector, collecting


async def record_names(target: Path, draft: Path, folder: Path) -> Document:
    """Of a server of these models with everything on, after it has answered and stopped."""
    with collecting() as collector:
        text = await exposition(target, draft, folder, collector.url)
    return {
        "metrics": _metrics(text),
        "spans": _spans(collector),
        "journal": _fields((folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()),
        "state": _state((folder / "state" / "learned.json").read_text(encoding="utf-8")),
    }


async def record_openapi(shared: World) -> Document:
    """The description of a server with all routes, keys for users and for the admin."""
    async with running("keyed", shared) as port:
        head = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}"
        described: Document = json.loads((await send(port, head, b"")).body)
        described["info"]["version"] = "(of the package)"
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                operation["x-opens-with"] = await _key(port, method.upper(), path)
    _sort_required(described)
    return described


def _sort_required(value: Any) -> None:
    """Make a set of each list of required fields."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _sort_required(inner)
    if isinstance(value, dict) and isinstance(value.get("required"), list):
        value["required"] = name_set(value["required"])


async def _key(port: int, method: str, path: str) -> str:
    """What a route needs to answer anything but 401: nothing, an API key or the admin key."""
    head = f"{method} {path.replace('{', '').replace('}', '')} HTTP/1.1\r\nHost: localhost\r\nConnection: close"
    if (await send(port, head, b"")).status != 401:
        return "nothing"
    answer = await send(port, f"{head}\r\nAuthorization: Bearer {ADMIN_KEY}", b"")
    return "an API key" if answer.status == 401 else "the admin key"


def _metrics(text: str) -> Document:
    """Type, labels, buckets and names of series by family."""
    found: Document = {}
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[family.name] = {"type": family.type, "labels": name_set(labels)}
        if family.type != "gauge":  # one that is not known yet has no sample
            found[family.name]["series"] = name_set({sample.name for sample in family.samples})
        if buckets := {sample.labels["le"] for sample in family.samples if "le" in sample.labels}:
            found[family.name]["buckets"] = name_set(buckets)
    return found


def _spans(collector: Collector) -> Document:
    """Attributes by span. The name of a root span ends with its model's. Events depend on what happened, and are not
    recorded.
    """
    spans: dict[str, set[str]] = defaultdict(set)
    for span in collector.spans:
        spans[span.name.split()[0]] |= set(span.attributes)
    return {name: name_set(attributes) for name, attributes in spans.items()}


def _fields(lines: Iterable[str]) -> Document:
    """Fields of journal lines by their type, those of objects in them included."""
    fields: dict[str, set[str]] = defaultdict(set)
    for entry in map(json.loads, lines):
        fields[entry["type"]] |= set(_keys(entry))
    return {kind: name_set(names) for kind, names in fields.items()}


def _keys(value: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, inner in value.items():
        yield prefix + key
        # Costs have a file format of their own.
        if isinstance(inner, dict) and key != "costs":
            yield from _keys(inner, f"{prefix}{key}.")


def _state(text: str) -> Document:
    """Fields of learned state, and the shapes of its arrays by policy."""
    state = json.loads(text)
    arrays = {
        policy: {name: array["shape"] for name, array in entry["arrays"].items()}
        for policy, entry in state["policies"].items()
    }
    return {"fields": name_set(state), "arrays": arrays}
