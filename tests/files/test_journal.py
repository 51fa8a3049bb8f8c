"""Journals: what is written is read, value for value; a cut line and other files next to a journal do no harm.

What lines look like, what older versions wrote and what each damage is answered is in the contracts `samples` and
`damage`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adaptspec.arrays import EMPTY_INT
from adaptspec.decision import Expected
from adaptspec.errors import JournalError
from adaptspec.journal import Entry, LinesDropped, read_entries, to_line
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from tests.control.helpers import record
from tests.files.samples import FINISHED, HEADER, SAMPLES, STARTED
from tests.records import read_journal, same
from tests.trees import SIBLING, branching, forests

FLOATS = st.floats(allow_nan=True, allow_infinity=False)
SECONDS = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**40)
DRAFTS = st.builds(DraftWork, st.text(max_size=8), COUNTS, st.lists(COUNTS, max_size=3).map(tuple), SECONDS)
WORK = st.builds(RoundWork, COUNTS, COUNTS, SECONDS, st.lists(DRAFTS, max_size=2).map(tuple), COUNTS, st.booleans())
# Numbers that mean something to the running controller only: the lines of requests name task and policy.
NOT_WRITTEN = {"decision", "index", "tasks", "running"}


def write(path: Path, entries: Iterable[Entry]) -> None:
    path.write_text("".join(f"{to_line(entry)}\n" for entry in entries), encoding="utf-8")


def reread(entry: Entry) -> Entry:
    """An entry after it was written to a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "j", [entry])
        (read,) = read_entries(Path(folder) / "j")
        return read


@st.composite
def rounds(draw: st.DrawFn) -> RoundRecord:
    """Any round, empty ones too."""
    rows, deepest = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    whole = {
        name: draw(arrays("int64", rows, elements=st.integers(-1, 2**40)))
        for name in ("rows", "depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
    }
    drafters = draw(st.integers(0, 2))
    reals = arrays("float64", rows, elements=FLOATS)
    hindsight = st.none() | arrays("int64", (drafters, rows), elements=st.integers(-1, 9))
    return RoundRecord(
        number=draw(COUNTS),
        request_ids=tuple(draw(st.lists(st.text(max_size=8), min_size=rows, max_size=rows))),
        confidence=draw(arrays("float64", (rows, deepest), elements=FLOATS)),
        entropy=draw(arrays("float64", (rows, deepest), elements=FLOATS)),
        work=draw(WORK),
        timing=Timing(draw(FLOATS), draw(FLOATS), draw(SECONDS)),
        shadow=draw(hindsight),
        shadow_drafted=draw(hindsight),
        expected=Expected(draw(FLOATS), draw(reals), draw(FLOATS)) if draw(st.booleans()) else None,
        stated=draw(arrays("float64", (drafters, rows, deepest), elements=FLOATS)) if draw(st.booleans()) else None,
        ended=draw(FLOATS),
        **whole,
    )


@given(rounds())
@settings(max_examples=60, deadline=None)
def test_a_round_is_read_as_it_was_written(original: RoundRecord) -> None:
    """The journal is evidence: replay reads what the engine recorded, to the last bit."""
    assert same(original, reread(original))


@given(forests())
@settings(max_examples=150, deadline=None)
def test_trees_are_read_as_they_were_written(original: RoundRecord) -> None:
    """Drafter, parent, rank, confidence and acceptance of every node, also next to rows that are chains."""
    read = reread(original)
    assert isinstance(read, RoundRecord)
    assert same(replace(original, tasks=EMPTY_INT), read)
    assert read.nodes.tolist() == original.nodes.tolist()
    assert read.kept_on_chain.tolist() == original.kept_on_chain.tolist()


def test_a_branching_round_without_rows_is_read() -> None:
    """Its only request was aborted while it ran."""
    read = reread(branching(SIBLING).take(np.zeros(0, dtype=np.int64)))
    assert isinstance(read, RoundRecord)
    assert read.branches is not None
    assert (read.request_ids, len(read.branches.tree.token)) == ((), 0)


def test_the_sample_has_every_field_of_a_round() -> None:
    """A field that is added to `RoundRecord` belongs into a new sample; else it could be lost without notice."""
    read = list(read_journal(SAMPLES / "journal-5.jsonl"))
    filled = {field.name for field in fields(RoundRecord) for entry in read if _is_filled(getattr(entry, field.name))}
    assert filled == {field.name for field in fields(RoundRecord)} - NOT_WRITTEN


def _is_filled(value: object) -> bool:
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def test_rotated_files_are_read_oldest_first_without_a_cut_line(tmp_path: Path) -> None:
    """Ten files are sorted by number, not by letters; a crash in the middle of a line loses that line only."""
    path = tmp_path / "j"
    first, second, third = (replace(record([1], [1]), number=number) for number in (1, 2, 4))
    write(path, [HEADER, third, FINISHED])
    write(tmp_path / "j.2", [HEADER, second, LinesDropped(3)])
    write(tmp_path / "j.10", [HEADER, STARTED, first])
    (tmp_path / "j.old").write_text("not of it")
    with path.open("a") as file:
        file.write(to_line(first)[:40])
    entries = [entry for entry in read_entries(path) if not isinstance(entry, RoundRecord)]
    assert entries == [HEADER, STARTED, HEADER, LinesDropped(3), HEADER, FINISHED]
    assert [entry.number for entry in read_journal(path)] == [1, 2, 4]


def test_files_without_a_number_are_not_read(tmp_path: Path) -> None:
    for name in ("j", "j.gz", "j.²", "j.1x"):
        (tmp_path / name).write_text(f"{to_line(HEADER)}\n")
    assert list(read_entries(tmp_path / "j")) == [HEADER]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="nowhere: no such file; name the one that was given to --journal"):
        list(read_journal(tmp_path / "nowhere"))


def test_lines_before_a_damaged_one_are_read(tmp_path: Path) -> None:
    """The error comes at its line, and is short however long the line is."""
    (tmp_path / "j").write_text(f"{to_line(HEADER)}\n{{{'x' * 100_000}\n{to_line(STARTED)}\n")
    entries = read_entries(tmp_path / "j")
    assert next(entries) == HEADER
    with pytest.raises(JournalError, match=r"j:2: ") as caught:
        next(entries)
    assert len(str(caught.value)) < 1000


def test_a_sample_that_is_cut_anywhere_gives_its_whole_lines(tmp_path: Path) -> None:
    sample = (SAMPLES / "journal-5.jsonl").read_bytes()
    whole = list(read_entries(SAMPLES / "journal-5.jsonl"))
    for end in range(0, len(sample), 7):
        (tmp_path / "j").write_bytes(sample[:end])
        read = list(read_entries(tmp_path / "j"))
        assert len(read) == sample[:end].count(b"\n")
        assert all(map(same, read, whole))


def test_a_flipped_byte_is_read_or_refused_with_its_line(tmp_path: Path) -> None:
    """Never another error than that of a journal."""
    sample = (SAMPLES / "journal-5.jsonl").read_bytes()
    refused = 0
    for index in range(0, len(sample), 3):
        (tmp_path / "j").write_bytes(sample[:index] + bytes([sample[index] ^ 0x14]) + sample[index + 1 :])
        try:
            list(read_entries(tmp_path / "j"))
        except JournalError as error:
            refused += 1
            assert str(error).startswith(str(tmp_path / "j"))  # noqa: PT017 - it is no error that a flip is read
    assert refused > len(sample) // 6
