"""What is said once of a route, at its handler: where it is, what it takes and what it answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from aiohttp import web
from pydantic import BaseModel

from adaptspec.server.http_errors import Handler


@dataclass(frozen=True)
class Operation:
    """One route with one method; decorates its handler, whose docstring is the summary, and below it the description.

    `answer` None: it answers something that is not JSON. Refusals that follow from the kind of body, and those that any
    route may have, go without saying.
    """

    method: str
    path: str  # as aiohttp has it
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    policy: bool = False  # its body is a policy, as YAML
    dry_run: bool = False  # it has this query parameter
    streams: bool = False  # it answers events: where it has an `answer` as well, only if asked to
    plain: tuple[str, ...] = ()  # media types of an answer that is no JSON
    also: tuple[int, ...] = ()  # other statuses it has with its usual answer
    refused: tuple[int, ...] = ()  # statuses of its own with an error object
    cached: bool = False  # 304 for who has the answer already
    handler: Handler | None = None

    def __call__(self, handler: Handler) -> Operation:
        return replace(self, handler=handler)

    @property
    def place(self) -> str:
        """The path without the patterns of its parameters."""
        return re.sub(r"{(\w+):[^{}]*}", r"{\1}", self.path)

    @property
    def words(self) -> tuple[str, str]:
        """The summary, and the description or nothing."""
        summary, _, more = (inspect.getdoc(self.handler) or "").partition("\n\n")
        return summary.removesuffix("."), " ".join(more.split())


OPERATIONS = web.AppKey("served_operations", list[Operation])


def add_operations(app: web.Application, operations: Iterable[Operation]) -> None:
    """Serve them, and have `openapi.json` say so."""
    served = app.setdefault(OPERATIONS, [])
    for operation in operations:
        assert operation.handler is not None
        app.add_routes([web.route(operation.method.upper(), operation.path, operation.handler)])
        served.append(operation)
