"""Connections end before files do: what the process may open, and what is left for connections."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

import pytest

from adaptspec.server import descriptors
from adaptspec.server.descriptors import RESERVE, room_for
from tests.server.test_connection import serving, talk

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted", "room", "raised"),
    [
        ((1024, 2**20), 1024, 1024, 1024 + RESERVE),  # the usual limits
        ((1024, UNLIMITED), 5000, 5000, 5000 + RESERVE),
        ((2**20, 2**20), 1024, 1024, None),
        ((UNLIMITED, UNLIMITED), 10**6, 10**6, None),
        ((1024, 1024), 1024, 1024 - RESERVE, None),  # nothing to raise
        ((256, 4096), 10_000, 4096 - RESERVE, 4096),
        ((100, 100), 1024, 50, None),  # half at the least is for ourselves
        ((1, 1), 1024, 1, None),
    ],
)
def test_the_limit_is_raised_for_connections_and_they_are_held_to_it(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], wanted: int, room: int, raised: int | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda kind, new: asked.append(new))
    assert room_for(wanted) == room
    assert asked == ([] if raised is None else [(raised, limits[1])])


def test_a_system_that_does_not_let_the_limit_be_raised_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    assert room_for(1024) == 1024 - RESERVE


async def test_fewer_connections_than_wanted_are_said_and_held_to(
    engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where files end before the limit of connections: one too many gets its 503, and the log says why once."""
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind: (4, 4))
    async with serving(engine, tokenizer) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await talk(port, b""))[0] == 503
        for _, writer in held:
            writer.close()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "At most 2 connections are taken instead of 1024" in record.getMessage()
