"""Manages the served policies: changes are checked first and applied between two rounds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import build_policy, found_among, found_next_to, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import read_text
from adaptspec.control.learned_state import PolicyState, learned_states, restore_policy, restore_states, signature
from adaptspec.control.policy import Policy
from adaptspec.control.rollout import Reloads
from adaptspec.control.routing import check_file, check_when, routes_of, with_used
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineCore
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.errors import ConfigError, StateError, UnknownModelError
from adaptspec.quantity import quantity

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedPolicy:
    """A served policy with its text and its file (None: it was sent by a client)."""

    spec: PolicySpec
    text: str
    path: Path | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def description(self) -> str:
        return self.spec.metadata.description

    @property
    def mode(self) -> str:
        """Its rollout: live or canary."""
        return self.spec.rollout.mode

    @property
    def signature(self) -> str:
        return signature(self.spec)


@dataclass(frozen=True)
class Applied:
    """The result of applying a policy text. `carried`: the learned state of its predecessor was kept."""

    name: str
    replaced: bool
    carried: bool


class PolicyManager:
    """Applies policy texts while the engine runs. Any thread may call it; a call may wait for a round to end.

    If a text raises an error, nothing has changed: the last valid policy is served.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        core: EngineCore,
        costs: CostModel,
        specs: Sequence[PolicySpec],
        files: Mapping[str, Path],
        *,
        max_policies: int = 64,
    ) -> None:
        """`specs` are the policies that the engine was built with, `files` their files.

        If there are `max_policies`, policies can only be replaced.

        Raises:
            PolicyError: a file is not readable any more.
        """
        self._engine = engine
        self._core = core
        self._costs = costs
        drafters = core.executor.drafters
        served = [(spec, files.get(spec.name, spec.path)) for spec in with_used(specs)]
        self._served = {
            spec.name: ServedPolicy(spec.with_drafters(drafters), read_text(path), path) for spec, path in served
        }
        self._max_policies = max_policies
        self.reloads = Reloads()
        self._listeners: list[Callable[[str], None]] = []
        self._lock = threading.Lock()  # one change at a time, and none while learned state is read

    @property
    def served(self) -> tuple[ServedPolicy, ...]:
        """All served policies, including canaries."""
        return tuple(self._served.values())

    @property
    def default(self) -> str:
        return self._core.controller.default

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of tasks in addition to the built-in ones, in the order of their numbers."""
        return self._core.controller.task_names.added

    def listen(self, reloaded: Callable[[str], None]) -> None:
        """Have `reloaded` called with the name of every applied policy, on the thread that applies it."""
        self._listeners.append(reloaded)

    def check(self, text: str, source: str = "<policy>") -> str:
        """Check a policy text and return its name. Changes nothing, and waits for no round.

        Raises:
            PolicyError, ConfigError: it cannot be used; says why, and where.
        """
        spec = self._parsed(text, source, None)
        self._check_names(spec, None)
        task_names, core = self._core.controller.task_names.copy(), self._core
        for one in (spec, *self._more(spec)):
            policy = build_policy(one, self._costs, core.limits.max_rows, task_names)
            check_policy(core, one.name, policy, PolicySettings.of(one))
        self._check_room(spec)
        return spec.name

    def apply(self, text: str, source: str = "<policy>", path: Path | None = None) -> Applied:
        """Serve the policy in a text from the next round on; it replaces the one of the same name, if there is one.

        `source` names the text in errors.

        Raises:
            PolicyError, ConfigError: it cannot be used; says why, and where.
            EngineError: the engine has stopped.
        """
        with self._counted():
            return self._apply(text, source, path)

    def apply_file(self, path: Path) -> Applied | None:
        """Apply a file; None if its text is served already. Raises as `apply` does."""
        with self._counted():
            text = read_text(path)
            if any(policy.path == path and policy.text == text for policy in self.served):
                return None
        return self.apply(text, str(path), path)

    def reload(self) -> list[dict[str, object]]:
        """Read the file of every policy again. Errors are returned, and these policies do not change."""
        outcomes: list[dict[str, object]] = []
        for policy in self.served:
            if policy.path is None:
                continue
            outcome: dict[str, object] = {"name": policy.name, "reloaded": False, "error": None}
            try:
                outcome["reloaded"] = self.apply_file(policy.path) is not None
            except ConfigError as error:
                outcome["error"] = str(error)
            outcomes.append(outcome)
        return outcomes

    def remove(self, name: str) -> None:
        """Stop serving a policy to new requests from the next round on; current requests keep it.

        A policy of a configured file is served again after a restart.

        Raises:
            UnknownModelError: no policy has this name.
            ConfigError: it is the default.
            EngineError: the engine has stopped.
        """
        with self._lock:
            if name not in self._served:
                raise UnknownModelError(f"there is no policy {name!r} here; served are: {', '.join(self._served)}")
            self._engine.call(lambda: self._core.controller.drop(name)).result()
            self._served = {other: policy for other, policy in self._served.items() if other != name}

    def forget(self) -> list[str]:
        """Reset the learned state of all policies between two rounds. Raises EngineError if the engine has stopped."""
        with self._lock:
            for policy in self.served:
                self._adopt([policy.spec])
            return [policy.name for policy in self.served]

    def _adopt(self, specs: Sequence[PolicySpec], *, carry: bool = False) -> bool:
        """Build and serve policies from the next round on, all or none of them. On the engine's thread, which also
        numbers the tasks of requests. Returns whether the learned state of the last policy was carried over.
        """
        core, names_before = self._core, set(self._core.controller.policies)

        def adopted() -> bool:
            with core.controller.task_names.undone_on_error():
                made = [
                    build_policy(spec, self._costs, core.limits.max_rows, core.controller.task_names) for spec in specs
                ]
                try:
                    for spec, policy in zip(specs, made, strict=True):
                        carried = adopt_policy(core, spec, policy, carry=carry)
                except BaseException:
                    for name in set(core.controller.policies) - names_before:
                        core.controller.drop(name)
                    raise
                return carried

        return self._engine.call(adopted).result()

    def _apply(self, text: str, source: str, path: Path | None) -> Applied:
        spec = self._parsed(text, source, path)
        with self._lock:
            before = self._served.get(spec.name)
            self._check_names(spec, path)
            self._check_room(spec)
            more = self._more(spec)
            new = ServedPolicy(spec, text, path or (before.path if before is not None else None))
            served = [*(ServedPolicy(used, read_text(used.path), used.path) for used in more), new]
            carried = self._adopt([*more, spec], carry=before is not None and before.signature == new.signature)
            # A new mapping: other threads may be reading the old one.
            self._served = self._served | {policy.name: policy for policy in served}
            now = self.reloads
            self.reloads = replace(now, applied=now.applied + 1, last_applied=time.time())
        for note in spec.notes(default=spec.name == self.default):
            _log.warning("%s", note)
        for listener in self._listeners:
            listener(spec.name)
        return Applied(spec.name, before is not None, carried)

    def _parsed(self, text: str, source: str, path: Path | None) -> PolicySpec:
        """Parse a policy text. A text from a client may use served policies by name, but no files: errors could reveal
        their contents.
        """
        served = {name: policy.spec for name, policy in self._served.items()}
        find = found_among(served) if path is None else found_next_to(path.parent)
        return parse_policy_spec(text, source, self._core.controller.task_names, self._core.executor.drafters, find)

    def _more(self, spec: PolicySpec) -> list[PolicySpec]:
        """The policies that a spec uses and that are not served yet. Raises ConfigError if a name is taken."""
        more = []
        for one in with_used([spec])[1:]:
            served = self._served.get(one.name)
            if served is None:
                more.append(one)
            elif served.spec is not one and served.path is not None:
                check_file(one.name, one.path, served.path)
        return more

    def _check_names(self, spec: PolicySpec, path: Path | None) -> None:
        """Raises ConfigError if two files have the same name, a file has a new name, or a policy that another
        one uses has `when:`. A text that was sent (without `path`) may replace any policy.
        """
        check_when(spec, (policy.spec for policy in self.served if policy.name != spec.name))
        if path is None:
            return
        before = self._served.get(spec.name)
        if before is not None and before.path is not None:
            check_file(spec.name, path, before.path)
        if before is None and (known := [policy.name for policy in self.served if policy.path == path]):
            raise ConfigError(f"{path}: it was called {known[0]}, and {spec.name} now; give it its name back")

    def _check_room(self, spec: PolicySpec) -> None:
        new = {spec.name, *(used.name for used in self._more(spec))} - self._served.keys()
        if new and len(self._served) + len(new) > self._max_policies:
            raise ConfigError(
                f"the server has {quantity(len(self._served), 'policy', 'policies')}, and no more than "
                f"{self._max_policies} may be; delete one, or replace one"
            )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count errors inside as refused reloads."""
        try:
            yield
        except Exception:
            with self._lock:
                self.reloads = replace(self.reloads, refused=self.reloads.refused + 1)
            raise

    def learned(self) -> dict[str, PolicyState]:
        """The learned state of every policy, by name. Raises EngineError if the engine has stopped."""
        with self._lock:
            signatures = self._signatures
            return self._engine.call(
                lambda: learned_states(self._core.controller.learned_policies(), signatures)
            ).result()

    def restore(self, states: Mapping[str, PolicyState], tasks: Sequence[str] = ()) -> list[str]:
        """Restore learned state, before the first request; see `restore_states`.

        Raises:
            StateError: the `tasks` have other numbers in this engine; no state is restored then.
        """
        controller, signatures = self._core.controller, self._signatures
        if not controller.task_names.restore(tasks):
            raise StateError("the tasks that it names have other numbers here")
        return self._engine.call(lambda: restore_states(controller.policies, signatures, states)).result()

    @property
    def _signatures(self) -> dict[str, str]:
        return {name: policy.signature for name, policy in self._served.items()}


