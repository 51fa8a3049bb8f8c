"""What a pilot does beside deciding: policies that change, what was learned, and who watches. Files are read and
written on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.host import Host
from adaptspec.control.learned_state import PolicyState
from adaptspec.errors import ConfigError
from adaptspec.hosts.served_policies import ServedPolicies
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.shared_state import SharedState
from adaptspec.hosts.watchers import Watchers, pair_of
from adaptspec.telemetry.metric_families import reload_families
from adaptspec.telemetry.otlp import TraceLevel, TraceSettings

_log = logging.getLogger(__name__)
_PATIENCE = 5.0  # seconds for what looks after files to end: a folder of a network may not answer
_LOOK_SECONDS = 1.0  # between two looks at policy files


class Desk:
    """All but `_work` on the thread that decides."""

    def __init__(
        self,
        settings: PilotSettings,
        host: Host,
        max_rows: int,
        models: Mapping[str, str],
        controller: type[Controller] = Controller,
        *,
        state: type[SharedState] = SharedState,
    ) -> None:
        """Raises ConfigError, StateError, JournalError: something cannot be used; says why, and where."""
        self.policies = ServedPolicies(settings.policy, host, max_rows, controller=controller)
        self.notes = self.policies.notes
        self._settings = settings
        self._state = None if settings.state_dir is None else state(settings.state_dir, pair_of(models))
        self._known: Mapping[str, PolicyState] = {}
        self._begun = False  # before that nothing is learned
        if self._state is not None:
            states, tasks = self._state.load(self.policies.task_names.added)
            self.policies.task_names.restore(tasks)  # which begin with its own
            self._known = states
        traces = settings.traces if host.requests else TraceSettings(TraceLevel.OFF)
        if not host.requests and settings.traces.endpoint is not None:
            raise ConfigError(f"traces: {host.name} does not report which requests are in a batch; leave traces out")
        if settings.traces.content:
            raise ConfigError(f"traces: {host.name} does not report texts; leave content out")
        self.watchers: Watchers | None = None  # none, unless somebody is to watch
        if settings.journal is not None or settings.metrics_port is not None or traces.enabled:
            self.watchers = Watchers(models, settings.journal, settings.metrics_port, traces)
            self.watchers.metrics.watch(lambda: reload_families(self.policies.reloads))
        self._next_save = time.monotonic() + settings.state_seconds
        self._to_save: tuple[dict[str, PolicyState], tuple[str, ...]] | None = None  # and tasks in their order
        self._saved: tuple[Mapping[str, PolicyState], Mapping[str, PolicyState]] | None = None  # given, and returned
        self._closing, self._exchanging = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="adaptspec-desk", daemon=True)
        self._thread.start()

    def begin(self, costs: CostModel, timer: Callable[[], float]) -> Controller:
        """The controller that decides, with what was learned here before; see `ServedPolicies.controller`."""
        made = self.policies.controller(costs, timer)
        self.policies.restore(made, self._known)
        if self.watchers is not None:
            self.watchers.begin(made, costs)
        self._begun = True
        return made

    @property
    def waits(self) -> bool:
        """Whether `exchange` has something to do."""
        return self.policies.waits or self._saved is not None or self._is_due

    def exchange(self, controller: Controller, costs: CostModel) -> None:
        """Take over what the other thread has found and, now and then, hand out what was learned to be saved."""
        self.policies.adopt(controller, costs)
        self._take(controller)
        if self._is_due:
            self._next_save = time.monotonic() + self._settings.state_seconds
            self._to_save = self.policies.learned(controller), self.policies.task_names.added

    @property
    def _is_due(self) -> bool:
        saves = self._begun and self._state is not None and self._to_save is None
        return saves and time.monotonic() >= self._next_save

    def close(self, controller: Controller) -> None:
        """Save for the last time, and end what is watched. A second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(timeout=_PATIENCE)
        if self._state is not None:
            if self._exchanging.acquire(blocking=False):  # for good: nobody exchanges after this
                self._save_last(controller, self._state)
            else:
                _log.warning("%s does not answer: what was learned last is not saved", self._state.place)
        if self.watchers is not None:
            self.watchers.close()

    def _save_last(self, controller: Controller, state: SharedState) -> None:
        try:
            if self._begun:
                self._take(controller)
                state.exchange(self.policies.learned(controller), self.policies.task_names.added)
        except Exception:  # noqa: BLE001 - what is watched is to be ended all the same
            _log.exception("%s: what was learned last is not saved", state.place)
        finally:
            state.close()

    def _take(self, controller: Controller) -> None:
        """Learn what others have learned, if anything has come back."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self._add(controller, *saved)

    def _add(self, controller: Controller, given: Mapping[str, PolicyState], found: Mapping[str, PolicyState]) -> None:
        """What came back of what was handed out, less that."""
        states: dict[str, PolicyState] = {}
        for name, now in self.policies.learned(controller).items():
            if name in given and name in found and given[name].signature == now.signature:
                more: dict[str, Any] = {
                    key: np.maximum(values + found[name].arrays[key] - given[name].arrays[key], 0.0)
                    if (given[name].arrays[key] >= 0.0).all()
                    else values + found[name].arrays[key] - given[name].arrays[key]
                    for key, values in now.arrays.items()
                }
                states[name] = PolicyState(now.signature, more)
        self.policies.restore(controller, states)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self.work()
            except Exception:  # noqa: BLE001 - the next look may go well
                _log.exception("policy files or what was learned could not be looked after; it is tried again")

    def work(self) -> None:
        """What the thread does each time."""
        self.policies.look()
        given = self._to_save
        if given is not None and self._state is not None and self._exchanging.acquire(blocking=False):
            try:
                self._saved = given[0], self._state.exchange(*given)
            finally:
                self._exchanging.release()
            self._to_save = None
