"""The contract of broken policy files: each is refused at its place, with a sentence on what is wrong.

An entry of `goldens/policies.json` is the file (`text`, as in `refusals`; `hex` for bytes that are no text) and the
error of `adaptspec policy validate`, whose lines begin with line and column.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from adaptspec.cli import main
from tests.files.contracts import GOLDENS, Document
from tests.files.refusals import expand


async def record(folder: Path, recorded: Document) -> Document:
    """The errors of today's code for the recorded files."""
    return {name: _checked(folder / "p.yaml", entry) for name, entry in recorded.items()}


def _checked(file: Path, entry: dict[str, Any]) -> Document:
    file.write_bytes(content(entry))
    errors, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
        status = main(["policy", "validate", str(file)])
    lines = errors.getvalue().replace(f"{file}:", "").splitlines()
    given = {key: entry[key] for key in ("text", "hex") if key in entry}
    return given | {"status": status, "problems": lines}


def content(entry: dict[str, Any]) -> bytes:
    """The bytes of a recorded file."""
    return bytes.fromhex(entry["hex"]) if "hex" in entry else expand(entry["text"])


def broken_files() -> list[bytes]:
    """The bytes of all recorded files."""
    return [content(entry) for entry in json.loads((GOLDENS / "policies.json").read_text(encoding="utf-8")).values()]
