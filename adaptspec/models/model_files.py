"""The files of a model directory: JSON and safetensors. Never reads a pickle."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from adaptspec.errors import FileError, ModelError
from adaptspec.files import add_sample, check_regular, read_text
from adaptspec.models.config import shown

_log = logging.getLogger(__name__)
# Weights as safetensors, settings, tokenizer: nothing that can run code is even downloaded.
PATTERNS = ["*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
PICKLES = (".bin", ".pt", ".pth")
TRAINING = ("optimizer", "scheduler", "training_args", "rng_state", "scaler")  # pickles that are left of it
_WANTED = "give the Hugging Face directory or id of the model with safetensors weights"
# Formats of weights that are not read, by how the names of their files end, and what to do with them.
# Pickles come first: a directory that has several formats can be converted from them.
OTHER_FORMATS: Mapping[tuple[str, ...], str] = {
    (*PICKLES, ".ckpt"): (
        "its weights are a pickle, which can run code: convert it to safetensors (load it in transformers where you "
        "trust it, then save_pretrained); of a head that drafts, give a directory with config.json and "
        "--allow-pickle, which reads plain tensors out of it"
    ),
    (".ggml",): f"GGML files are older than GGUF, and llama.cpp reads them no more: {_WANTED}, or a GGUF file",
    (".onnx",): f"ONNX files are not read: {_WANTED}",
    (".h5", ".msgpack"): f"weights of TensorFlow and Flax are not read: {_WANTED}",
}
MASK_EMBEDDING = "mask_embedding.pt"  # no weights: what stands for tokens to come, of some DFlash heads
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_JSON = 256 * 2**20  # bytes; the vocabulary of a large model takes a tenth of it
MOST_DEPTH = 32


def check_files(folder: Path) -> None:
    """Raise ModelError if a file here, or one folder down, is a pipe, a socket or a device.

    Libraries open model files by name, and an open pipe without a writer blocks them forever. All files are checked,
    because only transformers knows which ones the tokenizer of a family reads. Hidden files (`.git`) are not a model's.
    A directory that has weights in another format and no config.json is refused here, before config.json is missed.
    """
    try:
        files = _files(folder)
        for path in files:
            if not path.is_dir():
                check_regular(path)
        if not (folder / CONFIG).is_file() and not any(path.suffix == ".safetensors" for path in files):
            refuse_other_formats(str(folder), files)
    except FileError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read ({error.strerror}); check the path and its permissions") from error


def refuse_other_formats(name: str, files: Iterable[Path]) -> None:
    """Raise ModelError, with what to do, if one of a model's `files` has weights in a format that is not read."""
    others = (*TRAINING, MASK_EMBEDDING)
    endings = {path.suffix.lower() for path in files if not path.name.startswith(others)}
    for suffixes, advice in OTHER_FORMATS.items():
        if endings.intersection(suffixes):
            raise ModelError(f"{name}: {advice}")


def _files(folder: Path) -> list[Path]:
    """Files of a model's directory, and of the directories in it, without hidden ones."""
    found = (path for pattern in ("*", "*/*") for path in folder.glob(pattern))
    return sorted(one for one in found if not any(part.startswith(".") for part in one.relative_to(folder).parts))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelError if it is missing, broken or no object."""
    try:
        value = json.loads(read_text(path, MOST_JSON))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}; is this a model directory?") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}); download or export the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    if _deeper(value, MOST_DEPTH):
        raise ModelError(
            f"{path} nests more than {MOST_DEPTH} objects and lists, which no model's does; export it again"
        )
    return value


def weight_files(folder: Path, *, pickles: bool = False) -> list[Path]:
    """The safetensors files of a model; ModelError if there are none or a shard is missing.

    Where there are none, pickles may do, if they are allowed: who reads them must have torch build plain tensors alone.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, Mapping) or not all(isinstance(name, str) for name in shards.values()):
            raise ModelError(f"{folder / INDEX} has no weight_map; download or export the model again")
        paths = [folder / Path(name).name for name in sorted(set(shards.values()))]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise ModelError(f"{folder} lacks {', '.join(missing)}, named by {INDEX}; download the model again")
        return paths
    others = (*TRAINING, MASK_EMBEDDING)
    pickled = sorted(one for one in folder.glob("*") if one.suffix in PICKLES and not one.name.startswith(others))
    if pickled and pickles:
        return pickled
    refuse_other_formats(str(folder), _files(folder))
    raise ModelError(f"{folder} holds no {WEIGHTS} and no {INDEX}; is the download complete?")


