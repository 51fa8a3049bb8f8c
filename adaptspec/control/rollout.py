"""Which requests a policy serves: `rollout:` (live or a canary), and `when:`, another policy for some."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from adaptspec.control.language.schema import Part, PolicyName, Short
from adaptspec.control.tasks import OTHER, TASKS
from adaptspec.errors import ConfigError
from adaptspec.request import LABEL_WORDS, Request, is_label


class LiveSpec(Part):
    """Serves requests that name it, and as the default those that name none."""

    mode: Literal["live"]


class CanarySpec(Part):
    """Serves a share of the requests that name no policy and match no `when`, and those that name it."""

    mode: Literal["canary"]
    percent: float = Field(
        gt=0.0, le=100.0, description="Of the requests that name no policy and match no `when`, by their id."
    )


Rollout = LiveSpec | CanarySpec
RolloutSpec = Annotated[Rollout, Field(discriminator="mode"), Short("mode")]
LIVE = LiveSpec(mode="live")


@dataclass(frozen=True)
class Reloads:
    """How often policies came anew, and how often they were refused; `last_applied` in seconds since 1970."""

    applied: int = 0
    refused: int = 0
    last_applied: float | None = None


class Shares:
    """Which requests that name no policy go to a canary: u = blake2b(request id) / 2^64 in [0, 1).

    Canaries own neighbouring slices of [0, 1) in their order, the default what is left. So a request id always
    meets the same policy, on every replica and after a restart, and a canary that grows keeps the requests it had.
    """

    def __init__(self, rollouts: Mapping[str, Rollout]) -> None:
        """Raises ConfigError if the canaries together take more than everything."""
        self._ends: list[tuple[float, str]] = []
        end = 0.0
        for name, rollout in rollouts.items():
            if isinstance(rollout, CanarySpec):
                end += rollout.percent / 100.0
                self._ends.append((end, name))
        if end > 1.0 + 1e-9:
            raise ConfigError(
                f"the canaries {', '.join(name for _, name in self._ends)} take {100.0 * end:g} percent of the "
                "requests together; give them at most 100"
            )

    def taker(self, request_id: str) -> str | None:
        """The canary that takes a request; None: the default does."""
        if not self._ends:
            return None
        digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
        position = int.from_bytes(digest, "big") / 2.0**64
        return next((name for end, name in self._ends if position < end), None)


def _task_name(name: str) -> str:
    """A task's name. One that is nearly that of a known task is more likely a slip than a task of one's own."""
    if not is_label(name):
        raise ValueError(f"a task's name must be {LABEL_WORDS}")
    near = [] if name in TASKS else difflib.get_close_matches(name.lower(), TASKS, n=1, cutoff=0.85)
    if near:
        raise ValueError(f"did you mean {near[0]!r}? A task of your own needs a name that is less like a known one's")
    return name


TaskName = Annotated[str, AfterValidator(_task_name), Field(examples=[*TASKS, OTHER])]


class RangeSpec(Part):
    """From one number to another, both included; one of them may be left out."""

    at_least: int | None = Field(default=None, ge=1, description="The least that is meant.")
    at_most: int | None = Field(default=None, ge=1, description="The most that is meant.")

    @model_validator(mode="after")
    def _some(self) -> RangeSpec:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at-least, at-most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"nothing is at least {self.at_least} and at most {self.at_most}; swap the two")
        return self

    def holds(self, value: int) -> bool:
        return (self.at_least or 0) <= value and (self.at_most is None or value <= self.at_most)


class WhenSpec(Part):
    """Another policy for some requests, chosen once, when a request arrives. Of several conditions all must hold."""

    prompt_tokens: RangeSpec | None = Field(default=None, description="The length of the prompt.")
    task: TaskName | Annotated[list[TaskName], Field(min_length=1)] | None = Field(
        default=None, description="The task of the request, named by it or detected, or a list of tasks."
    )
    api_key: str | list[str] | None = Field(
        default=None, description="The name of the request's API key, or a list of names: see --api-key-file."
    )
    use: PolicyName = Field(
        min_length=1,
        description="The policy that decides for them: the name of one that ships, or a file, from the folder of this "
        "one. A policy that is sent to a server names one that ships or is served.",
    )

    @model_validator(mode="after")
    def _some(self) -> WhenSpec:
        if self.api_key is not None and not all(self.keys or [""]):
            raise ValueError("api-key needs the name of a key, or several")
        if self.prompt_tokens is None and self.task is None and self.api_key is None:
            raise ValueError("give a condition: task, prompt-tokens or api-key")
        return self

    @property
    def keys(self) -> list[str]:
        return [self.api_key] if isinstance(self.api_key, str) else self.api_key or []

    @property
    def tasks(self) -> list[str]:
        return [self.task] if isinstance(self.task, str) else self.task or []

    def holds(self, request: Request) -> bool:
        """Whether it is one of these requests; its task is known by now."""
        if self.prompt_tokens is not None and not self.prompt_tokens.holds(len(request.prompt)):
            return False
        if self.task is not None and (request.speculation.task or OTHER) not in self.tasks:
            return False
        return self.api_key is None or request.key in self.keys
