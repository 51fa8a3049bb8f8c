"""Policies are looked at before they serve: refused with their place, tried in a process that has an end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from adaptspec.errors import OverloadedError
from adaptspec.server.trials import Trials
from tests.server.test_admin import BEARER, Client, FakeDesk, admin, desk  # noqa: F401 - fixtures


async def test_a_valid_policy_is_named_and_nothing_is_sent(admin: Client, desk: FakeDesk) -> None:  # noqa: F811
    for name, replaces in (("main", True), ("fresh", False)):
        async with admin.post("/admin/policies/validate", data=name, headers=BEARER) as response:
            assert (response.status, await response.json()) == (
                200,
                {"valid": True, "name": name, "replaces": replaces},
            )
    assert desk.sent == []


async def test_there_is_one_at_a_time_and_none_outlives_who_asked(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    program = (
        sys.executable,
        "-c",
        f"import os,time; open({str(started)!r},'w').write(str(os.getpid())); time.sleep(60)",
    )
    trials = Trials(tmp_path, program)
    asking = asyncio.create_task(trials.run("", None, {}))
    while not (started.exists() and started.read_text()):
        await asyncio.sleep(0.02)
    with pytest.raises(OverloadedError):
        await trials.run("", None, {})
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
