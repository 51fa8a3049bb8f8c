"""Whatever a model directory asks for, no code of it runs: in the target, the draft, or their tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adaptspec.config import EngineConfig
from adaptspec.engine.build import build
from adaptspec.errors import ModelError

ASKS_FOR_CODE = [
    ("config.json", "auto_map", {"AutoModelForCausalLM": "evil.Model"}),
    ("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["evil.Tokenizer", None]}),
]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("ask", ASKS_FOR_CODE)
def test_remote_code_is_refused(
    target_path: Path, draft_path: Path, tmp_path: Path, role: str, ask: tuple[str, str, object]
) -> None:
    file, key, value = ask
    places = {"target": target_path, "draft": draft_path}
    places[role] = tmp_path / role
    shutil.copytree(target_path if role == "target" else draft_path, places[role])
    settings = json.loads((places[role] / file).read_text())
    (places[role] / file).write_text(json.dumps(settings | {key: value}))
    (places[role] / "evil.py").write_text("raise SystemExit('code of the model directory has run')")
    with pytest.raises(ModelError, match="never done"):
        build(EngineConfig(model=str(places["target"]), draft=str(places["draft"]), device="cpu"))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_pickles_are_refused(target_path: Path, draft_path: Path, tmp_path: Path, role: str) -> None:
    places = {"target": target_path, "draft": draft_path}
    places[role] = tmp_path / role
    shutil.copytree(target_path if role == "target" else draft_path, places[role])
    (places[role] / "model.safetensors").rename(places[role] / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle"):
        build(EngineConfig(model=str(places["target"]), draft=str(places["draft"]), device="cpu"))
