"""Model names: a directory is taken as it is, a hub id is fetched, anything else is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from adaptspec.errors import ModelError
from adaptspec.models import hub


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert hub.resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["no-such-directory", "./a/b/c", "org/name/extra", ""])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="hub id like org/name"):
        hub.resolve_model(name)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError, match="is a file"):
        hub.resolve_model(str(file))


def test_a_hub_id_is_fetched_without_anything_that_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.update(name=name, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hub.resolve_model("org/some-model") == tmp_path
    assert asked["name"] == "org/some-model"
    dangerous = ("modeling.py", "model.bin", "model.pt", "tokenization.py")
    assert not any(Path(name).match(pattern) for name in dangerous for pattern in asked["patterns"])


def test_an_unreachable_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("no network\nlong story")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(ModelError, match=r"org/some-model.*\(no network\); check the name"):
        hub.resolve_model("org/some-model")
