"""GGUF files: what their headers say of a model, and where its tensors lie.

Format: github.com/ggml-org/ggml, docs/gguf.md. Files come from anybody, so every length is held to what the file has.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from adaptspec.errors import FileError, ModelError
from adaptspec.files import add_sample, open_file

SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_ENTRIES, _MOST_TENSORS, _MOST_DIMENSIONS = 4096, 2**17, 8
_MOST_TEXT, _MOST_ARRAY = 2**24, 2**24  # bytes of one text, items of one array: vocabularies have some 10^5 tokens
_ALIGNMENT = 32  # bytes, where the file says nothing else
_KEPT = 64  # items of an array that is kept; of longer ones only the length
_TEXT, _ARRAY = 8, 9
_NUMBERS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_EMBEDDING_MODELS = ("bert", "nomic-bert", "jina-bert", "gemma-embedding", "t5encoder", "modern-bert")
_MULTIMODAL = ("clip", "mmproj", "whisper", "wavtokenizer")


@dataclass(frozen=True)
class Length:
    """Stands for an array that is not kept."""

    items: int


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies: its file, its first byte there, its shape (rows first), and its type in ggml's numbers."""

    path: Path
    start: int
    shape: tuple[int, ...]
    kind: int


@dataclass(frozen=True)
class GgufHeader:
    """The header of a model's first file: its metadata by key, and the tensors of all its files by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]

    @property
    def parameters(self) -> int:
        """Numbers of all tensors."""
        return sum(math.prod(one.shape) for one in self.tensors.values())

    def weights(self, kinds: Container[int]) -> int:
        """Numbers of the tensors of these types, in ggml's numbers."""
        return sum(math.prod(one.shape) for one in self.tensors.values() if one.kind in kinds)

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def vocab_size(self) -> int:
        """Token ids; ModelError if the file has no vocabulary."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        items = tokens.items if isinstance(tokens, Length) else len(tokens) if isinstance(tokens, list) else 0
        if not items:
            raise ModelError(f"{self.path} has no vocabulary; use a file of a whole model that generates text")
        return items

    def number(self, name: str) -> int:
        """A positive number under a key of the architecture, such as block_count; ModelError if it is none."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, list):  # by layer
            value = max((one for one in value if isinstance(one, int)), default=None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"{self.path}: {self.architecture}.{name} is {value!r}; convert or download the file again"
            )
        return value

    @property
    def kv_heads(self) -> int:
        """Key-value heads; as many as query heads where the file does not say."""
        return self.number(
            "attention.head_count_kv" if self._has("attention.head_count_kv") else "attention.head_count"
        )

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in 16 bits, in all layers."""
        heads, width = self.number("attention.head_count"), 0
        for name in ("attention.key_length", "attention.value_length"):
            width += self.number(name) if self._has(name) else -(-self.number("embedding_length") // heads)
        return 2 * self.number("block_count") * self.kv_heads * width

    def _has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids that end a text."""
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        ids = (self.metadata.get(f"tokenizer.ggml.{name}") for name in names)
        found = dict.fromkeys(one for one in ids if isinstance(one, int) and 0 <= one < self.vocab_size)
        return tuple(found)


def fingerprint(path: Path) -> str:
    """A short hash that identifies a model's files: of their sizes and a sample of their bytes."""
    digest = hashlib.sha256()
    for part in parts(path):
        digest.update(f"{part.stat().st_size}".encode())
        add_sample(digest, part)
    return digest.hexdigest()[:16]


def is_gguf(path: Path) -> bool:
    """Whether a file is called like one."""
    return path.suffix.lower() == SUFFIX


