"""How a policy has drafts verified, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from adaptspec.control.language.spec import History, PolicySpec
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import OTHER
from adaptspec.errors import ConfigError
from adaptspec.verification import make_method
from adaptspec.verification.method import Method


@dataclass(frozen=True)
class TaskMethods:
    """`usual`, and what stands in for it for requests of some `tasks`; and whose text they may be drafted from."""

    usual: Method
    tasks: Mapping[str, Method] = field(default_factory=lambda: MappingProxyType({}))
    history: History = "key"

    @classmethod
    def of(cls, spec: PolicySpec) -> TaskMethods:
        """What a policy's file says."""
        tasks = {task: make_method(one.method, one.parameters) for task, one in spec.task_verifications.items()}
        return cls(make_method(spec.verification.method, spec.verification.parameters), tasks, spec.history)

    def scope(self, key: str | None) -> str | None:
        """Requests of one scope are drafted from each other's text; None: this one from its own alone. `key` is the
        name of its API key.
        """
        if self.history == "server":
            return "server"
        return None if self.history == "none" or key is None else f"key {key}"

    def get(self, task: str | None) -> Method:
        """The method for a request of this task; None: it has none, which is `OTHER`."""
        return self.tasks.get(task or OTHER, self.usual)

    def check(self, name: str, policy: Policy, anticipating: Sequence[str]) -> None:
        """Refuse methods that would be biased by what one of the policy's drafters may leave out.

        Raises:
            ConfigError: one of them weighs tokens by what they were drawn from, and the policy drafts with one of the
                `anticipating` drafters.
        """
        choosy = [drafter for drafter in anticipating if policy.max_depth and drafter in policy.drafters]
        tasks = {f"spec.tasks.{task}.verification": how for task, how in self.tasks.items()}
        for where, how in {"spec.verification": self.usual, **tasks}.items():
            if choosy and how.needs_distribution:
                raise ConfigError(
                    f"policy {name}: {where}: {how.name} weighs each drafted token by what it was drawn from, but "
                    f"{choosy[0]} may drop tokens for what they are, which would change how likely texts are: "
                    "use coupled, or another drafter"
                )
