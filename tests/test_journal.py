"""Journal lines: what is written is what is read, value for value, and nothing broken passes for a round."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adaptspec.decision_tables import CANDIDATES
from adaptspec.errors import JournalError
from adaptspec.journal import (
    JournalHeader,
    LinesDropped,
    RequestFinished,
    RequestStarted,
    read_entries,
    read_journal,
    round_from_plain,
    round_to_plain,
    to_line,
)
from adaptspec.trees import Branches, Tree
from adaptspec.types import Expected, Provenance, RoundRecord, nobody
from tests.control.helpers import record
from tests.trees import CHAIN, SIBLING, STRAIGHT, branching, forests

FLOATS = st.floats(allow_nan=True, allow_infinity=False)
SECONDS = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**40)


@st.composite
def rounds(draw: st.DrawFn) -> RoundRecord:
    """Any round, empty ones too."""
    rows, deepest = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    whole = {
        name: draw(arrays(np.int64, rows, elements=st.integers(-1, 2**40)))
        for name in ("rows", "depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
    }
    explores, drafters = draw(st.booleans()), draw(st.integers(0, 2))
    reals = arrays(np.float64, rows, elements=FLOATS)
    small = arrays(np.int64, rows, elements=st.integers(-1, 9))
    scores = arrays(np.float64, (rows, deepest, len(CANDIDATES)), elements=FLOATS)
    hindsight = st.none() | arrays(np.int64, (drafters, rows), elements=st.integers(-1, 9))
    return RoundRecord(
        number=draw(COUNTS),
        request_ids=tuple(draw(st.lists(st.text(max_size=8), min_size=rows, max_size=rows))),
        confidence=draw(arrays(np.float64, (rows, deepest), elements=FLOATS)),
        entropy=draw(arrays(np.float64, (rows, deepest), elements=FLOATS)),
        prefill_tokens=draw(COUNTS),
        draft_steps=draw(COUNTS),
        caught_up=draw(COUNTS),
        verify_tokens=draw(COUNTS),
        draft_seconds=draw(SECONDS),
        verify_seconds=draw(SECONDS),
        total_seconds=draw(SECONDS),
        provenance=Provenance(draw(small), draw(reals), draw(small), draw(reals)) if explores else None,
        shadow=draw(hindsight),
        shadow_drafted=draw(hindsight),
        expected=Expected(draw(FLOATS), draw(reals), draw(FLOATS)) if draw(st.booleans()) else None,
        temperature_scores=draw(scores) if draw(st.booleans()) else None,
        stated=draw(arrays(np.float64, (drafters, rows, deepest), elements=FLOATS)) if draw(st.booleans()) else None,
        ended=draw(FLOATS),
        **whole,
    )


def same(a: Any, b: Any) -> bool:
    """Equal value for value, NaN and shapes and types included."""
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if isinstance(a, (RoundRecord, Provenance, Expected, Branches, Tree)):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return type(a) is type(b) and (bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


@given(rounds())
@settings(max_examples=60, deadline=None)
def test_a_round_comes_back_exactly(original: RoundRecord) -> None:
    """The journal is evidence: what replay reads is what the engine saw, to the last bit."""
    assert same(original, round_from_plain(json.loads(json.dumps(round_to_plain(original), allow_nan=False))))


@given(forests())
@settings(max_examples=150, deadline=None)
def test_trees_come_back_exactly(original: RoundRecord) -> None:
    """Who proposed which node, after which, how sure of it, and which of them stayed: also rows that are chains."""
    read = round_from_plain(json.loads(json.dumps(round_to_plain(original), allow_nan=False)))
    assert same(replace(original, tasks=nobody()), read)
    assert read.nodes.tolist() == original.nodes.tolist()
    assert read.straight.tolist() == original.straight.tolist()


def test_only_rows_that_branch_tell_of_a_tree() -> None:
    """A line grows by what is new in it; a round of chains has the line it always had."""
    plain = round_to_plain(branching(CHAIN, SIBLING))
    (tree,) = plain["branches"]
    assert tree == {
        "row": 1,
        "chain": 3,
        "parents": [-1, 3],
        "ranks": [1, 1],
        "confidence": [0.87, 0.86],
        "path": [3, 4],
    }
    assert "branches" not in round_to_plain(record([2, 3], [1, 0]))
    (united,) = round_to_plain(branching(replace(CHAIN, drafters=[0, 1])))["branches"]
    assert united == {
        "row": 0,
        "chain": 2,
        "parents": [],
        "ranks": [],
        "drafters": [0, 1],
        "confidence": [],
        "path": [0],
    }


def test_journals_from_before_trees_are_read(tmp_path: Path) -> None:
    """A server's week of evidence outlives its update."""
    path = tmp_path / "j"
    path.write_text(
        to_line(replace(HEADER, version=3)) + "\n" + to_line(FINISHED).replace(',"nodes":null', "") + "\n"
        # A round as version 3 wrote it.
        '{"type":"round","number":7,"prefill_tokens":0,"draft_steps":2,"caught_up":0,"verify_tokens":3,"decision":0,'
        '"draft_seconds":0.001,"verify_seconds":0.002,"total_seconds":0.003,"rows":[0],"depths":[2],"reasons":[0],'
        '"drafter":[0],"drafted":[2],"accepted":[1],"emitted":[2],"context":[9],"ended":null,"request_ids":["r"],'
        '"deepest":2,"confidence":[[0.5,0.25]],"entropy":[[1.0]]}\n'
    )
    header, finished, told = read_entries(path)
    assert isinstance(header, JournalHeader)
    assert finished == FINISHED
    assert isinstance(told, RoundRecord)
    assert told.branches is None
    assert told.nodes.tolist() == [2]


