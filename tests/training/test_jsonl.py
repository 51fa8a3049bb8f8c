"""Reading JSONL: what is wrong is said with its line, and no traceback of the standard library gets out."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import read_corpus

GOOD = json.dumps({"task": "story", "src": "x", "text": "fine"}) + "\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"task": "a", "text": "b"}', "a line needs src$"),
        ('{"task": "a", "src": "b"}', "a line needs prompt and completion, or text"),
        ('{"task": "a", "src": "b", "text": "\\ud800"}', r"text holds \\ud800"),
        ('{"task": "a", "src": "b", "text": 3}', "text must be a string, not int"),
        ("[]", "a JSON list"),
        ("nonsense", "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_the_line_and_what_it_lacks_are_named(tmp_path: Path, line: str, words: str) -> None:
    """The user can mend it."""
    path = tmp_path / "c.jsonl"
    path.write_text(GOOD + line + "\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=words) as error:
        read_corpus(path)
    assert "c.jsonl:2: " in str(error.value)


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    """Editors leave one at the end."""
    plain, blank = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_text(GOOD)
    blank.write_text(GOOD + "\n  \n")
    assert read_corpus(plain) == read_corpus(blank)


def test_half_a_compressed_file_is_a_corpus_error(tmp_path: Path) -> None:
    """A download that broke off."""
    path = tmp_path / "c.jsonl.xz"
    path.write_bytes(lzma.compress((GOOD * 100).encode())[:-20])
    with pytest.raises(CorpusError, match="cannot be read"):
        read_corpus(path)
