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


def test_the_split_depends_on_the_content_alone(corpus_path: Path, tmp_path: Path) -> None:
    """A resumed run, or a compressed copy of the corpus, must have the same records."""
    packed = tmp_path / "corpus.jsonl.xz"
    packed.write_bytes(lzma.compress(corpus_path.read_bytes()))
    corpus, copy = read_corpus(corpus_path), read_corpus(packed)
    assert corpus == copy
    assert len(corpus.held_out) == 40
    assert sum(corpus.sources.values()) == len(corpus.train) == 360


def test_lines_of_all_forms_are_read(tmp_path: Path) -> None:
    """Conversations up to the last message of the user, with their answer; prompts without one; running text."""
    path, user = tmp_path / "c.jsonl", {"role": "user", "content": "Hi"}
    lines = [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {**user, "name": "Ann"},
                {"role": "assistant", "content": "Yes?"},
            ]
        },
        {
            "messages": [user, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}],
            "task": "chat",
        },
        {"prompt": "Say yes", "source": "mine"},
        {"prompt": "Say no", "completion": "No", "src": "mine"},
        {"text": "Once there was a fox."},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = read_corpus(path).train
    assert [record.prompt for record in records] == ["Hi", "Bye", "Say yes", "Say no", None]
    assert [record.completion for record in records] == ["Yes?", "", "", "No", "Once there was a fox."]
    assert records[0].messages == ({"role": "system", "content": "Be brief."}, user)
    assert [record.task for record in records] == ["other", "chat", "other", "other", "other"]
    assert [record.source for record in records] == ["", "", "mine", "mine", ""]
    assert records[1].where == f"{path}:2"


def test_a_text_file_has_a_record_for_each_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("The first\nparagraph.\n\n \nThe second.\n")
    assert [record.completion for record in read_corpus(path).train] == ["The first\nparagraph.", "The second."]


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
        ('{"task": 1, "text": "b"}', "task must be a string, not int"),
        ('{"task": "a", "src": "b"}', "a line needs messages, or prompt, or text"),
        ('{"messages": "Hi"}', "messages must be a list of objects such as"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\]: a line needs content"),
        ('{"messages": [{"role": "system", "content": "Hi"}]}', "messages need one of the user"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}', "not tool"),
        ('{"prompt": "a", "completion": null}', "completion must be a string, not NoneType"),
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
