"""Opening files so that nobody waits, writing them whole or not at all, and reading archives of arrays from anybody."""

from __future__ import annotations

import io
import os
import stat
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

_SAMPLES, _SAMPLE_BYTES = 64, 4096
_MOST_PACKED, _MOST_UNPACKED = 2**30, 4 * 2**30  # bytes of an archive
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

FileMark = tuple[int, int, int]

# By what `ls -l` tells them with.
_KINDS = {"d": "a directory", "p": "a pipe", "s": "a socket", "c": "a device", "b": "a device"}


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """A descriptor of a regular file, opened with `flags` and created with `mode` where they say so.

    Never waits: a pipe would keep its reader until somebody writes, for ever perhaps, and a thread that waits so keeps
    the process from ending.

    Raises:
        FileError: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError:
        check_regular(path)  # a pipe that nobody reads cannot be opened for writing; that it is a pipe says more
        raise
    try:
        _refuse_irregular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: Path) -> None:
    """For libraries that open files by their names: raise FileError if what is here is no regular file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    _refuse_irregular(path, mode)


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        FileError: it is no regular file, or larger.
        OSError: it cannot be read.
    """
    with open(open_file(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = f"{most // 2**20} MiB" if most >= 2**20 else f"{most // 2**10} KiB"
        raise FileError(path, f"it is larger than {size}")
    return content


def read_text(path: Path, most: int) -> str:
    """The same as text, any line ends as one and without the byte order mark that editors on Windows write.

    Raises UnicodeDecodeError as well where it is not UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding="utf-8-sig").read()


def add_sample(digest: Any, path: Path) -> None:
    """Update a hash with a sample of a file's bytes, from its beginning to its end: a few milliseconds."""
    size = path.stat().st_size
    with open(open_file(path), "rb") as file:
        for sample in range(_SAMPLES):
            file.seek(size * sample // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))


def cache_folder() -> Path | None:
    """The user's folder for caches; None for a user without a home directory, as containers run any user id."""
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def read_arrays(path: Path, most_unpacked: int = _MOST_UNPACKED) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays of an .npz archive, by name: plain ones only, and at most `most_unpacked` bytes in all.

    Raises:
        FileError: it is no such archive, or damaged.
        OSError: it cannot be read.
    """
    packed = io.BytesIO(read_bytes(path, _MOST_PACKED))
    try:
        with zipfile.ZipFile(packed) as archive:
            if sum(member.file_size for member in archive.infolist()) > most_unpacked:
                raise FileError(path, f"its arrays take more than {most_unpacked // 2**30} GiB")
            return {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
    except DAMAGE as error:
        raise FileError(path, f"it is no archive of arrays, or damaged ({error or type(error).__name__})") from error


def write_file(path: Path, data: bytes | memoryview, *, alone: bool = True, mode: int = 0o644) -> None:
    """Replace a file so that whoever reads it, whenever the machine stops, finds the old content or the new.

    Temporary file in the same folder, fsync, rename, fsync of the folder. Where several processes may write it at once,
    say `alone=False`: each then has a temporary file of its own, which stays if the process is killed.

    Raises:
        FileError: what is to be replaced, or the temporary file, is no regular file.
        OSError: the file is the old one then, and `path`.tmp may be left, which the next call replaces. Unless it was
            the folder that could not be synced: the file is the new one, but power loss could bring the old one back.
    """
    check_regular(path)
    draft = path.with_name(path.name + (".tmp" if alone else f".{os.getpid()}.tmp"))
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse_irregular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.filemode(mode)[0], "no file")
        raise FileError(path, f"it is {kind}, not a regular file")


def _array(content: bytes) -> npt.NDArray[Any]:
    """The array of an .npy file; ValueError if it is not all of it, or holds anything but plain numbers or text."""
    file = io.BytesIO(content)
    array: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
    if file.read(1):
        raise ValueError("there is more than the array that its header tells of")
    return array


def file_mark(path: Path) -> FileMark | None:
    """What changes when a file does; None while it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
