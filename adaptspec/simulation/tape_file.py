"""Tapes on disk: one compressed .npz of plain arrays with a version, written whole or not at all."""

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
from adaptspec.simulation.tape import COUNTS, SHARES, UNRANKED, AfterMiss, DraftView, Tape

BUNDLED = "bundled"

FORMAT, VERSION = "adaptspec-tape", 1
_MIN_SHARE = 0.0005  # of a candidate
_AFTER_MISS = "astray"  # the name of `after_miss` in files
_WORDS = ("ids", "tasks", "sources")
_LENGTHS = ("prompt_tokens", "lengths", "max_tokens")

_Arrays = Mapping[str, npt.NDArray[Any]]


def save_tape(tape: Tape, path: Path) -> None:
    """Write a tape.

    Confidence, entropy and chances are kept to three digits (float16), those of candidates to three decimals. Raises
    TapeError: the file cannot be written.
    """
    header = {"format": FORMAT, "version": VERSION, "drafters": list(tape.views), "about": dict(tape.about)}
    arrays: dict[str, npt.NDArray[Any]] = {
        "header": np.array(json.dumps(header)),
        **{name: np.array(getattr(tape, name), dtype=np.str_) for name in _WORDS},
        **{name: getattr(tape, name).astype(np.int32) for name in _LENGTHS},
        "temperatures": tape.temperatures.astype(np.float32),
        "seeds": tape.seeds,
        "sizes": np.diff(tape.offsets).astype(np.int32),
    }
    for i, view in enumerate(tape.views.values()):
        for name in COUNTS:
            arrays[f"{i}.{name}"] = getattr(view, name).astype(np.uint8)
        for name in SHARES:
            arrays[f"{i}.{name}"] = getattr(view, name).astype(np.float16)
        if view.after_miss is not None:
            both = np.stack((view.after_miss.confidence, view.after_miss.entropy))
            arrays[f"{i}.{_AFTER_MISS}"] = both.astype(np.float16)
        if view.top is not None:
            # Three decimals compress to half the bytes of float16. A share of 0 would be no candidate.
            share = np.where(view.top > 0.0, np.maximum(np.round(view.top, 3), _MIN_SHARE), 0.0)
            arrays[f"{i}.top"] = share.astype(np.float16)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # its flag is not among the names
    try:
        write_file(path, packed.getbuffer())
    except OSError as error:
        raise TapeError(f"{path}: the tape cannot be written ({error})") from error


def find_tape(name: str) -> Path:
    """The file of a tape: a path, or "bundled" for the shipped tape of the bundled pair."""
    return Path(__file__).parent / "tapes" / "bundled.npz" if name == BUNDLED else Path(name)


def load_tape(path: Path) -> Tape:
    """Read a tape. Raises TapeError: the file is missing, damaged, no tape, or of another version."""
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
    columns: dict[str, Any] = {name: tuple(arrays[name].tolist()) for name in _WORDS}
    columns |= {name: arrays[name].astype(np.int64) for name in (*_LENGTHS, "seeds")}
    return Tape(
        **columns,
        temperatures=arrays["temperatures"].astype(np.float64),
        offsets=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        views={name: _view(arrays, i) for i, name in enumerate(header["drafters"])},
        about={str(key): str(value) for key, value in header["about"].items()},
    )


def _view(arrays: _Arrays, i: int) -> DraftView:
    run, reach = (arrays[f"{i}.{name}"].astype(np.int64) for name in ("run", "reach"))
    confidence, entropy, rejection = (arrays[f"{i}.{name}"].astype(np.float64) for name in SHARES)
    beyond = arrays.get(f"{i}.{_AFTER_MISS}")
    after_miss = None if beyond is None else AfterMiss(*beyond.astype(np.float64))
    # Files written before candidates were recorded have neither ranks nor `top`.
    rank = arrays[f"{i}.rank"].astype(np.int64) if f"{i}.rank" in arrays else np.where(run > 0, 0, UNRANKED)
    top = arrays.get(f"{i}.top")
    top = None if top is None else top.astype(np.float64)
    return DraftView(run, reach, rank, confidence, entropy, rejection, after_miss, top)
