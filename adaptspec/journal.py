"""The lines of a journal: round records and the little that is said of requests, as plain data and back, exactly.

A journal is JSON lines, one entry each, told apart by `type`. Knows the shape of a line and how files of a rotated
journal follow each other; it does not know who writes them, nor what anybody concludes from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from adaptspec.draft_tables import CANDIDATES
from adaptspec.errors import JournalError
from adaptspec.files import open_file
from adaptspec.types import Expected, FloatArray, IntArray, Provenance, RoundRecord

# 3: rounds and requests say when.
JOURNAL_VERSION = 3


@dataclass(frozen=True)
class JournalHeader:
    """What the rounds that follow ran on. `costs` is the cost profile as `CostTable.to_json` writes it.

    Times in a journal are on the monotonic clock of the process that wrote it; `clock` is when that stood at 0, in
    seconds since 1970.
    """

    adaptspec: str
    target: Mapping[str, str]
    pair: str  # fingerprints of all models
    drafters: Sequence[str]
    policies: Sequence[str]
    default: str
    tasks: Sequence[str]
    costs: Mapping[str, Any]
    clock: float = 0.0
    version: int = JOURNAL_VERSION


@dataclass(frozen=True)
class RequestStarted:
    """A request was admitted. Never its text, nor its token ids."""

    id: str
    policy: str | None
    task: str | None
    prompt_tokens: int
    max_tokens: int
    max_depth: int | None
    temperature: float


@dataclass(frozen=True)
class RequestFinished:
    """A request ended; `seconds` from arrival to the end, of which it was `queued` before it was admitted.

    `to_first_token` is seconds from arrival as well; it and `queued` are None for what was never reached.
    """

    id: str
    policy: str
    finish: str
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    queued: float | None
    to_first_token: float | None
    ended: float


@dataclass(frozen=True)
class LinesDropped:
    """So many lines are missing here: the writer could not keep up, or the disk was full."""

    lines: int


Entry = JournalHeader | RequestStarted | RequestFinished | LinesDropped | RoundRecord

_KINDS: Mapping[str, type[JournalHeader | RequestStarted | RequestFinished | LinesDropped]] = {
    "header": JournalHeader,
    "start": RequestStarted,
    "finish": RequestFinished,
    "dropped": LinesDropped,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_READERS: Mapping[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}
_LONGEST = 2**24  # characters of a line
_DEEPEST = 2**12  # tokens of a draft

_PER_ROW = ("rows", "depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
_PER_DRAFTER = ("shadow", "shadow_drafted")
_COUNTS = ("number", "prefill_tokens", "draft_steps", "caught_up", "verify_tokens")
_SECONDS = ("draft_seconds", "verify_seconds", "total_seconds")


def to_line(entry: Entry) -> str:
    """One line of a journal, without its end."""
    if isinstance(entry, RoundRecord):
        body = {"type": "round", **round_to_plain(entry)}
    else:
        body = {"type": _NAMES[type(entry)], **asdict(entry)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def round_to_plain(record: RoundRecord) -> dict[str, Any]:
    """A round as lists and numbers: NaN is null, and nulls at the end of a row are left out."""
    plain: dict[str, Any] = {name: getattr(record, name) for name in _COUNTS + _SECONDS}
    plain["ended"] = _null(record.ended)
    plain["decision"] = record.decision
    plain["request_ids"] = list(record.request_ids)
    plain |= {name: getattr(record, name).tolist() for name in _PER_ROW}
    plain["deepest"] = record.confidence.shape[1]
    plain["confidence"], plain["entropy"] = _ragged(record.confidence), _ragged(record.entropy)
    if record.provenance is not None:
        plain["arms"] = record.provenance.arms.tolist()
        plain["draws"] = record.provenance.draws.tolist()
        for name in ("propensities", "worth"):
            plain[name] = [_null(value) for value in getattr(record.provenance, name).tolist()]
    for name in _PER_DRAFTER:
        value = getattr(record, name)
        if value is not None:
            plain[name] = value.tolist()
    if record.expected is not None:
        accepted = [_null(value) for value in record.expected.accepted.tolist()]
        plain["expected"] = {"goodput": _null(record.expected.goodput), "accepted": accepted}
        if not math.isnan(record.expected.other):
            plain["expected"]["other"] = record.expected.other
    scores = record.temperature_scores
    if scores is not None:
        told = scores.astype(object)
        told[np.isnan(scores)] = None
        plain["temperature_scores"] = told.tolist()
    return plain


def round_from_plain(plain: Mapping[str, Any]) -> RoundRecord:
    """The round that `round_to_plain` wrote, value for value.

    Raises:
        JournalError: it is none.
    """
    try:
        rows, deepest = len(plain["request_ids"]), int(plain["deepest"])
        if not 0 <= deepest <= _DEEPEST:
            raise ValueError(f"a depth of {deepest}")
        values: dict[str, Any] = {name: _integers(plain[name], (rows,)) for name in _PER_ROW}
        values |= {name: _integers(plain[name], (-1, rows)) for name in _PER_DRAFTER if name in plain}
        values |= {name: int(plain[name]) for name in _COUNTS} | {name: float(plain[name]) for name in _SECONDS}
        return RoundRecord(
            request_ids=tuple(map(str, plain["request_ids"])),
            confidence=_filled(plain["confidence"], rows, deepest),
            entropy=_filled(plain["entropy"], rows, deepest),
            provenance=_provenance(plain, rows) if "arms" in plain else None,
            expected=_expected(plain["expected"], rows) if "expected" in plain else None,
            decision=int(plain.get("decision", 0)),
            temperature_scores=_scores(plain["temperature_scores"], rows, deepest)
            if "temperature_scores" in plain
            else None,
            ended=_number(plain["ended"]),
            **values,
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise JournalError(f"not a round ({error!r}); it was written by something else, or changed since") from error


def read_entries(path: str | Path) -> Iterator[Entry]:
    """Everything a journal says, oldest first; the files it was rotated to (`FILE.1`, `FILE.2` ...) are read before it.

    A last line without an end was cut off by a crash, and is left out.

    Raises:
        JournalError: there is no such file, or a line is none of a journal (says which).
    """
    newest = Path(path)
    older = [(int(p.suffix[1:]), p) for p in newest.parent.glob(f"{newest.name}.*") if p.suffix[1:].isdecimal()]
    files = [file for _, file in sorted(older, reverse=True)]
    if newest.exists():
        files.append(newest)
    if not files:
        raise JournalError(f"{path}: no such file; name the one that was given to --journal")
    for file in files:
        yield from _read_file(file)


def read_journal(path: str | Path) -> Iterator[RoundRecord]:
    """The rounds of a journal, oldest first. Raises as `read_entries` does."""
    for entry in read_entries(path):
        if isinstance(entry, RoundRecord):
            yield entry


def _read_file(file: Path) -> Iterator[Entry]:
    try:
        with open(open_file(file), encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(_LONGEST), ""), start=1):
                if line.endswith("\n"):
                    yield _entry(line, f"{file}:{number}")
                elif len(line) == _LONGEST:
                    raise JournalError(f"{file}:{number}: a line without end; give the file that --journal wrote")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JournalError(f"{file}: cannot be read ({reason}); is it a journal?") from error


def _entry(line: str, place: str) -> Entry:
    try:
        body = json.loads(line, parse_float=_finite, parse_constant=_finite)
        kind = body.pop("type")
        if kind == "round":
            return round_from_plain(body)
        entry: Entry = _READERS[kind].validate_python(body)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        field = ".".join(map(str, first["loc"]))
        raise JournalError(f"{place}: no line of a journal ({field}: {first['msg']})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, JournalError) as error:
        raise JournalError(f"{place}: no line of a journal ({error}); give the file that --journal wrote") from error
    if isinstance(entry, JournalHeader) and entry.version != JOURNAL_VERSION:
        raise JournalError(
            f"{place}: a journal of version {entry.version}; this program reads {JOURNAL_VERSION}: write a new one "
            "with `adaptspec serve --journal`, or read it with the program that wrote it"
        )
    return entry


def _finite(text: str) -> float:
    """A number as a journal has them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number that a journal has")
    return value


