"""Where `adaptspec serve` gets its admin key from."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.commands.run_serve import ADMIN_KEY, _admin_key
from adaptspec.errors import ConfigError


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from the command line, which everybody on the machine can read; without either there is none."""
    monkeypatch.delenv(ADMIN_KEY, raising=False)
    assert _admin_key(None) is None
    monkeypatch.setenv(ADMIN_KEY, "")
    assert _admin_key(None) is None
    monkeypatch.setenv(ADMIN_KEY, "from outside")
    assert _admin_key(None) == "from outside"
    file = tmp_path / "key"
    file.write_text("  in the file\n")
    assert _admin_key(file) == "in the file"


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    """An empty file must not mean that everybody is the admin, nor that nobody is."""
    file = tmp_path / "key"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        _admin_key(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        _admin_key(tmp_path / "nowhere")
