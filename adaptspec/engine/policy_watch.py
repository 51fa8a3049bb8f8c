"""Reloads policy files when they change. Errors in a file are logged."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import AdaptSpecError
from adaptspec.files import FileMark, file_mark

_log = logging.getLogger(__name__)


class PolicyWatch:
    """Watches the files of the served policies."""

    def __init__(self, manager: PolicyManager) -> None:
        self._manager = manager
        self._seen = self._marks()

    async def run(self, seconds: float = 1.0) -> None:
        """Look every `seconds` until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Apply every file that has changed since the last look. After an error the served policy is kept."""
        # Taken before files are read, so that later writes are noticed at the next look.
        for path, mark in self._marks().items():
            if mark != self._seen.get(path):
                self._seen[path] = mark
                self._apply(path)

    def reload(self) -> None:
        """Apply every file that differs from the served policy, whenever it changed."""
        self._seen.clear()
        self.look()

    def _apply(self, path: Path) -> None:
        try:
            applied = self._manager.apply_file(path)
        except AdaptSpecError as error:
            _log.warning("%s; the policy that was served before stays", error)
        except Exception:  # noqa: BLE001 - an error in one file must not end the watch
            _log.exception("%s could not be applied; the policy that was served before stays", path)
        else:
            if applied is not None:
                kept = ", what it had learned was kept" if applied.carried else ""
                _log.warning("policy %s was reloaded from %s%s", applied.name, path, kept)

    def _marks(self) -> dict[Path, FileMark | None]:
        """Marks by file of the served policies; None: the file is missing."""
        return {policy.path: file_mark(policy.path) for policy in self._manager.served if policy.path is not None}
