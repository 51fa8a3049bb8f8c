"""Archives of arrays: what their headers claim is what there is, or nothing is read of them."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptspec.errors import FileError
from adaptspec.files import read_arrays


def member(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with any header."""
    raw = header.encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\x01\x00" else "<I", len(raw)) + raw + body


def archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", content)
    return path


def header(shape: str, kind: str = "<f8") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n"


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"n": np.arange(6).reshape(2, 3).T, "words": np.array(["a", "bc"]), "one": np.array(7)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    "content",
    [
        member(header("(1000000000000000,)"), b"\0" * 8),
        member(header("(10000000000,)"), b"\0" * 8),
        member(header("(-1,)"), b"\0" * 8),
        member(header("(2,)"), b"\0" * 8),
        member(header("(0, 5)"), b"\0" * 8),
        member(header("(1,)", "|O"), b"\x80\x04N."),
        member(header("(True,)"), b"\0" * 8),
        member(header("(1.5,)"), b"\0" * 8),
        member("(" * 9000, b""),
        member(header("(1,)"), b"\0" * 8, b"\x09\x00"),
        member("{}"),
        b"",
        b"\x93NUMPY",
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_made_of_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FileError, match="no archive of arrays, or damaged"):
        read_arrays(archive(tmp_path / "a.npz", content))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04", b"text", io.BytesIO(member(header("(1,)"), b"\0" * 8)).getvalue()):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(FileError, match="no archive of arrays"):
            read_arrays(tmp_path / "a.npz")


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    """A thousand bytes may hold a million."""
    path = archive(tmp_path / "a.npz", member(header("(125000,)"), b"\0" * 1_000_000))
    assert len(read_arrays(path)["a"]) == 125_000
    with pytest.raises(FileError, match="its arrays take more than 0 GiB"):
        read_arrays(path, most_unpacked=100_000)
