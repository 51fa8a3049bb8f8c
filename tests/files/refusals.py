"""The contract of refusals: requests, and what each is answered.

An entry of `goldens/refusals.json` is the request (`method`, `path`, `headers`, `body`) with its answer (`status`,
`type`, `param`, `code`, `message`, `answer_headers`). A request that is served has status 200, and the warnings about
fields that were left out. To add a request, add an entry without an answer and record anew.

`body` is JSON that is sent with its content type, unless `text` (a body as it is) or `head` (a request line and headers
as they are) are in its place. `text` may be a list of parts, of which `{"repeat": TEXT, "times": N}` stands for a
repeated one: `#` in it is the number of the repetition, `join` stands between two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.files.contracts import Document
from tests.files.servers import SERVERS, Answer, World, running, send

# Headers of answers that clients and proxies go by.
_HEADERS = ("Allow", "Retry-After", "WWW-Authenticate", "Accept-Encoding", "Access-Control-Allow-Origin")
_REQUEST = ("method", "path", "headers", "body", "text", "head")
# The stated rule for what differs between machines and runs: the time that something took or may take is N.
_MEASURED = (re.compile(r"\b\d+(?:\.\d+)? (?=milliseconds|ms\b)"), re.compile(r"0x[0-9a-f]{6,}"))


async def record(shared: World, recorded: Document) -> Document:
    """The answers of today's server to the recorded requests, by server and name."""
    found: Document = {}
    for server in SERVERS:
        async with running(server, shared) as port:
            found[server] = {
                name: {key: entry[key] for key in _REQUEST if key in entry} | _outcome(await _answer(port, entry))
                for name, entry in sorted(recorded.get(server, {}).items())
            }
    return found


def expand(parts: Any) -> bytes:
    """The bytes of a text, or of a list of texts and repeated texts (see above)."""
    if isinstance(parts, str):
        return parts.encode("utf-8", "surrogateescape")
    if isinstance(parts, list):
        return b"".join(map(expand, parts))
    times, join = int(parts["times"]), parts.get("join", "")
    return expand(join.join(str(parts["repeat"]).replace("#", f"{number:x}") for number in range(times)))


async def _answer(port: int, entry: Mapping[str, Any]) -> Answer:
    body = json.dumps(entry["body"]).encode() if "body" in entry else expand(entry.get("text", ""))
    if "head" in entry:
        return await send(port, expand(entry["head"]).decode("utf-8", "surrogateescape"), body)
    headers = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body))}
    headers |= {"Content-Type": "application/json"} if "body" in entry or "text" in entry else {}
    lines = [f"{name}: {value}" for name, value in (headers | entry.get("headers", {})).items()]
    return await send(port, "\r\n".join([f"{entry['method']} {entry['path']} HTTP/1.1", *lines]), body)


def _outcome(answer: Answer) -> dict[str, Any]:
    """What of an answer is frozen."""
    outcome: dict[str, Any] = {"status": answer.status, **answer.error}
    if isinstance(outcome.get("message"), str):
        outcome["message"] = _normalised(outcome["message"])
    if answer.status < 400 and answer.headers.get("Content-Type", "").startswith("application/json"):
        outcome |= {"warnings": warnings} if (warnings := json.loads(answer.body).get("warnings")) else {}
    headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
    return outcome | ({"answer_headers": headers} if headers else {})


def _normalised(message: str) -> str:
    for pattern in _MEASURED:
        message = pattern.sub("N ", message)
    return message
