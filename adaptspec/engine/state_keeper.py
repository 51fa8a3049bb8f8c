"""Keeps what an engine has learned: loaded at the start, saved now and then and at the end, never in its way.

Knows the desk, the store and a thread; neither files nor arrays.
"""

from __future__ import annotations

import logging
import threading

from adaptspec.control.state import PolicyState
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.engine.state_store import StateStore
from adaptspec.errors import EngineError, StateError

_log = logging.getLogger(__name__)


class StateKeeper:
    """Saves every `seconds`, on a thread of its own: the engine only copies arrays between two rounds."""

    def __init__(self, desk: PolicyManager, store: StateStore, seconds: float = 60.0) -> None:
        self._desk = desk
        self._store = store
        self._seconds = seconds
        self._others: dict[str, PolicyState] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptspec-state", daemon=True)

    def start(self) -> None:
        """Load what there is, and begin to save. Before the first request."""
        state = self._store.load()
        if state is not None:
            try:
                restored = self._desk.restore(state.policies, state.tasks)
            except StateError as error:
                self._store.quarantine(str(error))
            else:
                # What is learned of policies that are not served today may be wanted tomorrow.
                self._others = {name: kept for name, kept in state.policies.items() if name not in restored}
                _log.info("learned state restored for %s", ", ".join(restored) or "no policy")
        self._thread.start()

    def save(self) -> bool:
        """Save now. What goes wrong is a line in the log, and False."""
        try:
            return self._store.save({**self._others, **self._desk.learned()}, self._desk.tasks)
        except EngineError as error:
            _log.warning("what was learned since the last time is not saved: %s", error)
        except Exception:  # noqa: BLE001 - saving must go on with whatever a policy does next time
            _log.exception("what was learned could not be saved; it is tried again later")
        return False

    def close(self) -> None:
        """Save for the last time, and let the directory go. The engine must still run."""
        self._closing.set()
        self._thread.join()
        self.save()
        self._store.close()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            self.save()
