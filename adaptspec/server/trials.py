"""Looking at a policy before it serves: is it valid, and what would it have earned lately?

Trials compute for seconds, so each is a process of its own, one at a time, with an end. Knows HTTP and processes; what
a trial says is `analysis.policy_trial`'s affair.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError, OverloadedError, RequestError
from adaptspec.server.admin import POLICIES, body_text

TRIAL_SECONDS = 60.0
_PLACE = re.compile(r"<body>:(\d+):(\d+): ")
_PROGRAM = (sys.executable, "-m", "adaptspec.analysis.policy_trial")


class Trials:
    """Runs trials on a journal. `program` is what answers them."""

    def __init__(
        self, journal: Path | None, program: tuple[str, ...] = _PROGRAM, seconds: float = TRIAL_SECONDS
    ) -> None:
        self._journal = None if journal is None else journal.resolve()
        self._program = program
        self._seconds = seconds
        self._running = False

    async def run(self, policy: str, against: str | None, served: Mapping[str, str]) -> dict[str, Any]:
        """The outcome for a policy's YAML, beside that of another; they may use those that are `served`.

        Raises:
            RequestError: there is no journal, the policy or the journal cannot be used, or it took too long.
            OverloadedError: another trial runs.
        """
        if self._journal is None:
            raise RequestError("this server writes no journal: start it with --journal FILE to try policies on it")
        if self._running:
            raise OverloadedError("another trial is running; try again in a moment")
        self._running = True
        try:
            question = {"journal": str(self._journal), "policy": policy, "against": against, "served": dict(served)}
            return await self._ask(question)
        finally:
            self._running = False

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._program, stdin=pipe, stdout=pipe)
        try:
            said, _ = await asyncio.wait_for(process.communicate(json.dumps(question).encode()), self._seconds)
        except asyncio.TimeoutError as error:
            raise RequestError(
                f"the trial took more than {self._seconds:g} s and was ended; use `adaptspec policy simulate`"
            ) from error
        finally:
            # Also where the client has gone, or the server ends.
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode != 0:
            raise RequestError("the trial failed; the server's log says why")
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise RequestError(answer["error"])
        trial: dict[str, Any] = answer["trial"]
        return trial


TRIALS = web.AppKey("trials", Trials)


def trial_routes() -> list[web.RouteDef]:
    """The routes, all of which need the admin key: they compute, and tell of the traffic."""
    return [web.post("/admin/policies/validate", validate), web.post("/admin/policies/simulate", simulate)]


async def validate(http: web.Request) -> web.Response:
    """POST /admin/policies/validate: the body is a policy as YAML; nothing changes, and what is wrong is the answer."""
    text = await body_text(http)
    try:
        name = await asyncio.to_thread(http.app[POLICIES].check, text, "<body>")
    except ConfigError as error:
        return web.json_response({"valid": False, "problems": [_problem(line) for line in str(error).splitlines()]})
    served = {policy.name for policy in http.app[POLICIES].served}
    return web.json_response({"valid": True, "name": name, "replaces": name in served})


async def simulate(http: web.Request) -> web.Response:
    """POST /admin/policies/simulate: the same, replayed over the newest requests of the journal.

    It is compared with plain decoding and with what serves under its name now, or else with the default.
    """
    desk, text = http.app[POLICIES], await body_text(http)
    try:
        name = await asyncio.to_thread(desk.check, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    served = {policy.name: policy.text for policy in desk.served}
    return web.json_response(await http.app[TRIALS].run(text, served.get(name, served.get(desk.default)), served))


def _problem(line: str) -> dict[str, Any]:
    """One line of an error; line and column are null where it stands nowhere in the text."""
    found = _PLACE.match(line)
    if found is None:
        return {"line": None, "column": None, "message": line}
    return {"line": int(found[1]), "column": int(found[2]), "message": line[found.end() :]}
