"""What an engine has learned, kept across restarts: one directory per engine, one file in it, written whole or not at
all.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adaptspec.control.state import MOST_BYTES, LearnedState, PolicyState, from_bytes, read_state, to_bytes
from adaptspec.drafting.token_counts import Histories
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import EngineError, StateError
from adaptspec.files import DAMAGE, open_file, read_arrays, read_bytes, write_file

FILE = "learned.json"
HISTORY, _HISTORY_VERSION = "history.npz", 1
_log = logging.getLogger(__name__)


def tasks_in(folder: Path) -> tuple[str, ...]:
    """`LearnedState.tasks` of a directory; none where there is nothing that can be read, of which `load` says why."""
    try:
        return read_state(folder / FILE).tasks
    except StateError:
        return ()


class StateStore:
    """The state directory of one engine. Holds a lock on it until `close`."""

    def __init__(self, folder: Path, pair: str) -> None:
        """
        Raises:
            StateError: the directory cannot be used, or another engine uses it.
        """
        self._path = folder / FILE
        self._pair = pair
        self._written = b""
        self.quarantined, self.failed_saves = 0, 0  # since the start
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_file(folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StateError(f"--state-dir {folder}: cannot be used ({error.strerror}); choose another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"--state-dir {folder} is in use by another engine; give each its own") from error

    def load(self) -> LearnedState | None:
        """What was saved last; None if nothing was, or if it could not be trusted and was put aside."""
        try:
            raw = read_bytes(self._path, MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.quarantine(f"it cannot be read ({error.strerror})")
            return None
        try:
            state = from_bytes(raw)
        except StateError as error:
            self.quarantine(str(error))
            return None
        if state.pair != self._pair:
            self.quarantine(f"it was learned with other models ({state.pair}, not {self._pair})")
            return None
        self._written = raw
        return state

    def quarantine(self, reason: str) -> None:
        """Put the file aside, where nothing reads it and somebody can look at it."""
        self.quarantined += 1
        earlier = [path.name.rpartition("-")[2] for path in self._path.parent.glob(f"{FILE}.quarantined-*")]
        taken = [int(number) for number in earlier if number.isdecimal()]
        aside = self._path.with_name(f"{FILE}.quarantined-{1 + max(taken, default=0)}")
        try:
            os.replace(self._path, aside)
        except OSError as error:
            _log.warning("%s is not used: %s; it could not be renamed either (%s)", self._path, reason, error.strerror)
            return
        _log.warning("%s is not used: %s. It is now %s; learning starts anew", self._path, reason, aside.name)

    def save(self, policies: Mapping[str, PolicyState], tasks: tuple[str, ...] = ()) -> bool:
        """Write what has been learned, if anything is new. A full disk is a line in the log, and False: the old file
        stays.
        """
        raw = to_bytes(LearnedState(self._pair, policies, tasks))
        if raw == self._written:
            return True
        try:
            write_file(self._path, raw)
        except OSError as error:
            self.failed_saves += 1
            _log.warning("%s could not be saved (%s); it is tried again later", self._path, error.strerror)
            return False
        self._written = raw
        return True

    def close(self) -> None:
        """Let another engine have the directory."""
        os.close(self._lock)


class Checkpointer:
    """Saves every `seconds`, on a thread of its own: the engine only copies arrays between two rounds."""

    def __init__(self, manager: PolicyManager, store: StateStore, seconds: float = 60.0) -> None:
        self._manager = manager
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
                restored = self._manager.restore(state.policies, state.tasks)
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
            return self._store.save({**self._others, **self._manager.learned()}, self._manager.tasks)
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


class HistoryFile:
    """What was served, as counts, for those who ask for it: one file, read at the start, written at the end.

    It holds no text, but what followed what: whoever reads it can piece texts together, so it is readable by its owner
    alone.
    """

    def __init__(self, folder: Path, histories: Histories, *, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer` is its fingerprint: of another one nothing here would mean the same."""
        self._path = folder / HISTORY
        self._histories = histories
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def load(self) -> None:
        """Go on from what is there, before the first request. What cannot be used is a line in the log."""
        try:
            arrays = read_arrays(self._path)
            if int(arrays["version"]) != _HISTORY_VERSION or str(arrays["tokenizer"]) != self._tokenizer:
                raise StateError("it is of another version of this program, or of another tokenizer")
            self._histories.restore(arrays, self._vocab_size)
        except FileNotFoundError:
            return
        except (OSError, StateError, *DAMAGE) as error:
            _log.warning("%s is not used: %s; history starts anew, and replaces it at the end", self._path, error)

    def save(self, engine: AsyncEngine) -> None:
        """Write down what is remembered now. What goes wrong is a line in the log, and the old file stays."""
        try:
            arrays = engine.call(self._histories.arrays).result()
            archive = io.BytesIO()
            about = {"version": np.array(_HISTORY_VERSION), "tokenizer": np.array(self._tokenizer)}
            np.savez_compressed(archive, allow_pickle=False, **about, **arrays)
            write_file(self._path, archive.getbuffer(), mode=0o600)
        except (OSError, EngineError) as error:
            _log.warning("what was served is not kept: %s could not be written (%s)", self._path, error)