def _null(value: float) -> float | None:
    return None if np.isnan(value) else value


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _ragged(values: FloatArray) -> list[list[float | None]]:
    """[B, D] as lists without what is unknown at their ends."""
    known = ~np.isnan(values)
    lengths = np.where(known.any(axis=1), values.shape[1] - np.argmax(known[:, ::-1], axis=1), 0) if known.size else ()
    rows = [values[i, :length].tolist() for i, length in enumerate(lengths)] or [[] for _ in values]
    return [[_null(value) for value in row] for row in rows]


def _filled(rows: Sequence[Sequence[float | None]], size: int, deepest: int) -> FloatArray:
    if len(rows) != size:
        raise ValueError(f"{len(rows)} rows, not {size}")
    filled: FloatArray = np.full((size, deepest), np.nan)
    for i, row in enumerate(rows):
        if len(row) > deepest:
            raise ValueError(f"{len(row)} values in a row, not {deepest}")
        filled[i, : len(row)] = [_number(value) for value in row]
    return filled


def _integers(values: Sequence[Any], shape: tuple[int, ...]) -> IntArray:
    whole: IntArray = np.array(values, dtype=np.int64)
    # Of no rows at all there can still be several lists.
    return whole.reshape(len(values) if shape[0] < 0 else shape[0], *shape[1:])


def _provenance(plain: Mapping[str, Any], rows: int) -> Provenance:
    arms, draws = (_integers(plain[name], (rows,)) for name in ("arms", "draws"))
    return Provenance(arms, _floats(plain["propensities"], rows), draws, _floats(plain["worth"], rows))


def _scores(plain: Any, rows: int, deepest: int) -> FloatArray:
    scores: FloatArray = np.array(plain, dtype=np.float64).reshape(rows, deepest, len(CANDIDATES))
    return scores


def _expected(plain: Mapping[str, Any], rows: int) -> Expected:
    return Expected(_number(plain["goodput"]), _floats(plain["accepted"], rows), _number(plain.get("other")))


def _floats(values: Sequence[float | None], rows: int) -> FloatArray:
    read: FloatArray = np.array([_number(value) for value in values], dtype=np.float64)
    return read.reshape(rows)
