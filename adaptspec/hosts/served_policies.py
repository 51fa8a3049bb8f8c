"""The policies of a host: read, narrowed to what it can do, built, and read again when their files change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adaptspec.control.controller import Controller, untimed
from adaptspec.control.cost_model import CostModel
from adaptspec.control.host import DRAFTER, Host, narrow
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import build_policy, load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.learned_state import PolicyState, learned_states, restore_states, signature
from adaptspec.control.rollout import Reloads
from adaptspec.control.routing import check_file, check_when, routes_of, with_used
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import AdaptSpecError, ConfigError
from adaptspec.files import FileMark, file_mark
from adaptspec.hosts.rounds import costs_of_steps

_log = logging.getLogger(__name__)


class ServedPolicies:
    """Reads files on any thread; all else is for the one thread that decides."""

    def __init__(
        self, names: Sequence[str], host: Host, max_rows: int, *, controller: type[Controller] = Controller
    ) -> None:
        """`names` or files; the first serves requests that name none. Raises ConfigError: one cannot be used here."""
        self._host, self._max_rows, self._controller = host, max_rows, controller
        self._trial_costs = costs_of_steps()
        self.task_names = TaskNames()
        self._refused = self._applied = 0  # texts that were not taken, the last good ones staying; and those that were
        self._last_applied: float | None = None
        self.specs: dict[str, PolicySpec] = {}
        self.notes: tuple[str, ...] = ()
        self._files: dict[Path, str] = {}
        self._seen: dict[Path, FileMark | None] = {}
        self._bad: set[Path] = set()
        self._waiting: list[PolicySpec] = []
        for path in map(find_policy, names):
            spec, notes = self._read(path)
            if spec.name in self.specs:
                raise ConfigError(f"{path}: a policy called {spec.name} is there already; name each once")
            self._serve(path, spec)
            self.notes += notes
        if not self.specs:
            raise ConfigError("no policy is named; give one, such as goodput")
        for used in with_used(list(self.specs.values()))[len(self.specs) :]:
            self._serve(used.path, used)

    @property
    def default(self) -> str:
        return next(iter(self.specs))

    @property
    def reloads(self) -> Reloads:
        """Of files that have changed."""
        return Reloads(self._applied, self._refused, self._last_applied)

    def controller(self, cost: CostModel, timer: Callable[[], float] = untimed) -> Controller:
        """One that decides by all of them, timed by `timer`; it does not teach `cost`, since hosts time steps.

        Raises ConfigError.
        """
        policies = {
            name: build_policy(spec, cost, self._max_rows, self.task_names) for name, spec in self.specs.items()
        }
        rollouts = {name: spec.rollout for name, spec in self.specs.items()}
        return self._controller(
            policies,
            self.default,
            (DRAFTER,),
            self._max_rows,
            task_names=self.task_names,
            rollouts=rollouts,
            routes=routes_of(self.specs[self.default]),
            timer=timer,
        )

    def look(self) -> None:
        """Read files that have changed; what can be used waits for `adopt`, of the rest the log says so once."""
        for path, name in list(self._files.items()):
            mark = file_mark(path)
            if path in self._seen and mark == self._seen[path]:
                continue
            self._seen[path] = mark
            try:
                spec, _ = self._read(path)
                if spec.name != name:
                    raise ConfigError(f"{path}: it was called {name}, and {spec.name} now; give it its name back")
                self._check_names(spec)
                for one in with_used([spec]):
                    build_policy(one, self._trial_costs, self._max_rows, self.task_names.copy())
            except AdaptSpecError as error:
                self._refused += 1
                if path not in self._bad:
                    _log.warning("%s; the policy that was served before stays", error)
                self._bad.add(path)
            except Exception:  # noqa: BLE001 - it may be the machine's fault, and pass
                del self._seen[path]
                if path not in self._bad:
                    _log.exception("%s cannot be read, which is tried again; the policy served before stays", path)
                self._bad.add(path)
            else:
                self._bad.discard(path)
                self._waiting.append(spec)

    @property
    def waits(self) -> bool:
        """Whether `adopt` has a policy to take over."""
        return bool(self._waiting)

    def adopt(self, controller: Controller, cost: CostModel) -> None:
        """From the next round on, decide by what `look` has found. What was learned is kept where it still fits."""
        while self._waiting:
            spec = self._waiting.pop(0)
            with self.task_names.undone_on_error():
                for used in spec.used.values():
                    if used.name not in self.specs:
                        built = build_policy(used, cost, self._max_rows, self.task_names)
                        controller.adopt(used.name, built, used.rollout)
                        self._serve(used.path, used)
                policy = build_policy(spec, cost, self._max_rows, self.task_names)
                known = controller.learned_policies()[spec.name].learned()
                carried = signature(spec) == signature(self.specs[spec.name])
                if carried and known:
                    policy.restore(known)
                controller.adopt(spec.name, policy, spec.rollout, routes=routes_of(spec))
            self.specs[spec.name] = spec
            self._applied, self._last_applied = self._applied + 1, time.time()
            _log.warning("policy %s was read again%s", spec.name, ", what it had learned was kept" if carried else "")

    def learned(self, controller: Controller) -> dict[str, PolicyState]:
        """See `learned_states`."""
        return learned_states(controller.learned_policies(), self._signatures)

    def restore(self, controller: Controller, states: Mapping[str, PolicyState]) -> None:
        """See `restore_states`."""
        restore_states(controller.policies, self._signatures, states)

    @property
    def _signatures(self) -> dict[str, str]:
        return {name: signature(spec) for name, spec in self.specs.items()}

    def can_decide(self, name: str | None) -> bool:
        """Whether requests may ask for it."""
        return name is None or name in self.specs

    def _read(self, path: Path) -> tuple[PolicySpec, tuple[str, ...]]:
        spec, notes = narrow(load_policy_spec(path), self._host)
        default = not self.specs or spec.name == self.default
        return spec, tuple(map(str, [*notes, *spec.notes(default=default)]))

    def _check_names(self, spec: PolicySpec) -> None:
        """Raises ConfigError: a policy that it uses has the name of one from another file, or another policy uses it
        and it has `when:`.
        """
        known = [*self.specs.values(), *self._waiting]
        check_when(spec, (other for other in known if other.name != spec.name))
        files = {one.name: one.path for other in known for one in (other, *other.used.values())}
        for used in spec.used.values():
            check_file(used.name, used.path, files.get(used.name, used.path))

    def _serve(self, path: Path, spec: PolicySpec) -> None:
        self.specs[spec.name], self._files[path] = spec, spec.name
        self._seen[path] = file_mark(path)
