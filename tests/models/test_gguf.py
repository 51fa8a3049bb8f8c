"""Headers of GGUF files: damaged, hostile and foreign ones end in one sentence, before llama.cpp is asked."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import ModelError
from adaptspec.models.gguf import read_header
from tests.conftest import MakeModel
from tests.models.tiny_gguf import write_gguf

WIDE = {"hidden_size": 64, "intermediate_size": 64}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_model: MakeModel) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(make_model("llama", **WIDE), path).read_bytes()


def test_a_header_says_what_is_served(tmp_path: Path, make_model: MakeModel, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(whole)
    header = read_header(tmp_path / "m.gguf")
    assert (header.architecture, header.vocab_size, header.end_tokens) == ("llama", 260, (1,))
    assert header.number("context_length") == 256
    layers, kv_heads, width = header.number("block_count"), 2, header.metadata["llama.attention.key_length"]
    assert header.bytes_per_token == 2 * layers * kv_heads * 2 * width
    assert header.weights((8,)) + header.weights((0,)) == header.parameters  # Q8_0, and norms in float32
    assert header.weights((0,)) == (2 * layers + 1) * header.number("embedding_length")


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _file(*entries: tuple[str, int, bytes], tensors: int = 0) -> bytes:
    """A header of these entries: key, number of the type, value."""
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries))
    return head + b"".join(_text(key) + struct.pack("<I", kind) + value for key, kind, value in entries)


ARCHITECTURE = ("general.architecture", 8, _text("llama"))
HOSTILE = {
    "empty": (b"", "it ends within its header"),
    "another format": (b"PK\x03\x04" + bytes(64), "it does not begin with GGUF"),
    "a version to come": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "its version is 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "its version is 50331648"),
    "3 GB of text": (_file(("a", 8, struct.pack("<Q", 3 * 2**30))), f"it claims {3 * 2**30} bytes of a text"),
    "text that is not there": (_file(("a", 8, struct.pack("<Q", 2**20))), "it ends within its header"),
    "many entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), f"it claims {2**40} entries"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), f"it claims {2**40} tensors"),
    "a long array": (_file(("a", 9, struct.pack("<IQ", 4, 2**50))), f"it claims {2**50} items of an array"),
    "arrays in arrays": (_file(("a", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 0))), "the unknown type 9"),
    "an unknown type": (_file(("a", 99, b"")), "the unknown type 99"),
    "a tensor of many dimensions": (
        _file(ARCHITECTURE, tensors=1) + _text("t") + struct.pack("<I", 200),
        "a tensor has 200 dimensions",
    ),
    "tensors behind the end": (
        _file(ARCHITECTURE, tensors=1) + _text("t") + struct.pack("<IQIQ", 1, 4, 0, 2**40),
        "its tensors end behind its",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_and_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(
        ModelError, match=rf"^{tmp_path}/m\.gguf is no whole GGUF file \(.*{message}.*\); download it again$"
    ):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((), "names no architecture"),
        ((("general.architecture", 8, _text("bert")),), r"is an embedding model \(bert\), which writes no text"),
        ((("general.architecture", 8, _text("clip")),), r"is a part for pictures or sound \(clip\)"),
        ((ARCHITECTURE, ("general.type", 8, _text("mmproj"))), "is a part for pictures or sound"),
    ],
)
def test_files_that_are_no_text_model_are_refused(
    tmp_path: Path, entries: tuple[tuple[str, int, bytes], ...], message: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(_file(*entries))
    with pytest.raises(ModelError, match=message):
        read_header(tmp_path / "m.gguf")


def test_a_model_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(_file(ARCHITECTURE))
    with pytest.raises(ModelError, match="has no vocabulary"):
        _ = read_header(tmp_path / "m.gguf").vocab_size


@given(cut=st.floats(0.0, 1.0, exclude_max=True))
def test_a_truncated_file_is_refused_wherever_it_ends(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, cut: float
) -> None:
    """A download that stopped: llama.cpp would read beyond what is there."""
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    path.write_bytes(whole[: int(len(whole) * cut * 0.5)])
    with pytest.raises(ModelError, match="is no whole GGUF file"):
        read_header(path)


@given(places=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_end_in_a_header_or_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, places: list[tuple[int, int]]
) -> None:
    """Never in another error, nor in memory or time that a header claims."""
    damaged = bytearray(whole)
    for place, byte in places:
        damaged[place % 4096] = byte
    path = tmp_path_factory.mktemp("changed") / "m.gguf"
    path.write_bytes(damaged)
    assert "\n" not in _message(lambda: _looked_through(path))


def _looked_through(path: Path) -> None:
    header = read_header(path)
    assert min(header.vocab_size, header.number("block_count"), header.bytes_per_token) > 0


def _message(call: Callable[[], None]) -> str:
    try:
        call()
    except ModelError as error:
        return str(error)
    return ""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="it is a pipe, not a regular file"):
        read_header(tmp_path / "m.gguf")
