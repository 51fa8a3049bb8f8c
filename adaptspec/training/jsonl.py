"""Reading JSONL files, plain or .xz, so that whatever is wrong with one is said with its file and line.

Knows nothing of what the fields mean.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from adaptspec.errors import CorpusError
from adaptspec.files import open_file


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every object of the file with where it stands (`file:line`). Blank lines are skipped.

    Raises:
        CorpusError: the file is missing or damaged, or a line is not a JSON object.
    """
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}:{number}", _object(line, f"{path}:{number}")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read ({error}); give a whole JSONL file, plain or .xz") from error


def strings(where: str, fields: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """The values of `names`, in that order.

    Raises:
        CorpusError: one is missing, is not a string, or is not text that can be encoded.
    """
    missing = [name for name in names if name not in fields]
    if missing:
        raise CorpusError(f"{where}: a line needs {', '.join(missing)}")
    return [_string(where, name, fields[name]) for name in names]


def _string(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{where}: {name} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = f"\\u{ord(value[error.start]):04x}"
        raise CorpusError(f"{where}: {name} holds {code}, half of a character; repair or delete the line") from error
    return value


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with open(open_file(path), "rb") as file, lzma.LZMAFile(file) if path.suffix == ".xz" else file as plain:
        yield io.TextIOWrapper(plain, encoding="utf-8")


def _object(line: str, where: str) -> Mapping[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON ({error}); every line must be one JSON object") from error
    if not isinstance(fields, dict):
        raise CorpusError(f"{where}: a JSON {type(fields).__name__}; every line must be one JSON object")
    return fields