def eos_token_ids(folder: Path, config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Token ids that end a text: all that generation_config.json, config.json and the tokenizer's files name.

    Fine-tunes often change one of these files alone. Entries that are no token of the model are dropped with a warning.
    Raises ModelError if there are entries and none is a token.
    """
    settings, ids = _tokenizer_settings(folder), _TokenIds(folder)
    sources = (_json_of(folder / "generation_config.json"), config, config.get("text_config"), *settings)
    found, strange = dict[int, None](), list[object]()
    for named in (named for source in sources if isinstance(source, Mapping) for named in _end_entries(source)):
        token = ids.of(named, settings)
        if token is not None and 0 <= token < vocab_size:
            found[token] = None
        elif named not in strange and not (isinstance(named, str) and ids.unlisted):
            strange.append(named)
    if strange and not found:
        raise ModelError(
            f"{folder}: eos_token_id {shown(strange[0])} is none of the {vocab_size} token ids; no text would end with "
            "it: set eos_token_id in generation_config.json or config.json to the token that ends a text"
        )
    for named in strange:
        _log.warning("%s: eos_token_id %s is no token of this model, and ends no text", folder.name, shown(named))
    return tuple(found)


def _end_entries(source: Mapping[str, Any]) -> list[object]:
    """What a file names as end tokens, by their ids or their texts."""
    listed: list[object] = []
    for value in (source.get("eos_token_id"), source.get("eos_token")):
        listed += [] if value is None else value if isinstance(value, list) else [value]
    return [one.get("content") if isinstance(one, Mapping) else one for one in listed]


def _tokenizer_settings(folder: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(_json_of(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json"))


def _json_of(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}


class _TokenIds:
    """Ids of added tokens by their texts; tokenizer.json, which may be large, is read only if it must be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, named: object, settings: Sequence[Mapping[str, Any]]) -> int | None:
        """The id of a token that is named by its id or its text; None: there is no such token."""
        if isinstance(named, int) and not isinstance(named, bool):
            return named
        if not isinstance(named, str):
            return None
        for one in settings:
            added = one.get("added_tokens_decoder")
            for key, token in added.items() if isinstance(added, Mapping) else ():
                if isinstance(token, Mapping) and token.get("content") == named and key.isdecimal():
                    return int(key)
        return self._listed.get(named)

    @property
    def unlisted(self) -> bool:
        """Whether there is no list of all texts, as of tokenizers that transformers converts."""
        return not (self._folder / "tokenizer.json").is_file()

    @cached_property
    def _listed(self) -> Mapping[str, int]:
        described = _json_of(self._folder / "tokenizer.json")
        model, added = described.get("model"), described.get("added_tokens")
        words = model.get("vocab") if isinstance(model, Mapping) else None
        ids = dict(words) if isinstance(words, Mapping) else {}
        ids |= {
            one["content"]: one["id"]
            for one in (added if isinstance(added, list) else ())
            if isinstance(one, Mapping) and isinstance(one.get("content"), str) and isinstance(one.get("id"), int)
        }
        return {text: number for text, number in ids.items() if isinstance(number, int)}


def fingerprint(folder: Path, *, pickles: bool = False) -> str:
    """A short hash that tells weights apart: config, file headers and a sample of the bytes (a few milliseconds)."""
    digest = hashlib.sha256(json.dumps(read_json(folder / CONFIG), sort_keys=True).encode())
    for path in weight_files(folder, pickles=pickles):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        add_sample(digest, path)
    return digest.hexdigest()[:16]


def _deeper(value: object, most: int) -> bool:
    """Whether objects and lists lie deeper within each other than `most`."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
    return any(isinstance(value, (dict, list)) for value in level)
