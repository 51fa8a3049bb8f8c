"""Files of model directories: broken ones end in an error that says what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.errors import ModelError
from adaptspec.models.model_files import eos_token_ids, fingerprint, read_json, weight_files
from tests.conftest import MakeModel


def test_an_index_cannot_point_outside_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(ModelError, match=r"lacks secret\.safetensors"):
        weight_files(folder)


END_FILES = [
    ({"generation_config.json": {"eos_token_id": 1}}, {"eos_token_id": 3}, (1, 3)),
    ({"generation_config.json": {"eos_token_id": [1, 2]}}, {"eos_token_id": [2, 3]}, (1, 2, 3)),
    ({"generation_config.json": {"eos_token_id": None}}, {"eos_token_id": 3}, (3,)),
    ({}, {"eos_token_id": 1, "text_config": {"eos_token_id": [1, 2]}}, (1, 2)),
    ({"tokenizer_config.json": {"eos_token": "<|end|>"}}, {"eos_token_id": 1}, (1, 2)),
    ({"tokenizer_config.json": {"eos_token": {"content": "<|end|>"}}}, {}, (2,)),
    ({"special_tokens_map.json": {"eos_token": "<|end|>"}}, {"eos_token_id": [0, 1]}, (0, 1, 2)),
    ({"generation_config.json": {"eos_token_id": ["<|end|>", 1]}}, {"eos_token": "a"}, (2, 1, 0)),
    (
        {"tokenizer_config.json": {"eos_token": "</s>", "added_tokens_decoder": {"3": {"content": "</s>"}}}},
        {"eos_token_id": 1},
        (1, 3),
    ),
    ({}, {}, ()),
]


@pytest.mark.parametrize(("files", "config", "ends"), END_FILES)
def test_end_tokens_are_those_of_all_files(
    files: dict[str, Any], config: dict[str, Any], ends: tuple[int, ...], tmp_path: Path
) -> None:
    """Fine-tunes change one file alone: their texts ran on through the end token that the others did not name."""
    words = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 2, "content": "<|end|>"}]}
    for name, content in ({"tokenizer.json": words} | files).items():
        (tmp_path / name).write_text(json.dumps(content))
    assert eos_token_ids(tmp_path, config, 4) == ends


def test_fingerprints_tell_weights_apart(make_model: MakeModel, tmp_path: Path) -> None:
    """Not the name: a copy has the same one, one changed weight another."""
    original = make_model("llama")
    copy = tmp_path / "renamed"
    shutil.copytree(original, copy)
    assert fingerprint(copy) == fingerprint(original) == fingerprint(original)
    assert fingerprint(make_model("llama", seed=1)) != fingerprint(original)
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, copy / "model.safetensors")
    assert fingerprint(copy) != fingerprint(original)


@pytest.mark.parametrize("depth", [40, 500, 100_000])
def test_json_that_nests_deep_is_refused(tmp_path: Path, depth: int) -> None:
    """Whether the parser gives up on it, or whoever walks through it would."""
    (tmp_path / "config.json").write_text('{"a": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(ModelError, match=r"nests more than|not valid JSON"):
        read_json(tmp_path / "config.json")


NO_TOKENS = (-1, 4, 10**12, True, 1.5, "</s>", [])


@pytest.mark.parametrize("token", NO_TOKENS)
def test_end_tokens_that_no_text_can_have_are_refused_if_there_is_no_other(token: object, tmp_path: Path) -> None:
    """No text would ever end; the message says what to set."""
    (tmp_path / "tokenizer.json").write_text("{}")
    for ids in ([token], [token, -2]):
        with pytest.raises(ModelError, match=r"eos_token_id .* is none of the 4 token ids.*set eos_token_id"):
            eos_token_ids(tmp_path, {"eos_token_id": ids}, 4)


@pytest.mark.parametrize("token", NO_TOKENS)
def test_other_end_tokens_make_up_for_them(token: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A list with one entry too many is no reason to refuse a model; a line in the log says so."""
    (tmp_path / "tokenizer.json").write_text("{}")
    assert eos_token_ids(tmp_path, {"eos_token_id": [token, 3]}, 4) == (3,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert eos_token_ids(tmp_path, {"eos_token_id": [token]}, 4) == (1,)
    assert all("is no token of this model" in record.message for record in caplog.records)
    assert len(caplog.records) == 2
