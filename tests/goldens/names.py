"""Names that others rely on: metrics and labels, spans and attributes, routes and fields of the HTTP interface.

    python -m tests.goldens.names             # after an intended change; what differs is then seen in names.json

A test holds them equal to what a server really exports. The policy language has a file of its own, which a test holds
equal, too: policies/policy.schema.json. What deciding takes is not frozen: over another policy's time in the same run
it was 9 and 15 in two runs of `bench decisions` on one machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import pkgutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptspec import server
from adaptspec.engine.engine_config import model_place
from adaptspec.server import live_page
from adaptspec.server.openapi import describe
from adaptspec.server.routes import Operation
from tests.telemetry.exported import exported
from tests.telemetry.otlp import collecting

FILE = Path(__file__).with_name("names.json")
Names = dict[str, dict[str, list[str]]]


async def names(target: Path, draft: Path, folder: Path) -> Names:
    """Of a server of these models, after it has answered."""
    with collecting() as collector:
        metrics = await exported(target, draft, folder, collector.url)
        spans: dict[str, set[str]] = defaultdict(set)
        for span in collector.spans:
            # The name of a root span ends with its model's. Events are of what happened to happen.
            spans[span.name.split()[0]] |= set(span.attributes)
    found = {"metrics": metrics, "spans": dict(spans), **_http()}
    return {kind: {name: sorted(parts) for name, parts in sorted(own.items())} for kind, own in found.items()}


def _http() -> dict[str, dict[str, set[str]]]:
    modules = [import_module(one.name) for one in pkgutil.walk_packages(server.__path__, "adaptspec.server.")]
    found = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, Operation)}
    served = [*found.values(), replace(live_page.index, path="/dashboard")]
    whole = describe(served)
    routes = {
        f"{method.upper()} {path}": set(operation["responses"])
        | {one["name"] for one in operation.get("parameters", ())}
        for path, own in whole["paths"].items()
        for method, operation in own.items()
    }
    return {"routes": routes, "fields": {name: _fields(own) for name, own in whole["components"]["schemas"].items()}}


def _fields(schema: dict[str, Any]) -> set[str]:
    """Fields with their types; those that must be there end in !."""
    required = schema.get("required", ())
    known = schema.get("properties", {})
    return {f"{name}{'!' if name in required else ''}: {_type(own)}" for name, own in known.items()}


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    inner = f" of {_type(schema['items'])}" if isinstance(schema.get("items"), dict) else ""
    return str(schema.get("type", schema.get("const", "any"))) + inner


def main() -> int:
    """Record them, of the bundled pair."""
    target, draft = (Path(model_place("bundled", role)) for role in ("target", "draft"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        FILE.write_text(json.dumps(asyncio.run(names(target, draft, Path(folder))), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
