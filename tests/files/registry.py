"""All contracts by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.files import commands, damage, names, policies, refusals, samples
from tests.files.contracts import Contract, Document
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


async def _names(place: Place, recorded: Document) -> Document:
    return await names.record_names(place.target, place.draft, place.folder)


async def _openapi(place: Place, recorded: Document) -> Document:
    return await names.record_openapi(_shared(place))


async def _refusals(place: Place, recorded: Document) -> Document:
    return await refusals.record(_shared(place), recorded)


async def _commands(place: Place, recorded: Document) -> Document:
    return await commands.record(place.folder)


async def _policies(place: Place, recorded: Document) -> Document:
    return await policies.record(place.folder, recorded)


async def _samples(place: Place, recorded: Document) -> Document:
    return await samples.record(place.folder)


async def _damage(place: Place, recorded: Document) -> Document:
    return await damage.record(place.folder, recorded)


CONTRACTS: tuple[Contract[Place], ...] = (
    Contract("names", _names),
    Contract("openapi", _openapi),
    Contract("commands", _commands),
    Contract("policies", _policies),
    Contract("samples", _samples),
    Contract("damage", _damage, lines_at=1),
    Contract("refusals", _refusals, lines_at=2),
)