def test_every_field_of_a_round_is_written() -> None:
    """A field added to RoundRecord and forgotten here would be lost in silence.

    But for numbers that mean something to the running controller only: who ran is told by the requests' own lines.
    """
    full = replace(
        branching(STRAIGHT),
        provenance=Provenance(np.array([3]), np.array([0.25]), np.array([2]), np.array([1.5])),
        shadow=np.array([[4], [-1]]),
        shadow_drafted=np.array([[5], [-1]]),
        stated=np.array([[[np.nan] * 3], [[0.5, 0.25, np.nan]]]),
        expected=Expected(812.5, np.array([1.75]), 700.25),
        temperature_scores=np.full((1, 3, len(CANDIDATES)), 0.5),
        ended=17.25,
        tasks=nobody(),
        policies=nobody(),
    )
    assert all(getattr(full, field.name) is not None for field in fields(RoundRecord))
    assert same(round_from_plain(round_to_plain(full)), full)


def test_what_is_unknown_costs_no_room() -> None:
    """Shallow rows beside a deep one do not carry its width."""
    plain = round_to_plain(record([5, 1, 0], [2, 1, 0]))
    assert [len(row) for row in plain["confidence"]] == [5, 1, 0]


HEADER = JournalHeader("0.1", {"name": "t"}, "f00d", ["ngram"], ["off"], "off", ["code"], {"rows": [1]})
STARTED = RequestStarted("r", "off", None, 7, 64, None, 0.5)
FINISHED = RequestFinished("r", "off", "stop", 12, 12, 0, 0, 0.25, 0.01, None, 99.5)


def write(path: Path, *entries: Any) -> None:
    path.write_text("".join(to_line(entry) + "\n" for entry in entries))


def test_rotated_files_are_read_oldest_first_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    """Ten files sort by number, not by letters; a crash in the middle of a line loses that line only."""
    path = tmp_path / "j"
    write(path, HEADER, replace(record([1], [1]), number=4), FINISHED)
    write(tmp_path / "j.2", HEADER, replace(record([1], [1]), number=2), LinesDropped(3))
    write(tmp_path / "j.10", HEADER, STARTED, replace(record([1], [1]), number=1))
    (tmp_path / "j.old").write_text("not of it")
    with path.open("a") as file:
        file.write(to_line(record([1], [1]))[:40])
    entries = list(read_entries(path))
    assert [entry for entry in entries if not isinstance(entry, RoundRecord)] == [
        *(HEADER, STARTED),
        *(HEADER, LinesDropped(3)),
        *(HEADER, FINISHED),
    ]
    assert [entry.number for entry in read_journal(path)] == [1, 2, 4]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "null",
        "not json",
        '{"type": "round"}',
        '{"type": "poem", "lines": 4}',
        '{"type": "start", "id": "r"}',
        to_line(replace(HEADER, version=99)),
        to_line(replace(HEADER, version=1)),
        to_line(record([1, 1], [1, 0])).replace('"accepted":[1,0]', '"accepted":[1]'),
        to_line(record([1, 1], [1, 0])).replace('"confidence":[[0.8],[0.8]]', '"confidence":[[0.8]]'),
        to_line(record([1], [1])).replace('"deepest":1', '"deepest":0'),
    ],
)
def test_what_is_no_journal_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    """Replaying half of a file, or another file, would give figures nobody could trust."""
    path = tmp_path / "j"
    path.write_text(to_line(HEADER) + "\n" + line + "\n")
    with pytest.raises(JournalError, match=r"j:2: "):
        list(read_entries(path))


