"""Model directories: broken ones end in an error that says what is wrong, and a hub id is fetched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from adaptspec.errors import ModelError
from adaptspec.models.model_files import eos_token_ids, fingerprint, read_json, resolve_model, weight_files
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


@pytest.mark.parametrize("name", ["no-such-directory", "./a/b/c", "org/name/extra", ""])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="hub id like org/name"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_single_file_of_a_model_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(ModelError, match="is a file; name the directory that holds it"):
        resolve_model(str(file))


OTHER_FORMATS = [
    ("model-Q4_K_M.gguf", r"GGUF files are not read yet: give .* safetensors weights, or convert it .*gguf_file="),
    ("MODEL.GGUF", "GGUF files are not read yet"),
    ("model.onnx", "ONNX files are not read: give .* safetensors weights"),
    ("tf_model.h5", "weights of TensorFlow and Flax are not read: give .* safetensors weights"),
    ("flax_model.msgpack", "weights of TensorFlow and Flax are not read: give .* safetensors weights"),
    ("pytorch_model.bin", "a pickle, which can run code: convert it to safetensors"),
    ("consolidated.00.pth", "a pickle, which can run code: convert it to safetensors"),
]


@pytest.mark.parametrize(("name", "message"), OTHER_FORMATS)
def test_weights_in_other_formats_are_refused_with_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    """As a file, as a directory of such files alone, and next to a config.json; the message is one line."""
    folder = tmp_path / "model"
    for inner in (folder, folder / "weights"):
        inner.mkdir()
        (inner / name).touch()
        for given in (inner / name, folder):
            with pytest.raises(ModelError, match=f"^{given}: .*{message}[^\\n]*$"):
                resolve_model(str(given))
        (folder / "config.json").write_text("{}")
        with pytest.raises(ModelError, match=message):
            weight_files(resolve_model(str(folder)))
        (folder / "config.json").unlink()
        (inner / name).unlink()


def test_weights_in_other_formats_next_to_safetensors_are_no_fault(tmp_path: Path) -> None:
    for name in ("model.gguf", "model.onnx", "pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).touch()
    assert weight_files(resolve_model(str(tmp_path))) == [tmp_path / "model.safetensors"]


@pytest.mark.parametrize(
    "name",
    [
        "bartowski/SmolLM2-GGUF",
        "bartowski/SmolLM2-gguf:Q4_K_M",
        "org/model.gguf",
        "no-such.gguf",
        "org/model-GGUF/model-Q8_0.gguf",
    ],
)
def test_names_of_gguf_files_are_refused_without_asking_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of this name is looked into: it may hold safetensors."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"^{name}: GGUF files are not read yet"):
        resolve_model(name)
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "model.safetensors").touch()
    assert resolve_model(name) == Path(name)


def test_a_hub_id_is_fetched_without_anything_that_can_run(tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.update(name=name, patterns=allow_patterns)
        return str(tmp_path)

    assert resolve_model("org/some-model", download=download) == tmp_path
    assert asked["name"] == "org/some-model"
    dangerous = ("modeling.py", "model.bin", "model.pt", "tokenization.py")
    assert not any(Path(name).match(pattern) for name in dangerous for pattern in asked["patterns"])


def test_an_unreachable_hub_is_explained() -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("no network\nlong story")

    with pytest.raises(ModelError, match=r"org/some-model.*\(no network\); check the name"):
        resolve_model("org/some-model", download=download)


@pytest.mark.parametrize(("name", "hint"), [("org/name", "set HF_HOME"), ("~/model", "write the whole path")])
def test_models_need_no_home_directory_but_to_be_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_model: MakeModel, name: str, hint: str
) -> None:
    """The hub's client would make a folder called ~ in the working directory."""

    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    path, work = str(make_model("llama")), tmp_path / "work"
    work.mkdir()
    for variable in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.chdir(work)
    assert resolve_model(path) == Path(path)
    with pytest.raises(ModelError, match=hint):
        resolve_model(name)
    assert not list(work.iterdir())
