"""Trying drafts: rounds at fixed depths tell what a pass over the whole text tells, of every kind of draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.bench.record_tape import RecordSettings, record
from adaptspec.bench.try_drafts import try_draft
from adaptspec.bench.workloads import Workloads
from adaptspec.engine.build import build
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.training.corpus import Prompt
from tests.conftest import MakeModel
from tests.models.heads.golden import head_of, names_of
from tests.models.tiny_gguf import write_gguf

pytestmark = pytest.mark.whole

TOKENS = 40
WORK: Workloads = {
    "chat": [Prompt("chat", "tested", "one two one two one"), Prompt("chat", "tested", "a b c d a b c")],
    "code": [Prompt("code", "tested", "0 1 0 1 1 0")],
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def noisy_draft(make_model: MakeModel, tmp_path: Path) -> Path:
    """The target with disturbed weights, which agrees with it about every other time."""
    weights = load_file(make_model("llama") / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    folder = tmp_path / "noisy"
    folder.mkdir()
    for file in make_model("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    noisy = {name: w + 0.03 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_rounds_tell_what_a_pass_over_the_text_tells(target_path: Path, noisy_draft: Path) -> None:
    """Lookup is judged exactly alike; of the draft model's positions few are drawn, and the others are the same."""
    ticks: list[None] = []
    config = EngineConfig(str(target_path), str(noisy_draft))
    tried = try_draft(config, str(noisy_draft), WORK, TOKENS, lambda: ticks.append(None))
    assert len(ticks) == 1 + 3
    told = record(build(config), WORK, RecordSettings(TOKENS, (0.0,), history=False), lambda: None)
    assert tried.tape.tasks == told.tasks
    assert tried.tape.lengths.tolist() == told.lengths.tolist()
    assert set(tried.tape.views) == {"draft-model", "ngram", "counts"}
    for request in range(len(told)):
        here, there = tried.tape.offsets[request] + 1, told.offsets[request] + 1
        size = int(told.lengths[request]) - 1
        ours, theirs = (
            {name: view.agreed[at : at + size] for name, view in tape.views.items()}
            for tape, at in ((tried.tape, here), (told, there))
        )
        assert np.array_equal(ours["ngram"], theirs["ngram"])
        assert np.array_equal(ours["counts"], theirs["counts"])
        assert np.mean(ours["draft-model"] == theirs["draft-model"]) > 0.9
    assert 0.1 < np.mean(tried.tape.views["draft-model"].agreed) < 0.95
    assert tried.branching is not None
    assert tried.branching > 0.0


def test_a_quantized_file_drafts_with_the_memory_of_the_file(make_model: MakeModel, tmp_path: Path) -> None:
    """Its type of weights is none of torch's."""
    wide = make_model("llama", hidden_size=64, intermediate_size=64)
    target, draft = (write_gguf(wide, tmp_path / f"{kind}.gguf", kind) for kind in ("F32", "Q4_1"))
    tried = try_draft(EngineConfig(str(target)), str(draft), WORK, TOKENS, lambda: None)
    assert tried.memory == draft.stat().st_size


def test_answers_are_shorter_where_time_is_short_unless_their_length_is_fixed(target_path: Path) -> None:
    """Configurations are compared on answers of one length."""
    config = EngineConfig(str(target_path), None)
    hurried = try_draft(config, None, WORK, TOKENS, lambda: None, seconds=0.0)
    fixed = try_draft(config, None, WORK, TOKENS, lambda: None, seconds=0.0, fixed=True)
    assert hurried.tokens < fixed.tokens == TOKENS


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_heads_are_tried_alike(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    """Here with random weights: they draft, and are seldom right."""
    name = names_of(kind)[0]
    head_of(make_model, name, tmp_path)
    target = make_model("llama", hidden_size=16, num_hidden_layers=4)
    tried = try_draft(EngineConfig(str(target)), str(tmp_path / name), WORK, TOKENS, lambda: None)
    assert np.mean(tried.tape.views["draft-model"].agreed) < 0.5
