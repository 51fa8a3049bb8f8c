"""The lines of a journal: rounds, and starts and ends of requests, as plain data and back, exactly.

A journal is JSON lines, one entry each, with its kind in `type`. Version 5 is written; 3 and 4 are read as well, since
a journal may be older than the program that explains it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import Expected
from adaptspec.draft_tree import DraftTree
from adaptspec.drafters import Kind, kind_of
from adaptspec.errors import JournalError
from adaptspec.files import open_file
from adaptspec.rounds import PER_ROW, Branches, DraftWork, RoundRecord, RoundWork, Timing

# 3: rounds and requests have times. 4: drafts may branch. 5: rounds have the passes that ran; before, they had sums,
# from which the passes are estimated. Further fields of older rounds are skipped: the number of the decision, `arms`,
# `propensities`, `draws` and `worth` of policies that explored, `temperature_scores`, and `decided_by`, the policy that
# `when:` chose for a row: such rounds count for the policy that their requests started with.
JOURNAL_VERSION = 5
_READ = (3, 4, JOURNAL_VERSION)


@dataclass(frozen=True)
class JournalHeader:
    """What the rounds that follow ran on. `costs` is the cost profile as `CostProfile.to_json` writes it.

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
    `cached_tokens`: prompt tokens that were cached and not read again; 0 inside another engine, where it is unknown.
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
    nodes: int | None = None  # None: as many as `drafted`, since nothing branched when it was written
    cached_tokens: int = 0


@dataclass(frozen=True)
class LinesDropped:
    """The number of lines that are missing here: the writer could not keep up, or the disk was full."""

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
_MAX_LINE = 2**24  # characters of a line
_MAX_DEPTH = 2**12  # tokens of a draft, nodes of a tree

_HINDSIGHT = ("shadow", "shadow_drafted")


