"""Policies are looked at before they serve: refused with their place, tried in a process that has an end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptspec.errors import OverloadedError, PolicyError, RequestError
from adaptspec.server.trials import TRIALS, Trials
from tests.server.test_admin import BEARER, Client, FakeDesk, admin, desk  # noqa: F401 - fixtures

_ECHO = (sys.executable, "-c", "import json,sys; print(json.dumps({'trial': json.load(sys.stdin)}))")
_SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


async def test_a_valid_policy_is_named_and_nothing_is_sent(admin: Client, desk: FakeDesk) -> None:  # noqa: F811
    for name, replaces in (("main", True), ("fresh", False)):
        async with admin.post("/admin/policies/validate", data=name, headers=BEARER) as response:
            assert (response.status, await response.json()) == (
                200,
                {"valid": True, "name": name, "replaces": replaces},
            )
    assert desk.sent == []


async def test_what_is_wrong_is_said_with_its_place(admin: Client, desk: FakeDesk) -> None:  # noqa: F811
    desk.refusal = PolicyError("<body>:3:7: spec.tiers: not a list\n... and 2 more")
    async with admin.post("/admin/policies/validate", data="x", headers=BEARER) as response:
        problems = (await response.json())["problems"]
        assert response.status == 200
    assert problems == [
        {"line": 3, "column": 7, "message": "spec.tiers: not a list"},
        {"line": None, "column": None, "message": "... and 2 more"},
    ]
    async with admin.post("/admin/policies/simulate", data="x", headers=BEARER) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"].startswith("<body>:3:7: spec.tiers")


@pytest.mark.parametrize("action", ["validate", "simulate"])
async def test_looking_needs_the_admin_key_too(admin: Client, action: str) -> None:  # noqa: F811
    async with admin.post(f"/admin/policies/{action}", data="x") as response:
        assert response.status == 401


async def test_a_trial_compares_with_what_serves_under_its_name(
    admin: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    admin.app[TRIALS]._journal, admin.app[TRIALS]._program = tmp_path, _ECHO  # type: ignore[index]
    async with admin.post("/admin/policies/simulate", data="main", headers=BEARER) as response:
        assert await response.json() == {
            "journal": str(tmp_path),
            "policy": "main",
            "against": "spec: {}",
            "served": dict.fromkeys(("main", "new", "watch"), "spec: {}"),
            "folder": ".",
        }


async def test_without_a_journal_it_says_so() -> None:
    with pytest.raises(RequestError, match="--journal"):
        await Trials(None).run("", None, {})


async def test_a_trial_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """And its process with it; another may run then."""
    trials = Trials(tmp_path, _SLEEPS, seconds=0.3)
    for _ in range(2):
        with pytest.raises(RequestError, match=r"more than 0\.3 s"):
            await trials.run("", None, {})


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


@pytest.mark.parametrize(
    ("code", "said"),
    [('print(\'{"error": "no rounds"}\')', "no rounds"), ("raise SystemExit(3)", "log says why")],
)
async def test_a_trial_that_fails_says_why(tmp_path: Path, code: str, said: str) -> None:
    program: Any = (sys.executable, "-c", f"import sys; sys.stdin.read(); {code}")
    with pytest.raises(RequestError, match=said):
        await Trials(tmp_path, program).run("", None, {})
