"""Prompts for the report: where they come from and how they are chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Record
from adaptspec.training.prompts import SAMPLES, Prompt, choose_prompts, read_prompts, spread


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


def test_without_a_file_held_out_records_with_a_prompt_are_taken() -> None:
    """Running text has no prompt to answer."""
    records = [Record("chat", "svamp", "Hi", "Hello"), Record("story", "asp", None, "Once")]
    assert choose_prompts(None, records) == [Prompt("chat", "svamp", "Hi")]


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"task": "chat"}', _line(prompt=[1])])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    """The user can find it."""
    path = tmp_path / "p.jsonl"
    path.write_text(_line() + line)
    with pytest.raises(CorpusError, match=r"p\.jsonl:2: "):
        read_prompts(path)


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


def test_every_task_has_a_built_in_sample() -> None:
    """The report shows text for all ten tasks of the corpus."""
    tasks = ["chat", "code", "instruction", "json", "math", "rag", "story", "summarize", "template", "translate"]
    assert [prompt.task for prompt in SAMPLES] == tasks
