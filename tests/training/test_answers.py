"""Drafters learn from the target's own answers, whether they are made at once or in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, CorpusError, EngineError
from adaptspec.request import SamplingParams
from adaptspec.results import Delta
from adaptspec.training.answers import OPENING, SHARD, Answers, AnswerSpeed, encode_prompts
from adaptspec.training.corpus import Record
from adaptspec.training.teacher import Teacher, load_teacher

QUIET = Console(quiet=True)


def conversation(*contents: str) -> Record:
    roles = ["user" if i % 2 == 0 else "assistant" for i in range(len(contents))]
    return Record(tuple({"role": r, "content": c} for r, c in zip(roles, contents, strict=True)), "unused")


@pytest.fixture(scope="module")
def teacher(target_path: Path) -> Teacher:
    return load_teacher(str(target_path), torch.device("cpu"))


@pytest.fixture(scope="module")
def engine(target_path: Path) -> Engine:
    return Engine.from_pretrained(str(target_path), None)


def test_conversations_are_written_by_the_template_and_texts_are_continued(teacher: Teacher, engine: Engine) -> None:
    """Those that leave no room for an answer are left out."""
    text = Record((), "once upon a time " * 20)
    records = [conversation("hello"), conversation("a", "b", "c"), text, conversation("long " * 80)]
    encoded = encode_prompts(teacher, records, max_tokens=8)
    assert [record for record, _ in encoded] == records[:3]
    hello, turns, opening = (list(prompt) for _, prompt in encoded)
    assert hello == engine.chat([{"role": "user", "content": "hello"}])
    assert turns == engine.chat([dict(message) for message in records[1].messages])
    assert opening == teacher.tokenizer.encode(text.completion)[:OPENING]


def test_a_conversation_that_the_template_refuses_is_named(target_path: Path) -> None:
    strict = load_teacher(str(target_path), torch.device("cpu"))
    strict.tokenizer.chat_template = "{{ raise_exception('no narrator') }}"
    record = Record(({"role": "narrator", "content": "x"}, {"role": "user", "content": "Hi"}), "", where="c.jsonl:7")
    with pytest.raises(CorpusError, match=r"c\.jsonl:7: the model's chat template does not take .*Hi.*no narrator"):
        encode_prompts(strict, [record], max_tokens=8)


def test_answers_are_the_targets_own_in_whatever_parts_they_are_made(engine: Engine, tmp_path: Path) -> None:
    """Greedy and sampled ones in turn; an answer that is there is not made again."""
    prompts = [tuple(engine.tokenizer.encode(f"say {i}")) for i in range(SHARD + 3)]
    answers = Answers(tmp_path / "whole", prompts, 6, 0.7)
    assert answers.missing_answers == SHARD + 3
    answers.write(engine, QUIET)
    assert answers.missing_answers == 0
    sampling = [SamplingParams(6, temperature=0.7 * (i % 2), seed=i) for i in range(len(prompts))]
    expected = engine.generate(prompts, sampling)
    assert answers.texts() == [(prompt, tuple(one.tokens)) for prompt, one in zip(prompts, expected, strict=True)]
    parts = Answers(tmp_path / "parts", prompts, 6, 0.7)
    parts.write(engine, QUIET)
    (last,) = (tmp_path / "parts").glob(f"*{SHARD}.npz")
    last.unlink()
    again = Answers(tmp_path / "parts", prompts, 6, 0.7)
    assert again.missing_answers == 3
    again.write(engine, QUIET)
    assert np.array_equal(again.tokens(), answers.tokens())


def test_an_answer_that_fails_is_not_learned_from(
    target_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.from_pretrained(str(target_path), None)
    step = engine.core.step

    def failing() -> list[Delta]:
        ended = [delta for delta in step() if delta.completion is not None]
        return [replace(one, completion=replace(one.completion, error="out of memory")) for one in ended]

    monkeypatch.setattr(engine.core, "step", failing)
    with pytest.raises(EngineError, match="the answer to prompt 1 fails: out of memory"):
        Answers(tmp_path, [(5, 6, 7)], 4, 0.0).write(engine, QUIET)
    assert not list(tmp_path.iterdir())


def test_damaged_answers_are_named(engine: Engine, tmp_path: Path) -> None:
    """With what to do about them."""
    answers = Answers(tmp_path, [(5, 6, 7)], 4, 0.0)
    answers.write(engine, QUIET)
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"\.npz: is damaged .* delete it"):
        answers.texts()


def test_reading_prompts_does_not_count_as_decoding(engine: Engine, tmp_path: Path) -> None:
    """The clock: one second of reading, then one of reading again and four of decoding 16 tokens of each answer."""
    answers = Answers(tmp_path, [(5, 6, 7), (8, 9)], 100, 0.0)
    times = iter([0.0, 1.0, 6.0])
    speed = answers.measure_speed(engine, clock=lambda: next(times))
    assert speed == AnswerSpeed(prompt_seconds=0.5, tokens_per_second=8.0)
    assert speed.seconds(10, 80) == 10 * (0.5 + 10.0)
