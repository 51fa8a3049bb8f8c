"""Opening files so that nobody waits, and writing them whole or not at all. Does not know what is in a file."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from adaptspec.errors import FileError

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, opened with `flags` and created with mode 644 where they say so.

    Never waits: a pipe would keep its reader until somebody writes, for ever perhaps, and a thread that waits so keeps
    the process from ending.

    Raises:
        FileError: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
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
        raise FileError(path, f"it is larger than {_size(most)}")
    return content


def read_text(path: Path, most: int) -> str:
    """The same as text, any line ends as one. Raises UnicodeDecodeError as well where it is not UTF-8."""
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding="utf-8").read()


def write_file(path: Path, data: bytes | memoryview, *, alone: bool = True) -> None:
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
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
    raise FileError(path, f"it is {kind}, not a regular file")


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count // 2**10} KiB"