def check_policy(core: EngineCore, name: str, policy: Policy, settings: PolicySettings) -> None:
    """Raise ConfigError if the engine cannot run a policy. Touches no state, so any thread may call it."""
    room = core.limits.max_depth
    if policy.max_depth > room:
        raise ConfigError(
            f"policy {name} drafts up to {policy.max_depth} tokens, but this engine was started with room for "
            f"{room}: restart it with this policy among --policy"
        )
    core.controller.check(name, policy)
    settings.check(name, policy, core.executor.anticipating)


def adopt_policy(core: EngineCore, spec: PolicySpec, policy: Policy, *, carry: bool = False) -> bool:
    """Serve the policy of a spec from the next round on; it replaces the one of the same name, if there is one. Called
    between rounds. With `carry`, the new policy continues with the old one's learned state. Returns whether it does.
    Nothing has changed if it raises.

    Raises:
        ConfigError: see `Controller.adopt`; or the policy drafts deeper than this engine has room for, or with a
            drafter that its verification does not support.
    """
    name, settings = spec.name, PolicySettings.of(spec)
    check_policy(core, name, policy, settings)
    before = core.controller.learned_policies().get(name)
    carried = carry and before is not None and _carry(before, policy, name)
    waiting = {sequence.policy for sequence in core.scheduler.waiting}
    core.controller.adopt(name, policy, spec.rollout, waiting, routes_of(spec))
    core.settings[name] = settings
    for sequence in (*core.scheduler.running, *core.scheduler.waiting):
        if sequence.policy == name:
            sequence.set_method(settings.method)
    return carried


def _carry(before: Policy, policy: Policy, name: str) -> bool:
    learned = before.learned()
    return restore_policy(name, policy, learned) and bool(learned)
