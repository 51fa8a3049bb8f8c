"""All contracts by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.files import commands, damage, names, policies, refusals, samples
from tests.files.contracts import Contract
from tests.files.servers import World, world


@dataclass(frozen=True)
class Place:
    """Where contracts are recorded: two tiny models, an empty folder, and the engine that all servers share."""

    target: Path
    draft: Path
    folder: Path
    shared: World | None = None


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Place]:
    """The place with its engine, which runs until the context ends."""
    async with world(place.target, place.draft) as shared:
        yield replace(place, shared=shared)


def _shared(place: Place) -> World:
    assert place.shared is not None, "the place must be opened"
    return place.shared


CONTRACTS: tuple[Contract[Place], ...] = (
    Contract("names", lambda place, _: names.record_names(place.target, place.draft, place.folder)),
    Contract("openapi", lambda place, _: names.record_openapi(_shared(place))),
    Contract("commands", lambda place, _: commands.record(place.folder)),
    Contract("policies", lambda place, recorded: policies.record(place.folder, recorded)),
    Contract("samples", lambda place, _: samples.record(place.folder)),
    Contract("damage", lambda place, recorded: damage.record(place.folder, recorded), lines_at=1),
    Contract("refusals", lambda place, recorded: refusals.record(_shared(place), recorded), lines_at=2),
)
