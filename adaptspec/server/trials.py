"""Looking at a policy before it serves: is it valid, and what would it have earned lately?

Trials compute for seconds, so each is a process of its own, one at a time, with an end.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from aiohttp import web
from pydantic import RootModel

from adaptspec.errors import ConfigError, OverloadedError, RequestError
from adaptspec.server.admin import POLICIES, body_text, checked_name
from adaptspec.server.api.answers import Answer, Json
from adaptspec.server.routes import Operation

TRIAL_SECONDS = 60.0
_PLACE = re.compile(r"<body>:(\d+):(\d+): ")
_PROGRAM = (sys.executable, "-m", "adaptspec.analysis.policy_trial")


class PolicyProblem(Answer):
    """What is wrong with a policy; line and column, from 1, are null where it stands nowhere in the text."""

    line: int | None
    column: int | None
    message: str


class ValidPolicy(Answer):
    """A policy that could be served, and whether one of its name is."""

    valid: Literal[True]
    name: str
    replaces: bool


class InvalidPolicy(Answer):
    """A policy that could not be served, and why."""

    valid: Literal[False]
    problems: list[PolicyProblem]


class Validation(RootModel[ValidPolicy | InvalidPolicy]):
    """What was found in looking at a policy."""


class TrialRun(Answer):
    """One policy over the requests of a journal; goodput in tokens per second."""

    policy: str
    goodput: float
    over_off: float
    acceptance_length: float
    duty: float


class Trial(Answer):
    """What a policy would have earned, beside what serves now, plain decoding, and the best fixed depth."""

    edited: TrialRun
    current: TrialRun | None
    current_error: str | None
    off: TrialRun
    best_static: TrialRun
    requests: int
    tokens: int
    batch: int
    known: float
    left_out: list[str]


class Trials:
    """Runs trials on a journal. `program` is what answers them."""

    def __init__(
        self, journal: Path | None, program: tuple[str, ...] = _PROGRAM, seconds: float = TRIAL_SECONDS
    ) -> None:
        self._journal = None if journal is None else journal.resolve()
        self._program = program
        self._seconds = seconds
        self._running = False

    async def run(self, policy: str, against: str | None, served: Mapping[str, str], folder: Path = Path()) -> Json:
        """The outcome for a policy's YAML and for that of another; they may use those that are `served`.

        Files that `against` names are found from `folder`.

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
            question = {
                "journal": str(self._journal),
                "policy": policy,
                "against": against,
                "served": dict(served),
                "folder": str(folder),
            }
            return await self._ask(question)
        finally:
            self._running = False

    async def _ask(self, question: Json) -> Json:
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
        answer: Json = json.loads(said)
        if "error" in answer:
            raise RequestError(answer["error"])
        trial: Json = answer["trial"]
        return trial


TRIALS = web.AppKey("trials", Trials)


@Operation("post", "/admin/policies/validate", answer=Validation, policy=True)
async def validate(http: web.Request) -> web.Response:
    """Look at a policy.

    What is wrong with it is the answer.
    """
    text = await body_text(http)
    try:
        name = await asyncio.to_thread(http.app[POLICIES].check, text, "<body>")
    except ConfigError as error:
        invalid = InvalidPolicy(valid=False, problems=[_problem(line) for line in str(error).splitlines()])
        return web.json_response(invalid.written())
    served = {policy.name for policy in http.app[POLICIES].served}
    return web.json_response(ValidPolicy(valid=True, name=name, replaces=name in served).written())


@Operation("post", "/admin/policies/simulate", answer=Trial, policy=True, refused=(429,))
async def simulate(http: web.Request) -> web.Response:
    """Replay a policy over the newest requests of the journal.

    400 where the server writes no journal, 429 while another one is replayed.
    """
    manager, text = http.app[POLICIES], await body_text(http)
    name = await checked_name(http, text)
    served = {policy.name: policy for policy in manager.served}
    against = served[name if name in served else manager.default]
    folder = Path() if against.path is None else against.path.parent
    texts = {name: policy.text for name, policy in served.items()}
    return web.json_response(await http.app[TRIALS].run(text, against.text, texts, folder))


def _problem(line: str) -> PolicyProblem:
    """One line of an error."""
    found = _PLACE.match(line)
    if found is None:
        return PolicyProblem(line=None, column=None, message=line)
    return PolicyProblem(line=int(found[1]), column=int(found[2]), message=line[found.end() :])


ROUTES = (validate, simulate)  # they need the admin key: they compute, and tell of the traffic
