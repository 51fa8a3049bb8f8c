"""The contract of damaged files: each gives an error of its kind, with a sentence.

An entry of `goldens/damage.json` is a sample with one change and its reader's `error`: class and message. Changes:
`replace` [old, new] in the text (new with repeated parts, as in `refusals`), `line` in place of the last one, `cut`
after so many bytes, or `text` in place of the sample. `sealed`: the digest of learned state is right again afterwards.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adaptspec.control.learned_state import read_state
from adaptspec.errors import AdaptSpecError
from adaptspec.journal import read_entries
from adaptspec.simulation.tape_file import load_tape
from tests.files.contracts import Document
from tests.files.refusals import expand
from tests.files.samples import SAMPLES

_LIBRARY = re.compile(r"[(](?![a-z_.0-9]+: [A-Z]).*[)]", re.DOTALL)
READERS: Mapping[str, Callable[[Path], object]] = {
    ".jsonl": lambda path: list(read_entries(path)),
    ".json": read_state,
    ".npz": load_tape,
}


async def record(folder: Path, recorded: Document) -> Document:
    """The errors of today's readers for the recorded changes."""
    found: Document = {}
    for name, entry in recorded.items():
        path = folder / entry["sample"]
        path.write_bytes(changed((SAMPLES / entry["sample"]).read_bytes(), entry))
        found[name] = {key: value for key, value in entry.items() if key != "error"} | {"error": _error(path)}
    return found


def changed(sample: bytes, entry: Mapping[str, Any]) -> bytes:
    """The bytes of a damaged sample."""
    if "text" in entry:
        return expand(entry["text"])
    if "cut" in entry:
        return sample[: entry["cut"]]
    if "line" in entry:
        *before, _ = sample.splitlines(keepends=True)
        return b"".join(before) + expand(entry["line"]) + b"\n"
    old, new = map(expand, entry["replace"])
    assert old in sample, "the change changes nothing"
    damaged = sample.replace(old, new, 1)
    return sealed(damaged) if entry.get("sealed") else damaged


def sealed(state: bytes) -> bytes:
    """Learned state with the digest of what is in it, as a program of ill will could write it."""
    body = json.loads(state)
    del body["digest"]
    raw = json.dumps(body, sort_keys=True).encode()
    return json.dumps({**body, "digest": hashlib.blake2b(raw, digest_size=16).hexdigest()}).encode()


def _error(path: Path) -> str | None:
    """Class and message; None if the file is read. What a library says stands in brackets, and is `(...)` here, unless
    it begins with the name of a field.
    """
    try:
        READERS[path.suffix](path)
    except AdaptSpecError as error:
        message = str(error).replace(str(path), path.name)
        return f"{type(error).__name__}: {_LIBRARY.sub('(...)', message)}"
    return None