def to_line(entry: Entry) -> str:
    """One line of a journal, without its end."""
    if isinstance(entry, RoundRecord):
        body = {"type": "round", **round_to_plain(entry)}
    else:
        body = {"type": _NAMES[type(entry)], **asdict(entry)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def round_to_plain(record: RoundRecord) -> dict[str, Any]:
    """A round as lists and numbers: NaN is null, and nulls at the end of a row are left out."""
    work = record.work._asdict() | {"drafts": [draft._asdict() for draft in record.work.drafts]}
    plain: dict[str, Any] = {"number": record.number, "work": work, "timing": _nulled(list(record.timing))}
    plain |= {name: getattr(record, name).tolist() for name in PER_ROW}
    plain |= {name: value.tolist() for name in _HINDSIGHT if (value := getattr(record, name)) is not None}
    plain |= {
        "ended": _nulled(record.ended),
        "request_ids": list(record.request_ids),
        "deepest": record.confidence.shape[1],
        "confidence": _ragged(record.confidence),
        "entropy": _ragged(record.entropy),
    }
    if record.expected is not None:
        accepted = _nulled(record.expected.accepted.tolist())
        plain["expected"] = {"goodput": _nulled(record.expected.goodput), "accepted": accepted}
        if not math.isnan(record.expected.other):
            plain["expected"]["other"] = record.expected.other
    if record.stated is not None:
        plain |= {"stated": list(map(_ragged, record.stated)), "stated_deepest": record.stated.shape[2]}
    if record.branches is not None:
        plain["branches"] = _trees(record, record.branches)
    return plain


def _trees(record: RoundRecord, branches: Branches) -> list[dict[str, Any]]:
    """The nodes of each row that branches or that several drafters drafted for, and the positions of accepted nodes.

    Parents, ranks and confidence are those of nodes off its main chain of `chain` nodes; those on it are first choices,
    which the record has. `drafters` are written where they differ from the row's drafter.
    """
    tree, rows_plain = branches.tree, []
    for row, (nodes, chain) in enumerate(zip(tree.counts.tolist(), tree.chain.tolist(), strict=True)):
        start, end = int(tree.offsets[row]), int(tree.offsets[row + 1])
        side = slice(start + chain, end)
        owners = tree.drafter[start:end].tolist()
        united = owners.count(int(record.drafter[row])) < nodes
        if nodes > chain or united:
            one = {"row": row, "chain": chain}
            one |= {"parents": tree.parent[side].tolist(), "ranks": tree.rank[side].tolist()}
            one |= {"drafters": owners} if united else {}
            one["confidence"] = _nulled(tree.confidence[side].tolist())
            rows_plain.append(one | {"path": branches.path[row, : int(record.accepted[row])].tolist()})
    return rows_plain


def round_from_plain(plain: Mapping[str, Any], header: JournalHeader | None = None) -> RoundRecord:
    """The round that `round_to_plain` wrote, value for value. Rounds before version 5 need the `header` of their file.

    Raises:
        JournalError: it is none.
    """
    try:
        rows, deepest = len(plain["request_ids"]), int(plain["deepest"])
        if not 0 <= deepest <= _MAX_DEPTH:
            raise ValueError(f"a depth of {deepest}")
        values: dict[str, Any] = {name: _integers(plain[name], rows) for name in PER_ROW}
        values |= {name: _integers(plain[name], len(plain[name]), rows) for name in _HINDSIGHT if name in plain}
        values["number"] = int(plain["number"])
        values |= {name: _filled(plain[name], rows, deepest) for name in ("confidence", "entropy")}
        values["ended"] = float(_floats(plain["ended"]))
        if "expected" in plain:
            expected = plain["expected"]
            goodput, other = (float(_floats(value)) for value in (expected["goodput"], expected.get("other")))
            values["expected"] = Expected(goodput, _floats(expected["accepted"], rows), other)
        if "stated" in plain:
            values["stated"] = _stated(plain["stated"], rows, int(plain["stated_deepest"]))
        if "branches" in plain:
            values["branches"] = _branches(plain["branches"], values)
        if "work" in plain:
            values |= {"work": _work(plain["work"]), "timing": Timing(*map(float, _floats(plain["timing"], 3)))}
        else:
            values |= {"work": _estimated_work(plain, values, header), "timing": _old_timing(plain)}
        return RoundRecord(request_ids=tuple(map(str, plain["request_ids"])), **values)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise JournalError(f"not a round ({error!r}); it was written by something else, or changed since") from error


def _work(plain: Mapping[str, Any]) -> RoundWork:
    drafts = tuple(
        DraftWork(str(one["drafter"]), int(one["rows"]), tuple(map(int, one["passes"])), float(one["catch_up_tokens"]))
        for one in plain["drafts"]
    )
    counts = (int(plain["rows"]), int(plain["verify_tokens"]), float(plain["context_tokens"]))
    return RoundWork(*counts, drafts, int(plain["prefill_tokens"]), bool(plain["ragged"]))


def _old_timing(plain: Mapping[str, Any]) -> Timing:
    return Timing(*(float(plain[f"{part}_seconds"]) for part in Timing._fields))


def _estimated_work(plain: Mapping[str, Any], values: Mapping[str, Any], header: JournalHeader | None) -> RoundWork:
    """The work of a round before version 5, from its sums and its nodes.

    Drafters that run a model share the tokens that were caught up by their rows. Where whole drafts ran, every pass
    covered all rows, and drafters share the number of passes by their depths. Passes of a single draft model whose
    tokens were all dropped by the stop rule leave no nodes: they count as many rows as the last pass that left some.
    """
    prefill, steps, caught_up = (int(plain[name]) for name in ("prefill_tokens", "draft_steps", "caught_up"))
    if not 0 <= steps <= _MAX_DEPTH:
        raise ValueError(f"{steps} draft steps")
    if ((values["drafted"] < 0) | (values["drafted"] > _MAX_DEPTH)).any():
        raise ValueError(f"drafts of {values['drafted'].tolist()} tokens")
    rows, context = len(values["context"]), float(values["context"].sum())
    names = () if header is None else header.drafters
    profiles = {} if header is None else header.costs.get("drafters", {})
    passes = list(_estimated_passes(values)) if values["drafted"].any() or caught_up > 0 or steps > 0 else []
    if any(number < 0 for number, _, _ in passes):
        raise ValueError("a drafter with a negative number")
    named = [(names[number] if number < len(names) else "", asked, active) for number, asked, active in passes]
    models = [(asked, len(active)) for name, asked, active in named if kind_of(name) is not Kind.MODEL_FREE]
    model_rows, model_steps = sum(asked for asked, _ in models), sum(depth for _, depth in models)
    drafts = []
    for name, asked, active in named:
        if kind_of(name) is Kind.MODEL_FREE:
            drafts.append(DraftWork(name, asked))
            continue
        counts = tuple(active.tolist())
        if profiles.get(name, {}).get("together", False):
            counts = (rows,) * round(steps * len(active) / model_steps)
        elif len(models) == 1:
            counts += counts[-1:] * (steps - len(counts))
        drafts.append(DraftWork(name, asked, counts, caught_up * asked / model_rows))
    return RoundWork(rows, int(plain["verify_tokens"]) - prefill, context, tuple(drafts), prefill)


def _estimated_passes(values: Mapping[str, Any]) -> Iterator[tuple[int, int, IntArray]]:
    """Each drafter of a round: its number, its rows, and the active rows (or nodes) of each of its passes.

    A drafter extends the newest token and the nodes that have a child of its own; siblings come from one pass. A row
    counts for every drafter that added nodes to it. At least one pass is estimated, for rows that only caught up.
    """
    drafter, drafted, branches = values["drafter"], values["drafted"], values.get("branches")
    asked = values["depths"] > 0
    if branches is None:
        for drafter_id in sorted(set(drafter[asked].tolist())):
            counts = drafted[(drafter == drafter_id) & asked]
            active = np.count_nonzero(counts[:, None] > np.arange(max(1, counts.max())), axis=0)
            active[0] = len(counts)
            yield drafter_id, len(counts), active
        return
    tree = branches.tree
    for drafter_id in sorted({*drafter[asked].tolist(), *tree.drafter.tolist()}):
        nodes = np.flatnonzero(tree.drafter == drafter_id)
        rows = asked & (drafter == drafter_id)
        rows[tree.row[nodes]] = True
        count = int(np.count_nonzero(rows))
        first = np.unique(np.stack((tree.row[nodes], tree.parent[nodes])), axis=1, return_index=True)[1]
        active = np.bincount(tree.depth[nodes][first] - 1, minlength=1).astype(np.int64)
        active[0] = count
        yield drafter_id, count, active


def _stated(plain: Sequence[Sequence[Sequence[float | None]]], rows: int, deepest: int) -> FloatArray:
    if not 0 <= deepest <= _MAX_DEPTH:
        raise ValueError(f"a depth of {deepest}")
    filled = [_filled(of_drafter, rows, deepest) for of_drafter in plain]
    return np.array(filled, dtype=np.float64).reshape(len(plain), rows, deepest)


def _branches(plain: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> Branches:
    """The trees of a round that `_trees` wrote; rows that it left out are chains. A journal has no tokens."""
    drafted, accepted, drafters = values["drafted"], values["accepted"], values["drafter"]
    chain, counts, written = drafted.copy(), drafted.copy(), {int(one["row"]): one for one in plain}
    for row, one in written.items():
        chain[row], counts[row] = int(one["chain"]), int(one["chain"]) + len(one["parents"])
    deepest = int(accepted.max(initial=0))
    if min(chain.min(initial=0), accepted.min(initial=0), *written, 0) < 0 or (chain > drafted).any():
        raise ValueError("a chain that is longer than its row's drafts, or a negative number")
    if max(int(counts.max(initial=0)), deepest) > _MAX_DEPTH:
        raise ValueError(f"trees of {counts.tolist()} nodes")
    nodes = [_row_nodes(written.get(row), int(chain[row]), int(drafters[row])) for row in range(len(chain))]
    parents, depths, ranks, owners = np.concatenate([np.zeros((4, 0), dtype=np.int64), *nodes], axis=1)
    inside = np.arange(int(counts.max(initial=0))) < counts[:, None]
    confidence, entropy = np.full((2, *inside.shape), np.nan)
    for line, name in ((confidence, "confidence"), (entropy, "entropy")):
        known = values[name][:, : line.shape[1]]
        line[:, : known.shape[1]] = np.where(np.arange(known.shape[1]) < chain[:, None], known, np.nan)
    path = np.where(np.arange(deepest) < accepted[:, None], np.arange(deepest), -1)
    for row, one in written.items():
        confidence[row, chain[row] : counts[row]] = _floats(one["confidence"], counts[row] - chain[row])
        path[row, : accepted[row]] = _integers(one["path"], accepted[row])
    if (path >= counts[:, None]).any():
        raise ValueError("a path beyond its tree")
    offsets, tokens = np.concatenate(([0], np.cumsum(counts))), np.full(len(parents), -1)
    return Branches(
        DraftTree(offsets, chain, tokens, parents, depths, ranks, owners, confidence[inside], entropy[inside]), path
    )


def _row_nodes(plain: Mapping[str, Any] | None, chain: int, drafter: int) -> IntArray:
    """Parents, depths, ranks and drafters [4, nodes] of the nodes of one row; `plain` None: of a chain."""
    parents, ranks = list(range(-1, chain - 1)), [0] * chain
    if plain is not None:
        side = len(plain["parents"])
        parents += _integers(plain["parents"], side).tolist()
        ranks += _integers(plain["ranks"], side).tolist()
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError("a tree whose nodes are in no order")
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    drafters = [drafter] * len(parents)
    if plain is not None and "drafters" in plain:
        drafters = _integers(plain["drafters"], len(parents)).tolist()
    return np.array([parents, depths, ranks, drafters], dtype=np.int64)


def read_entries(path: str | Path) -> Iterator[Entry]:
    """All entries of a journal, oldest first; the files it was rotated to (`FILE.1`, `FILE.2` ...) are read before it.

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


def _read_file(file: Path) -> Iterator[Entry]:
    header: JournalHeader | None = None
    try:
        with open(open_file(file), encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE), ""), start=1):
                if line.endswith("\n"):
                    entry = _entry(line, f"{file}:{number}", header)
                    header = entry if isinstance(entry, JournalHeader) else header
                    yield entry
                elif len(line) == _MAX_LINE:
                    raise JournalError(f"{file}:{number}: a line without end; give the file that --journal wrote")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JournalError(f"{file}: cannot be read ({reason}); is it a journal?") from error


def _entry(line: str, source: str, header: JournalHeader | None) -> Entry:
    try:
        body = json.loads(line, parse_float=_finite, parse_constant=_finite)
        kind = body.pop("type")
        if kind == "round":
            return round_from_plain(body, header)
        entry: Entry = _READERS[kind].validate_python(body)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        field = ".".join(map(str, first["loc"]))
        raise JournalError(f"{source}: no line of a journal ({field}: {first['msg']})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, JournalError) as error:
        raise JournalError(f"{source}: no line of a journal ({error}); give the file that --journal wrote") from error
    if isinstance(entry, JournalHeader) and entry.version not in _READ:
        raise JournalError(
            f"{source}: a journal of version {entry.version}; this program reads {_READ[0]} to {_READ[-1]}: write a "
            "new one with `adaptspec serve --journal`, or read it with the program that wrote it"
        )
    return entry


def _finite(text: str) -> float:
    """A number as a journal has them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number that a journal has")
    return value


def _nulled(value: Any) -> Any:
    """A number, or lists of them, with None in source of NaN."""
    if isinstance(value, list):
        return list(map(_nulled, value))
    return value if value == value else None  # noqa: PLR0124


def _ragged(values: FloatArray) -> list[list[float | None]]:
    """[B, D] as lists without what is unknown at their ends."""
    rows: list[list[float | None]] = _nulled(values.tolist())
    for row in rows:
        while row and row[-1] is None:
            row.pop()
    return rows


def _filled(rows: Sequence[Sequence[float | None]], size: int, deepest: int) -> FloatArray:
    return _floats([[*row, *[None] * (deepest - len(row))] for row in rows], size, deepest)


def _floats(values: Any, *shape: int) -> FloatArray:
    """Numbers, or lists of them; None is NaN."""
    return _shaped(np.array(values, dtype=np.float64), shape)


def _integers(values: Any, *shape: int) -> IntArray:
    return _shaped(np.array(values, dtype=np.int64), shape)


def _shaped(read: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if read.size and read.shape != shape:
        raise ValueError(f"values of shape {read.shape}, not {shape}")
    return read.reshape(shape)  # lists of nothing say less of their shape
