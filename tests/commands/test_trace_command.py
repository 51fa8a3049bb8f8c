"""`adaptspec trace export`: from a rotated journal on disk to a file that viewers open."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.journal import JournalHeader, RequestFinished, RequestStarted, to_line
from tests.control.helpers import record

HEADER = JournalHeader("0.1", {"name": "t"}, "f00d", ["draft-model"], ["goodput"], "goodput", ["code"], {}, clock=1e9)


def test_a_rotated_journal_becomes_one_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, and each slice within the one around it; the message says what is in it."""
    entries = [RequestStarted("r", "goodput", "code", 4, 99, None, 0.0)]
    entries += [  # type: ignore[misc]
        replace(record([2], [1]), number=number, request_ids=("r",), ended=6.0 + number) for number in range(30)
    ]
    entries += [RequestFinished("r", "goodput", "length", 61, 30, 60, 30, 31.0, 0.0, 0.5, 35.5)]  # type: ignore[list-item]
    lines = [to_line(entry) + "\n" for entry in entries]
    path, out = tmp_path / "rounds.jsonl", tmp_path / "trace.json.gz"
    path.with_name("rounds.jsonl.1").write_text("".join([to_line(HEADER) + "\n", *lines[:20]]))
    path.write_text("".join([to_line(HEADER) + "\n", *lines[20:]]))
    assert main(["trace", "export", "--journal", str(path), "-o", str(out)]) == 0
    assert "30 rounds, 1 request;" in capsys.readouterr().err
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    rounds = [event for event in events if event["name"] == "round"]
    assert [event["args"]["number"] for event in rounds] == list(range(30))
    starts = [event["ts"] for event in rounds]
    assert starts == sorted(starts)
