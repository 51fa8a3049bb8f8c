"""Tapes on disk: one compressed .npz of plain arrays, versioned, written at once or not at all.

Knows the format only; what the columns mean is in `tape`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptspec.errors import TapeError
from adaptspec.files import DAMAGE, read_arrays, write_file
from adaptspec.simulation.tape import Astray, DraftView, Tape

BUNDLED = "bundled"

FORMAT, VERSION = "adaptspec-tape", 1

_Arrays = Mapping[str, npt.NDArray[Any]]


def save_tape(tape: Tape, path: Path) -> None:
    """Write a tape; confidence, entropy and chances are kept to three digits (float16).

    Raises:
        TapeError: the file cannot be written.
    """
    header = {"format": FORMAT, "version": VERSION, "drafters": list(tape.views), "about": dict(tape.about)}
    arrays: dict[str, npt.NDArray[Any]] = {
        "header": np.array(json.dumps(header)),
        "ids": np.array(tape.ids, dtype=np.str_),
        "tasks": np.array(tape.tasks, dtype=np.str_),
        "sources": np.array(tape.sources, dtype=np.str_),
        "prompt_tokens": tape.prompt_tokens.astype(np.int32),
        "lengths": tape.lengths.astype(np.int32),
        "max_tokens": tape.max_tokens.astype(np.int32),
        "temperatures": tape.temperatures.astype(np.float32),
        "seeds": tape.seeds,
        "sizes": np.diff(tape.offsets).astype(np.int32),
    }
    for i, view in enumerate(tape.views.values()):
        arrays[f"{i}.run"], arrays[f"{i}.reach"] = view.run.astype(np.uint8), view.reach.astype(np.uint8)
        for name in ("confidence", "entropy", "rejection"):
            arrays[f"{i}.{name}"] = getattr(view, name).astype(np.float16)
        if view.astray is not None:
            arrays[f"{i}.astray"] = np.stack((view.astray.confidence, view.astray.entropy)).astype(np.float16)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # its flag is not among the names
    try:
        write_file(path, packed.getbuffer())
    except OSError as error:
        raise TapeError(f"{path}: the tape cannot be written ({error})") from error


def find_tape(name: str) -> Path:
    """The file of a tape: a path, or "bundled" for the one of the bundled pair that ships."""
    return Path(__file__).parent / "tapes" / "bundled.npz" if name == BUNDLED else Path(name)


def load_tape(path: Path) -> Tape:
    """Read a tape.

    Raises:
        TapeError: there is no such file, it is not a tape, it is damaged, or it is of another version.
    """
    try:
        return _tape(read_arrays(path))
    except FileNotFoundError as error:
        raise TapeError(f"{path}: no such tape; record one with `adaptspec bench record`") from error
    except TapeError as error:
        raise TapeError(f"{path}: {error}") from error
    except OSError as error:
        raise TapeError(f"{path}: not a tape, or damaged ({error.strerror}); record it again") from error
    except DAMAGE as error:
        raise TapeError(f"{path}: not a tape, or damaged ({error}); record it again") from error


def _tape(arrays: _Arrays) -> Tape:
    header = json.loads(str(arrays["header"]))
    if header.get("format") != FORMAT:
        raise TapeError("not a tape")
    if header["version"] != VERSION:
        raise TapeError(f"a tape of version {header['version']}, not {VERSION}; record it again")
    sizes = arrays["sizes"].astype(np.int64)
    return Tape(
        ids=tuple(arrays["ids"].tolist()),
        tasks=tuple(arrays["tasks"].tolist()),
        sources=tuple(arrays["sources"].tolist()),
        prompt_tokens=arrays["prompt_tokens"].astype(np.int64),
        lengths=arrays["lengths"].astype(np.int64),
        max_tokens=arrays["max_tokens"].astype(np.int64),
        temperatures=arrays["temperatures"].astype(np.float64),
        seeds=arrays["seeds"].astype(np.int64),
        offsets=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        views={name: _view(arrays, i) for i, name in enumerate(header["drafters"])},
        about={str(key): str(value) for key, value in header["about"].items()},
    )


def _view(arrays: _Arrays, i: int) -> DraftView:
    run, reach = (arrays[f"{i}.{name}"].astype(np.int64) for name in ("run", "reach"))
    confidence, entropy, rejection = (
        arrays[f"{i}.{name}"].astype(np.float64) for name in ("confidence", "entropy", "rejection")
    )
    if f"{i}.astray" not in arrays:
        return DraftView(run, reach, confidence, entropy, rejection)
    sure, spread = arrays[f"{i}.astray"].astype(np.float64)
    return DraftView(run, reach, confidence, entropy, rejection, Astray(sure, spread))
