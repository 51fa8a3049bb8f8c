"""The shapes of answers to the admin, for `openapi.json` alone; see `answers`."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from adaptspec.server.answers import Answer, PolicyText


class ShadowEstimate(Answer):
    """What a shadow policy would have earned."""

    against: str
    rounds: int
    goodput_ratio: float
    guessed: float


class RunningPolicy(PolicyText):
    """A policy that runs; only a shadow has an estimate."""

    mode: str
    estimate: ShadowEstimate | None = None


class RunningPolicies(Answer):
    """All of them."""

    object: Literal["list"]
    data: list[RunningPolicy]


class AppliedPolicy(Answer):
    """What became of a policy that was sent."""

    name: str
    replaced: bool
    carried: bool


class DryRun(Answer):
    """A policy that could be served, and is not."""

    name: str
    valid: Literal[True]


class PutPolicy(RootModel[AppliedPolicy | DryRun]):
    """What became of a policy; the second after a dry run."""


class DeletedPolicy(Answer):
    """A policy that requests can no longer come to."""

    name: str
    deleted: Literal[True]


class ReloadedFile(Answer):
    """What became of a policy's file: reloaded, unchanged (no error), or not usable."""

    name: str
    reloaded: bool
    error: str | None


class ReloadedFiles(Answer):
    """All policies that have a file."""

    object: Literal["list"]
    data: list[ReloadedFile]


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


class Decision(Answer):
    """What was decided for one round of a request, why, and what came of it; no drafter at depth 0."""

    round: int
    depth: int
    reason: str
    drafter: str | None
    drafted: int
    accepted: int
    emitted: int


class DecidedRequest(Answer):
    """A request that runs, and its last rounds, oldest first. Never its text."""

    id: str
    policy: str | None
    task: str | None
    task_detected: bool
    prompt_tokens: int
    max_tokens: int
    rounds: list[Decision]


class DecidedRequests(Answer):
    """All of them."""

    object: Literal["list"]
    data: list[DecidedRequest]


class Draining(Answer):
    """Whether new requests are refused, and how many are in flight."""

    draining: bool
    running: int
    waiting: int


class SavedState(Answer):
    """What was learned is on disk."""

    saved: Literal[True]


class ResetState(Answer):
    """The policies that learn anew."""

    reset: list[str]
