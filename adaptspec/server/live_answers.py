"""The shapes of the live feed, for `openapi.json` alone; see `answers`. Times are in seconds since 1970."""

from __future__ import annotations

from typing import Literal

from adaptspec.server.api.answers import Answer

# A round of a request: depth, drafted, accepted, emitted, the drafter, the reason, mean entropy in nats, nodes,
# accepted tokens on the main chain, nodes of other drafters, and nodes by depth.
Bar = tuple[int, int, int, int, int, int, float | None, int, int, int, list[int] | None]


class LiveServer(Answer):
    """What is served, and how."""

    adaptspec: str
    model: str
    parameters: int
    context: int
    policies: list[str]
    default_policy: str
    drafters: list[str]
    tasks: list[str]
    rows: int
    admin: bool
    journal: bool


class LiveReason(Answer):
    """Why a depth was decided: the code that rounds have, and what it stands for."""

    code: int
    name: str
    words: str


class LiveColumns(Answer):
    """Names of what lists without names hold, in order."""

    round: list[str]
    drafter: list[str]
    task: list[str]
    compared: list[str]


class LiveLoad(Answer):
    """How busy the server is."""

    status: Literal["ok", "draining", "dead"]
    running: int
    waiting: int


class LiveSecond(Answer):
    """Sums over the rounds and requests that ended in one second; lists as `columns` names them.

    `reasons` counts rounds of requests by the code of their reason, `off` those of them that were not to draft.
    """

    at: int
    rounds: int
    rows: int
    emitted: int
    drafted: int
    accepted: int
    nodes: int
    prefill_tokens: int
    busy: float
    ended: int
    depths: list[int]
    reasons: list[int]
    off: list[int]
    drafters: list[list[int]]
    compared: list[float] | None
    tasks: dict[str, list[float]]


class LiveRequest(Answer):
    """A request, and its last rounds, oldest first. Never its text."""

    id: str
    task: str | None
    task_detected: bool
    policy: str | None
    prompt_tokens: int
    max_tokens: int
    tokens: int
    rounds: list[Bar]


class RunningRequest(LiveRequest):
    """One that runs."""

    admitted: float


class EndedRequest(LiveRequest):
    """One that has ended; what never happened has no time. `cached_tokens` of its prompt were not read."""

    finish: str
    cached_tokens: int
    draft_rounds: int
    drafted: int
    accepted: int
    nodes: int
    arrived: float | None
    admitted: float | None
    first_token: float | None
    finished: float | None


class BestStatic(Answer):
    """The fixed depth that would have earned most."""

    depth: int
    drafter: str | None


class LiveEstimate(Answer):
    """A ratio, and between which values it lies as far as is known."""

    value: float
    low: float
    high: float


class LiveEarnings(Answer):
    """What speculation earned since the server began, by rounds that were run; null: not known yet."""

    speedup: LiveEstimate | None
    best_static: BestStatic | None
    regret: LiveEstimate | None
    costs_unsure: bool
    saved_tokens: int
    wasted_tokens: int
    depth_switches: int
    drafter_switches: int
    guard_switches: int
    probes: int
    probes_won: int
    predicted_over_realised: float


class LiveSnapshot(Answer):
    """Everything the live page shows, as of `now`."""

    now: float
    server: LiveServer
    reasons: list[LiveReason]
    columns: LiveColumns
    load: LiveLoad
    seconds: list[LiveSecond]
    running: list[RunningRequest]
    recent: list[EndedRequest]
    earnings: LiveEarnings
    missed_rounds: int
