"""Checkpoints have the names that `speculators` saves, which test_heads.py loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adaptspec.training.head_files import make_head, save_head
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS
from tests.training.test_heads import DEPTH, FEW, teacher_of


def written(make_model: MakeModel, folder: Path, kind: str, vocabulary: torch.Tensor | None) -> dict[str, Any]:
    teacher = teacher_of(make_model(num_hidden_layers=4))
    head = make_head(kind, teacher, DEPTH, 1)
    if vocabulary is not None:
        head.draft_only(vocabulary)
    save_head(head, teacher, folder, "the-target")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


@pytest.mark.parametrize(("kind", "golden"), [("eagle", "eagle3-vocabulary"), ("dflash", "dflash")])
def test_fields_and_tensors_are_those_that_speculators_saves(
    make_model: MakeModel, tmp_path: Path, kind: str, golden: str
) -> None:
    """So other engines find what they look for. Embeddings, which are the target's, are left out."""
    config = written(make_model, tmp_path, kind, FEW)
    theirs = json.loads((HEADS / golden / "config.json").read_text())
    assert config.keys() | {"auto_map", "transformers_version"} == theirs.keys() | {"auto_map"}
    assert config["transformer_layer_config"].keys() >= theirs["transformer_layer_config"].keys() - {
        "layer_types",
        "dtype",
    }
    assert config["speculators_config"]["verifier"]["name_or_path"] == "the-target"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == DEPTH
    names = {name for name in load_file(HEADS / golden / "model.safetensors") if not name.startswith("layers.1")}
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == names - {"embed_tokens.weight"}
    assert torch.equal(torch.arange(len(FEW)) + tensors["d2t"], FEW)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == FEW.tolist()


def test_medusa_is_written_as_vllm_reads_it(make_model: MakeModel, tmp_path: Path) -> None:
    """Its names are those of vllm/model_executor/models/medusa.py."""
    config = written(make_model, tmp_path, "medusa", None)
    assert (config["model_type"], config["num_heads"], config["num_hidden_layers"]) == ("medusa", DEPTH, 1)
    tensors = load_file(tmp_path / "model.safetensors")
    heads = range(DEPTH)
    assert tensors.keys() == {
        *(f"blocks.{i}.layers.0.weight" for i in heads),
        *(f"lm_heads.{i}.weight" for i in heads),
    }
