"""`adaptspec trace export`: from a rotated journal on disk to a file that viewers open."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.journal import to_line
from tests.telemetry.logs import journal


def rotated(folder: Path) -> Path:
    """A journal in two files, and how it goes on is in the newer one."""
    lines = [to_line(entry) + "\n" for entry in journal([(0, 30), (3, 20)], [2, 0, 5])]
    path = folder / "rounds.jsonl"
    (folder / "rounds.jsonl.1").write_text("".join(lines[:20]))
    path.write_text("".join([lines[0], *lines[20:]]))
    return path


def test_a_rotated_journal_becomes_one_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order; the message says what is in it."""
    out = tmp_path / "trace.json.gz"
    assert main(["trace", "export", "--journal", str(rotated(tmp_path)), "-o", str(out)]) == 0
    assert "30 rounds, 2 requests" in capsys.readouterr().err
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    numbers = [event["args"]["number"] for event in events if event["name"] == "round"]
    assert numbers == list(range(30))