def read_header(path: Path) -> GgufHeader:
    """The header of a model's file, the first where it is split; ModelError if it is none, damaged or no text model."""
    files = parts(path)
    metadata, tensors = _read(path)
    for other in files[1:]:
        tensors |= _read(other)[1]
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} names no architecture; convert or download the file again")
    if architecture in _EMBEDDING_MODELS:
        raise ModelError(f"{path} is an embedding model ({architecture}), which writes no text; use one that does")
    if architecture in _MULTIMODAL or metadata.get("general.type") == "mmproj":
        raise ModelError(f"{path} is a part for pictures or sound ({architecture}); use the file of the language model")
    return GgufHeader(path, metadata, tensors)


def parts(path: Path) -> list[Path]:
    """All files of a model, of which `path` is one or the only one; ModelError if one is missing."""
    found = _SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    name, count = found[1], int(found[3])
    if not 1 <= int(found[2]) <= count <= _MOST_ENTRIES:
        raise ModelError(f"{path}: its name says part {int(found[2])} of {count}; name the first part as it was made")
    paths = [path.with_name(f"{name}-{part:05}-of-{count:05}{path.suffix}") for part in range(1, count + 1)]
    missing = [one.name for one in paths if not one.is_file()]
    if missing:
        raise ModelError(
            f"{path} is one of {count} parts, and {', '.join(missing[:3])} is not there; download all parts"
        )
    return paths


def _read(path: Path) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
    """Metadata and tensors of one file."""
    try:
        with open(open_file(path), "rb") as file:
            return _Reader(file, path).header()
    except _DamagedError as error:
        raise ModelError(f"{path} is no whole GGUF file ({error}); download it again") from None
    except FileError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error


class _DamagedError(Exception):
    """The file is not what its header says."""


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._size = file, path, path.stat().st_size

    def header(self) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
        if self._bytes(4) != _MAGIC:
            raise _DamagedError("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise _DamagedError(f"its version is {version}, those known are 2 and 3")
        tensors, entries = self._count(_MOST_TENSORS, "tensors"), self._count(_MOST_ENTRIES, "entries")
        metadata = {}
        for _ in range(entries):
            key = self._text()
            metadata[key] = self._value(self._number("I"))
        found, end = [], 0
        for _ in range(tensors):
            name, dimensions = self._text(), self._number("I")
            if dimensions > _MOST_DIMENSIONS:
                raise _DamagedError(f"a tensor has {dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]  # the innermost is written first
            found.append((name, shape, self._number("I"), self._number("Q")))
            end = max(end, found[-1][3])
        if self._file.tell() + end > self._size:
            raise _DamagedError(f"its tensors end behind its {self._size} bytes")
        unit = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(unit, int) or isinstance(unit, bool) or unit < 1:
            raise _DamagedError(f"general.alignment is {unit!r}")
        data = -(-self._file.tell() // unit) * unit
        return metadata, {name: TensorPlace(self._path, data + at, shape, kind) for name, shape, kind, at in found}

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY or depth:
            raise _DamagedError(f"a value has the unknown type {kind}")
        inner, items = self._number("I"), self._count(_MOST_ARRAY, "items of an array")
        if items <= _KEPT:
            return [self._value(inner, 1) for _ in range(items)]
        if inner in _NUMBERS:
            self._skip(items * struct.calcsize(_NUMBERS[inner]))
        elif inner == _TEXT:
            for _ in range(items):
                self._skip(self._count(_MOST_TEXT, "bytes of a text"))
        else:
            raise _DamagedError(f"a value has the unknown type {inner}")
        return Length(items)

    def _text(self) -> str:
        return self._bytes(self._count(_MOST_TEXT, "bytes of a text")).decode("utf-8", "replace")

    def _count(self, most: int, what: str) -> int:
        count: int = self._number("Q")
        if count > most:
            raise _DamagedError(f"it claims {count} {what}")
        return count

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(kind)))
        return value

    def _skip(self, size: int) -> None:
        if self._file.tell() + size > self._size:
            raise _DamagedError("it ends within its header")
        self._file.seek(size, 1)

    def _bytes(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise _DamagedError("it ends within its header")
        return found
