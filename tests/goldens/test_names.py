"""Names that dashboards, collectors and clients rely on do not change by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.goldens.names import FILE, names


async def test_names_are_what_they_were(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an intended change: python -m tests.goldens.names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert await names(target_path, draft_path, tmp_path) == json.loads(FILE.read_text())
