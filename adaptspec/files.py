"""Writing files whole or not at all. Knows the system's calls; it does not know what is in a file."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, data: bytes | memoryview, *, alone: bool = True) -> None:
    """Replace a file so that whoever reads it, whenever the machine stops, finds the old content or the new.

    Temporary file in the same folder, fsync, rename, fsync of the folder. Where several processes may write it at once,
    say `alone=False`: each then has a temporary file of its own, which stays if the process is killed.

    Raises:
        OSError: the file is the old one then, and `path`.tmp may be left, which the next call replaces. Unless it was
            the folder that could not be synced: the file is the new one, but power loss could bring the old one back.
    """
    draft = path.with_name(path.name + (".tmp" if alone else f".{os.getpid()}.tmp"))
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
