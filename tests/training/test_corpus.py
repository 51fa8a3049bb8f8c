"""Reading a corpus: the same split every time, shares by source, and errors that name the line."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Prompt, read_corpus, read_prompts, spread


def test_the_split_and_the_thinning_depend_on_the_text_alone(corpus_path: Path, tmp_path: Path) -> None:
    """A resumed run, or a compressed copy of the corpus, must see the same records."""
    packed = tmp_path / "corpus.jsonl.xz"
    packed.write_bytes(lzma.compress(corpus_path.read_bytes()))
    weights = {"synthetic": 0.5}
    assert read_corpus(corpus_path, weights, 0.1) == read_corpus(packed, weights, 0.1)


def test_a_source_weight_keeps_that_share_and_touches_nothing_else(corpus_path: Path) -> None:
    """source_weights thins one source only, and never the held-out records."""
    whole, thin = read_corpus(corpus_path, None, 0.1), read_corpus(corpus_path, {"synthetic": 0.5}, 0.1)
    assert thin.held_out == whole.held_out
    assert thin.sources["svamp"] == whole.sources["svamp"]
    assert 0.35 < thin.sources["synthetic"] / whole.sources["synthetic"] < 0.65
    assert read_corpus(corpus_path, {"synthetic": 0.0}).sources.keys() == {"svamp"}


def test_a_missing_empty_or_damaged_file_is_a_corpus_error(tmp_path: Path) -> None:
    """No traceback of the standard library reaches the user."""
    empty, damaged = tmp_path / "empty.jsonl", tmp_path / "damaged.jsonl.xz"
    empty.touch()
    damaged.write_bytes(b"not xz")
    for path, words in (
        (tmp_path / "none.jsonl", "cannot be read"),
        (damaged, "cannot be read"),
        (empty, "no records"),
    ):
        with pytest.raises(CorpusError, match=words):
            read_corpus(path)


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


def _line(**fields: object) -> str:
    return (
        json.dumps({"id": "x", "task": "chat", "source": "synthetic", "prompt": "Hi", "max_tokens": 8} | fields) + "\n"
    )


def test_a_file_and_a_folder_of_files_are_read(tmp_path: Path) -> None:
    """The workload format; fields it does not need are ignored."""
    (tmp_path / "a.jsonl").write_text(_line() + _line(prompt="line\u2028separator"))
    (tmp_path / "b.jsonl").write_text(_line(task="code", source="mbpp"))
    expected = [Prompt("chat", "synthetic", "Hi"), Prompt("chat", "synthetic", "line\u2028separator")]
    assert read_prompts(tmp_path / "a.jsonl") == expected
    assert read_prompts(tmp_path) == [*expected, Prompt("code", "mbpp", "Hi")]


def test_nothing_to_read_is_a_corpus_error(tmp_path: Path) -> None:
    """An empty folder, or a path that is not there."""
    with pytest.raises(CorpusError, match="no prompts"):
        read_prompts(tmp_path)
    with pytest.raises(CorpusError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")


@given(st.integers(0, 60), st.integers(1, 40))
def test_spread_keeps_order_and_reaches_both_ends(size: int, count: int) -> None:
    """Files are sorted by source: the first ones alone would be one source."""
    chosen = spread(range(size), count)
    assert len(chosen) == min(size, count)
    assert chosen == sorted(set(chosen))
    if chosen:
        assert chosen[0] == 0
        assert size - chosen[-1] <= max(1, -(-size // count))
