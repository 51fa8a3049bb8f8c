"""What an engine has learned, kept across restarts: one directory per engine, one file in it, written whole or not at
all.
"""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path

import numpy as np

from adaptspec.control.learned_state import FILE, PolicyState, StateStore, read_state
from adaptspec.drafting.ngram_index import Histories
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import EngineError, StateError
from adaptspec.files import DAMAGE, read_arrays, write_file

HISTORY, _HISTORY_VERSION = "history.npz", 1
_log = logging.getLogger(__name__)


def tasks_in(folder: Path) -> tuple[str, ...]:
    """`LearnedState.tasks` of a directory; none where there is nothing that can be read, of which `load` says why."""
    try:
        return read_state(folder / FILE).tasks
    except StateError:
        return ()


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