def test_a_missing_or_binary_file_says_so(tmp_path: Path) -> None:
    """Errors name the file."""
    with pytest.raises(JournalError, match="no such file"):
        list(read_journal(tmp_path / "nowhere"))
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(JournalError, match="b: cannot be read"):
        list(read_journal(tmp_path / "b"))


def test_an_older_journal_is_refused_for_its_age(tmp_path: Path) -> None:
    """Its rounds lack what is read now; the header says so before the first of them is called broken."""
    path = tmp_path / "j"
    write(path, replace(HEADER, version=1), record([1], [1]))
    with pytest.raises(JournalError, match="a journal of version 1; this program reads 3 to 4: write a new one"):
        list(read_entries(path))


HEADER = JournalHeader("0.1", {"name": "t"}, "f00d", ["draft-model"], ["goodput"], "goodput", ["code"], {"a": 1.5})


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"type":"header","costs":' + "[" * 100_000,
        to_line(HEADER).replace("1.5", "1e999"),
        to_line(HEADER).replace("1.5", "NaN"),
        to_line(HEADER).replace('["code"]', "7"),
        to_line(HEADER).replace('"pair":', '"couple":'),
        to_line(record([2], [1])).replace('"verify_seconds":', '"verify_seconds":1e999,"x":'),
        to_line(record([2], [1])).replace('"number":', '"number":1e999,"x":'),
        to_line(record([2], [1])).replace('"deepest":', '"deepest":1000000000000,"x":'),
        to_line(record([2], [1])).replace('"deepest":', '"deepest":-1,"x":'),
        to_line(record([2], [1])).replace('"depths":[2]', '"depths":[1e300]'),
        *(
            to_line(branching(SIBLING)).replace(*change)
            for change in (
                ('"row":0', '"row":1'),
                ('"row":0', '"row":0.5'),
                ('"chain":3', '"chain":-1'),
                ('"chain":3', '"chain":4'),
                ('"parents":[-1,3]', '"parents":[-1,4]'),
                ('"parents":[-1,3]', '"parents":[-2,3]'),
                ('"parents":[-1,3]', '"parents":[-1]'),
                ('"ranks":[1,1]', '"ranks":[1]'),
                ('"ranks":[1,1]', '"ranks":[1,1],"drafters":[0,0]'),
                ('"path":[3,4]', '"path":[3,5]'),
                ('"path":[3,4]', '"path":[3]'),
                ('"branches":[', '"branches":[7,'),
                ('"accepted":[2]', '"accepted":[1000000000000]'),
            )
        ),
        '{"type":"finish","id":7}',
        '{"type":["round"]}',
        "x" * 2**24,
    ],
)
def test_a_line_that_no_journal_has_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    """Deep, endless, infinite, or of other fields: one error, which names the line."""
    (tmp_path / "j").write_text(f"{to_line(HEADER)}\n{line}\n")
    entries = read_entries(tmp_path / "j")
    assert next(entries) == HEADER
    with pytest.raises(JournalError, match=r"j:2: ") as caught:
        next(entries)
    assert len(str(caught.value)) < 1000


def test_files_beside_a_journal_that_are_not_numbered_are_left_alone(tmp_path: Path) -> None:
    for name in ("j", "j.gz", "j.²", "j.1x"):
        (tmp_path / name).write_text(to_line(HEADER) + "\n")
    assert list(read_entries(tmp_path / "j")) == [HEADER]
