"""Reading .npz archives of plain arrays that anybody may have written: no pickles, and no more than there is room for.

Knows archives and arrays; what the arrays mean is the affair of whoever reads them.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from numpy.lib import format as npy

from adaptspec.errors import FileError
from adaptspec.files import read_bytes

_MOST_PACKED, _MOST_UNPACKED = 2**30, 4 * 2**30  # bytes
# All that numpy and zipfile raise for bytes that are no archive of arrays, and users of the arrays for wrong ones.
DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    ArithmeticError,
    MemoryError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_arrays(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays of an archive, by name.

    Raises:
        FileError: it is no such archive, or damaged.
        OSError: it cannot be read.
    """
    packed = io.BytesIO(read_bytes(path, _MOST_PACKED))
    try:
        with zipfile.ZipFile(packed) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_UNPACKED:
                raise FileError(path, f"its arrays take more than {_MOST_UNPACKED // 2**30} GiB")
            return {name.removesuffix(".npy"): _array(archive, name) for name in archive.namelist()}
    except DAMAGE as error:
        raise FileError(path, f"it is no archive of arrays, or damaged ({error or type(error).__name__})") from error


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """One array; ValueError if its header asks for anything but plain numbers or text, or for more than follows it."""
    size = archive.getinfo(name).file_size
    with archive.open(name) as member:
        version = npy.read_magic(member)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
        if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - member.tell():
            raise ValueError(f"{name} does not hold the array that its header tells of")
    with archive.open(name) as member:
        array: npt.NDArray[Any] = npy.read_array(member, allow_pickle=False)
        return array
