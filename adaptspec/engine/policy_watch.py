"""Notices that policy files have changed, and has them served. A broken file is a line in the log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import AdaptSpecError
from adaptspec.files import FileMark, file_mark

_log = logging.getLogger(__name__)


class PolicyWatch:
    """Looks at the files of the policies that are served."""

    def __init__(self, manager: PolicyManager) -> None:
        self._manager = manager
        self._seen = self._marks()

    async def run(self, seconds: float = 1.0) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Apply every file that has changed since the last look. What cannot be used stays as it was."""
        # Taken before files are read: what is written meanwhile is seen at the next look.
        for path, mark in self._marks().items():
            if mark != self._seen.get(path):
                self._seen[path] = mark
                self._apply(path)

    def reload(self) -> None:
        """Apply every file that does not say what is served, whenever it changed."""
        self._seen.clear()
        self.look()

    def _apply(self, path: Path) -> None:
        try:
            applied = self._manager.apply_file(path)
        except AdaptSpecError as error:
            _log.warning("%s; the policy that was served before stays", error)
        except Exception:  # noqa: BLE001 - a surprise in one file must not end the watch over the others
            _log.exception("%s could not be applied; the policy that was served before stays", path)
        else:
            if applied is not None:
                kept = ", what it had learned was kept" if applied.carried else ""
                _log.warning("policy %s was reloaded from %s%s", applied.name, path, kept)

    def _marks(self) -> dict[Path, FileMark | None]:
        """By the file of each policy; None: it is gone."""
        return {one.path: file_mark(one.path) for one in self._manager.served if one.path is not None}
