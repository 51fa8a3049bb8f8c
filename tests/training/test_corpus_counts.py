"""A corpus is counted as a text would be; the contexts that say most are kept; only their tokenizer may use them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adaptspec.drafting.ngram_index import CorpusTable, advance, read_corpus_table
from adaptspec.errors import ConfigError, CorpusError
from adaptspec.models.tokenization import fingerprint, load_tokenizer
from adaptspec.training.corpus import Record, read_corpus
from adaptspec.training.corpus_counts import count_corpus, counted

PHRASE = [10, 11, 12, 13, 14, 15]


def _votes(counts: CorpusTable, tokens: list[int]) -> dict[int, float]:
    contexts: list[int] = []
    for token in tokens:
        contexts = advance(contexts, token)
    return dict(counts.followers(contexts[len(tokens) - 1]))


def _text() -> list[int]:
    rng = np.random.default_rng(0)
    text: list[int] = []
    for i in range(60):
        text += [*PHRASE, 16 if i % 3 else 17, *rng.integers(20, 60, 5).tolist()]
    return text


def test_shares_are_those_of_the_corpus() -> None:
    counts = CorpusTable(counted(np.array(_text()), 10_000))
    votes = _votes(counts, [15])
    assert set(votes) == {16, 17}
    assert votes[16] / votes[17] == pytest.approx(2.0, rel=0.05)
    assert _votes(counts, [10, 11]) == pytest.approx({12: sum(votes.values())}, rel=0.02)
    assert _votes(counts, [99]) == {}


def test_a_corpus_without_repetition_is_refused() -> None:
    with pytest.raises(CorpusError, match="too short"):
        counted(np.arange(50), 100)


def _write_corpus(path: Path) -> list[Record]:
    """A corpus of conversations and running text, and its records in the order they are counted."""
    lines: list[dict[str, str]] = []
    for i in range(40):
        lines.append({"task": "chat", "src": "own", "prompt": f"Say hello {i % 5}", "completion": "hello hello world"})
        lines.append({"task": "story", "src": "own", "text": f"Once there was a fox {i % 3}."})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_corpus(path).train


def _counted_file(corpus: Path, model: Path, out: Path) -> tuple[dict[str, np.ndarray], str]:
    """The arrays that `train counts` writes, and what it prints."""
    said = io.StringIO()
    count_corpus(corpus, str(model), out, Console(file=said, width=500), contexts=500, max_tokens=10**6)
    with np.load(out) as found:
        return {name: found[name] for name in ("contexts", "following", "tokens", "shares")}, said.getvalue()


def _counted_texts(model: Path, texts: list[str]) -> dict[str, np.ndarray]:
    tokenizer = load_tokenizer(str(model))
    ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]
    return counted(np.array(ids), 500)


def _changed_tokenizer(source: Path, folder: Path, template: str | None) -> Path:
    """The files of a model's tokenizer, with another chat template or none."""
    tokenizer = load_tokenizer(str(source))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def test_conversations_are_counted_as_the_models_own_template_writes_them(tmp_path: Path, target_path: Path) -> None:
    """The contexts that a server looks up are in the markup of its model, not in that of the bundled pair."""
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [/{{ m['role'] }}] {% endfor %}"
    model = _changed_tokenizer(target_path, tmp_path / "model", template)
    records = _write_corpus(tmp_path / "corpus.jsonl")
    arrays, said = _counted_file(tmp_path / "corpus.jsonl", model, tmp_path / "counts.npz")
    texts = [
        f"{record.completion}<|end|>\n"
        if record.prompt is None
        else f"[user] {record.prompt} [/user] [assistant] {record.completion} [/assistant] "
        for record in records
    ]
    np.testing.assert_equal(arrays, _counted_texts(model, texts))
    assert "warning" not in said


def test_a_model_without_a_template_is_counted_as_plain_text_with_a_warning(tmp_path: Path, target_path: Path) -> None:
    model = _changed_tokenizer(target_path, tmp_path / "model", None)
    records = _write_corpus(tmp_path / "corpus.jsonl")
    arrays, said = _counted_file(tmp_path / "corpus.jsonl", model, tmp_path / "counts.npz")
    texts = [(f"{record.prompt}\n" if record.prompt else "") + f"{record.completion}<|end|>\n" for record in records]
    np.testing.assert_equal(arrays, _counted_texts(model, texts))
    assert said.count("has no chat template") == 1


def test_a_record_that_the_template_does_not_take_is_named(tmp_path: Path, target_path: Path) -> None:
    template = "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ raise_exception('no answers') }}{% endif %}"
    model = _changed_tokenizer(target_path, tmp_path / "model", template + "{% endfor %}")
    _write_corpus(tmp_path / "corpus.jsonl")
    with pytest.raises(
        CorpusError,
        match=r"corpus\.jsonl:1: the model's chat template does not take .*'Say hello \d' .no answers.*delete",
    ):
        _counted_file(tmp_path / "corpus.jsonl", model, tmp_path / "counts.npz")


def test_the_file_is_for_one_tokenizer(tmp_path: Path, target_path: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "counts.npz"
    line = json.dumps({"task": "chat", "src": "own", "prompt": "Say hello", "completion": "hello hello hello world"})
    corpus.write_text(f"{line}\n" * 200)
    count_corpus(corpus, str(target_path), out, Console(file=io.StringIO()), contexts=500, max_tokens=10**6)
    own = fingerprint(load_tokenizer(str(target_path)))
    assert len(read_corpus_table(out, own, 10**6))
    with pytest.raises(ConfigError, match=r"another tokenizer.*adaptspec train counts.*--counts none"):
        read_corpus_table(out, "other", 10**6)
    with pytest.raises(ConfigError, match=r"token id \d+, which the target does not"):
        read_corpus_table(out, own, 3)
    content = out.read_bytes()
    for broken in (content[:-200], b"", b"PK" + content[2:300]):
        out.write_bytes(broken)
        with pytest.raises(ConfigError, match="train counts"):
            read_corpus_table(out, own, 10**6)
    arrays = counted(np.array(_text()), 100)
    about = {"version": np.array(1), "tokenizer": np.array(own)}
    for name, wrong in (
        ("contexts", arrays["contexts"][::-1]),
        ("following", arrays["following"] + 1),
        ("tokens", None),
    ):
        changed = {key: array for key, array in {**arrays, name: wrong}.items() if array is not None}
        np.savez(out, **about, **changed)
        with pytest.raises(ConfigError, match="train counts"):
            read_corpus_table(out, own, 10**6)
    np.savez(out, **{**about, "version": np.array(2)}, **arrays)
    with pytest.raises(ConfigError, match="version 2"):
        read_corpus_table(out, own, 10**6)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_corpus_table(tmp_path / "nowhere.npz", own, 10**6)
