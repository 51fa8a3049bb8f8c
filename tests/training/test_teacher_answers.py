"""What is learned from is what the target says, whole or in parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, CorpusError
from adaptspec.request import SamplingParams
from adaptspec.training.corpus import Record
from adaptspec.training.teacher_answers import AnswerSettings, regenerate

SETTINGS = AnswerSettings(count=10, tokens=8, temperature=0.7)
RECORDS = [Record("chat", "synthetic", f"say {i}", "never read") for i in range(12)]
RECORDS += [Record("story", "synthetic", None, "no prompt"), Record("chat", "synthetic", "long " * 60, "no room")]


def made(folder: Path, target: Path, records: Sequence[Record] = RECORDS) -> np.ndarray:
    return regenerate(folder, str(target), records, SETTINGS, Console(quiet=True))


def test_answers_are_the_targets_own(target_path: Path, tmp_path: Path) -> None:
    """Every second greedy, the others drawn; prompts that leave no room are left out, and text without a prompt."""
    tokens = made(tmp_path, target_path)
    engine = Engine.from_pretrained(str(target_path), None)
    order = np.random.default_rng(0).permutation(13)
    prompts = [RECORDS[i if i < 12 else 13].prompt for i in order]
    chosen = [prompts[i * 13 // 10] for i in range(10)]
    expected: list[int] = []
    for number, prompt in enumerate(chosen):
        ids = engine.chat([{"role": "user", "content": str(prompt)}])
        if len(ids) + 8 <= 256:
            sampling = SamplingParams(8, temperature=0.7 * (number % 2), seed=number)
            expected += [*ids, *engine.generate([ids], sampling)[0].tokens]
    assert tokens.tolist() == expected


def test_damaged_answers_are_named(target_path: Path, tmp_path: Path) -> None:
    """With what to do about them, which is enough."""
    whole = made(tmp_path, target_path)
    damaged = sorted(tmp_path.glob("*.npy"))[-1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"\.npy: is damaged .* delete it"):
        made(tmp_path, target_path)
    damaged.unlink()
    assert np.array_equal(made(tmp_path, target_path), whole)


def test_a_corpus_without_prompts_is_refused(target_path: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="prompts"):
        made(tmp_path, target_path, RECORDS[12:])
