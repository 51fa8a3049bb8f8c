"""What each route is for, takes and answers, for `/openapi.json`.

Knows routes by their pattern; a test holds them to those of the app, and its claims to a running server. Which key a
route needs is not said here: `gate` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from adaptspec.server import admin_answers, answers, live_answers
from adaptspec.server.chat import ChatBody
from adaptspec.server.completions import CompletionBody
from adaptspec.server.limits import ServerLimits
from adaptspec.server.responses import ResponsesBody
from adaptspec.server.tokens import DetokenizeBody, TokenizeBody


@dataclass(frozen=True)
class Operation:
    """One route with one method.

    `answer` None: it answers something that is not JSON. Refusals that follow from the kind of body, and those that any
    route may have, go without saying.
    """

    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    more: str = ""  # what the summary has no room for
    policy: bool = False  # its body is a policy, as YAML
    dry_run: bool = False  # it has this query parameter
    streams: bool = False  # it answers events: where it has an `answer` as well, only if asked to
    plain: tuple[str, ...] = ()  # media types of an answer that is no JSON
    also: tuple[int, ...] = ()  # other statuses it has with its usual answer
    refused: tuple[int, ...] = ()  # statuses of its own with an error object
    cached: bool = False  # 304 for who has the answer already


_EVENTS = (
    "Server-sent events without an end. The first is `snapshot`, the answer of GET /live/snapshot; `update` follows "
    "where something has happened, with `now`, `load`, the `seconds` that differ, requests that `started` and "
    "`finished`, new `rounds` by request, `earnings` and `missed_rounds`; `beat`, with `now`, where nothing has."
)
_DRY_RUN = "With dry_run=true it is only looked at. It must be sent under the name that its metadata gives."

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/v1/completions", "post"): Operation(
        "Complete prompts", CompletionBody, answers.Completion, streams=True, refused=(429,)
    ),
    ("/v1/chat/completions", "post"): Operation(
        "Answer a conversation", ChatBody, answers.ChatCompletion, streams=True, refused=(429,)
    ),
    ("/v1/responses", "post"): Operation(
        "Make a response", ResponsesBody, answers.Response, streams=True, refused=(429,)
    ),
    ("/v1/models", "get"): Operation("What is served", answer=answers.ModelList),
    ("/v1/models/{model}", "get"): Operation("The model by its name", answer=answers.Model, refused=(404,)),
    ("/v1/policies", "get"): Operation("Policies that requests may name", answer=answers.PolicyList),
    ("/v1/policies/{policy}", "get"): Operation(
        "A policy that requests may name, as YAML too", answer=answers.PolicyText, refused=(404,)
    ),
    ("/tokenize", "post"): Operation("Token ids of a text or a conversation", TokenizeBody, answers.Tokens),
    ("/detokenize", "post"): Operation("The text of token ids", DetokenizeBody, answers.Text),
    ("/health", "get"): Operation(
        "Whether the engine lives", answer=answers.Health, also=(503,), more="503 when only a restart helps."
    ),
    ("/ready", "get"): Operation(
        "Whether requests are taken", answer=answers.Health, also=(503,), more="503 when draining, full or dead."
    ),
    ("/version", "get"): Operation("The version of AdaptSpec", answer=answers.Version),
    ("/metrics", "get"): Operation("Metrics for Prometheus", plain=("text/plain", "application/openmetrics-text")),
    ("/openapi.json", "get"): Operation("This description", answer=answers.OpenApi),
    ("/", "get"): Operation("The live page", plain=("text/html",), cached=True),
    ("/dashboard", "get"): Operation("The live page", plain=("text/html",), cached=True),
    ("/page/{name}", "get"): Operation(
        "A file of the live page",
        plain=("text/html", "text/css", "text/javascript", "image/svg+xml"),
        refused=(404,),
        cached=True,
    ),
    ("/live/snapshot", "get"): Operation(
        "What happened lately and happens now", answer=live_answers.LiveSnapshot, more="Never text of a request."
    ),
    ("/live/events", "get"): Operation(
        "The same, and what follows as it happens", streams=True, refused=(429,), more=_EVENTS
    ),
    ("/admin/policies", "get"): Operation("All policies that run", answer=admin_answers.RunningPolicies),
    ("/admin/policies", "post"): Operation(
        "Serve a policy from the next round on",
        answer=admin_answers.AppliedPolicy,
        policy=True,
        more=f"400 beyond {ServerLimits().policies} policies, unless the server was started with another limit.",
    ),
    ("/admin/policies/{name}", "get"): Operation(
        "One policy that runs", answer=admin_answers.RunningPolicy, refused=(404,)
    ),
    ("/admin/policies/{name}", "put"): Operation(
        "Serve a policy under its name", answer=admin_answers.PutPolicy, policy=True, dry_run=True, more=_DRY_RUN
    ),
    ("/admin/policies/{name}", "delete"): Operation(
        "Serve a policy no longer",
        answer=admin_answers.DeletedPolicy,
        refused=(404, 409),
        more="Requests that have come to it keep it. 409 for the default, and for one that a shadow watches.",
    ),
    ("/admin/policies/reload", "post"): Operation(
        "Read the files of all policies again", answer=admin_answers.ReloadedFiles
    ),
    ("/admin/policies/validate", "post"): Operation(
        "Look at a policy", answer=admin_answers.Validation, policy=True, more="What is wrong with it is the answer."
    ),
    ("/admin/policies/simulate", "post"): Operation(
        "Replay a policy over the newest requests of the journal",
        answer=admin_answers.Trial,
        policy=True,
        refused=(429,),
        more="400 where the server writes no journal, 429 while another one is replayed.",
    ),
    ("/admin/requests", "get"): Operation(
        "Requests that run, and what was decided for them", answer=admin_answers.DecidedRequests
    ),
    ("/admin/drain", "post"): Operation("Refuse new requests from now on", answer=admin_answers.Draining),
    ("/admin/drain", "delete"): Operation("Take requests again", answer=admin_answers.Draining),
    ("/admin/state/save", "post"): Operation(
        "Write down what was learned",
        answer=admin_answers.SavedState,
        refused=(400,),
        more="400 where the server keeps nothing, or it could not be written.",
    ),
    ("/admin/state/reset", "post"): Operation("Have every policy learn anew", answer=admin_answers.ResetState),
}
