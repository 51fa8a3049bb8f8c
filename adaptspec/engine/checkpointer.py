"""Saves and restores the learned state of an engine: one directory per engine, files written atomically."""

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
    """`LearnedState.tasks` of a directory; empty if the state cannot be read, for which `load` logs the reason."""
    try:
        return read_state(folder / FILE).tasks
    except StateError:
        return ()


class Checkpointer:
    """Saves every `seconds` on its own thread; the engine only copies arrays between two rounds."""

    def __init__(self, manager: PolicyManager, store: StateStore, seconds: float = 60.0) -> None:
        self._manager = manager
        self._store = store
        self._seconds = seconds
        self._others: dict[str, PolicyState] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptspec-state", daemon=True)

    def start(self) -> None:
        """Restore the saved state and start saving. Must be called before the first request."""
        state = self._store.load()
        if state is not None:
            try:
                restored = self._manager.restore(state.policies, state.tasks)
            except StateError as error:
                self._store.quarantine(str(error))
            else:
                # Keep the state of policies that are not served: they may be served again later.
                self._others = {name: kept for name, kept in state.policies.items() if name not in restored}
                _log.info("learned state restored for %s", ", ".join(restored) or "no policy")
        self._thread.start()

    def save(self) -> bool:
        """Save now. Errors are logged; returns False then."""
        try:
            return self._store.save({**self._others, **self._manager.learned()}, self._manager.tasks)
        except EngineError as error:
            _log.warning("the learned state since the last save is not saved: %s", error)
        except Exception:  # noqa: BLE001 - a faulty policy must not end the periodic saves
            _log.exception("the learned state could not be saved; the next save tries again")
        return False

    def close(self) -> None:
        """Save for the last time and release the directory. The engine must still run."""
        self._closing.set()
        self._thread.join()
        self.save()
        self._store.close()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            self.save()


class HistoryFile:
    """Stores the n-gram counts of earlier requests (opt-in): one file, read at the start, written at the end.

    It holds no text, but texts can be reconstructed from its counts, so only its owner can read it.
    """

    def __init__(self, folder: Path, histories: Histories, *, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer` is its fingerprint; counts of another tokenizer are not used."""
        self._path = folder / HISTORY
        self._histories = histories
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def load(self) -> None:
        """Restore the file, before the first request. Errors are logged."""
        try:
            arrays = read_arrays(self._path)
            if int(arrays["version"]) != _HISTORY_VERSION or str(arrays["tokenizer"]) != self._tokenizer:
                raise StateError("it is of another version of this program, or of another tokenizer")
            self._histories.restore(arrays, self._vocab_size)
        except FileNotFoundError:
            return
        except (OSError, StateError, *DAMAGE) as error:
            _log.warning(
                "%s is not used: %s; the history starts empty, and replaces the file at shutdown", self._path, error
            )

    def save(self, engine: AsyncEngine) -> None:
        """Write the current counts. Errors are logged, and the old file is kept."""
        try:
            arrays = engine.call(self._histories.arrays).result()
            archive = io.BytesIO()
            about = {"version": np.array(_HISTORY_VERSION), "tokenizer": np.array(self._tokenizer)}
            np.savez_compressed(archive, allow_pickle=False, **about, **arrays)
            write_file(self._path, archive.getbuffer(), mode=0o600)
        except (OSError, EngineError) as error:
            _log.warning("the history is not saved: %s could not be written (%s)", self._path, error)
