"""What was served, as counts, kept across restarts for those who ask for it: one file, read at the start, written at
the end.

It holds no text, but what followed what: whoever reads it can piece texts together, so it is readable by its owner
alone.
"""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import numpy as np

from adaptspec.drafting.token_counts import Histories
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.errors import EngineError, StateError
from adaptspec.files import DAMAGE, read_arrays, write_file

FILE = "history.npz"
VERSION = 1
_log = logging.getLogger(__name__)


class HistoryFile:
    """The history of one engine in its state directory."""

    def __init__(self, folder: Path, histories: Histories, *, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer` is its fingerprint: of another one nothing here would mean the same."""
        self._path = folder / FILE
        self._histories = histories
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def load(self) -> None:
        """Go on from what is there, before the first request. What cannot be used is a line in the log."""
        try:
            arrays = read_arrays(self._path)
            if int(arrays["version"]) != VERSION or str(arrays["tokenizer"]) != self._tokenizer:
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
            about = {"version": np.array(VERSION), "tokenizer": np.array(self._tokenizer)}
            np.savez_compressed(archive, allow_pickle=False, **about, **arrays)
            write_file(self._path, archive.getbuffer())
            os.chmod(self._path, 0o600)
        except (OSError, EngineError) as error:
            _log.warning("what was served is not kept: %s could not be written (%s)", self._path, error)
