"""A small corpus on disk: enough text for a vocabulary of 300 and a few batches."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from rich.console import Console


@pytest.fixture
def console() -> Console:
    """A console that nobody watches."""
    return Console(quiet=True)


@pytest.fixture(scope="session")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 records of two tasks and two sources."""
    rng = random.Random(0)
    words = [
        "the",
        "small",
        "red",
        "cat",
        "dog",
        "sat",
        "ran",
        "on",
        "under",
        "a",
        "mat",
        "tree",
        "and",
        "saw",
        "it",
        "then",
        "went",
        "home",
        "again",
        "happy",
    ]
    records = []
    for _ in range(400):
        text = " ".join(rng.choices(words, k=24))
        source = rng.choice(["synthetic", "svamp"])
        if rng.random() < 0.3:
            records.append({"task": "story", "src": source, "text": text})
        else:
            records.append({"task": "chat", "src": source, "prompt": text[:30], "completion": text[30:]})
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
