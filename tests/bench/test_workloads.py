"""Workloads: built in or from files, spread over sources, encoded as one chat turn."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.bench.workloads import encode, read_workloads
from adaptspec.errors import CorpusError
from adaptspec.models.chat.chat_template import ChatTemplate


def test_built_in_prompts_cover_every_task() -> None:
    """Without any file there is still one prompt of each of the ten tasks."""
    workloads = read_workloads(None, 5)
    assert len(workloads) == 10
    assert all(len(prompts) == 1 for prompts in workloads.values())


def test_prompts_are_spread_over_the_file(tmp_path: Path) -> None:
    """Files are sorted by source, so taking the first few would miss most sources."""
    lines = [{"id": str(i), "task": "chat", "source": f"s{i // 10}", "prompt": f"p{i}"} for i in range(40)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    chosen = read_workloads(tmp_path, 4)["chat"]
    assert [prompt.source for prompt in chosen] == ["s0", "s1", "s2", "s3"]


def test_an_empty_folder_says_what_to_give(tmp_path: Path) -> None:
    """No prompts: an error that names the format."""
    with pytest.raises(CorpusError, match="task, source and prompt"):
        read_workloads(tmp_path, 1)


def test_long_prompts_keep_their_end(tokenizer: PreTrainedTokenizerFast) -> None:
    """The newest part of a prompt that does not fit matters most: the answer's turn stays in."""
    prompt = read_workloads(None, 1)["chat"][0]
    whole, cut = encode(ChatTemplate(tokenizer), prompt, 10**6), encode(ChatTemplate(tokenizer), prompt, 12)
    assert cut == whole[-12:]


def test_a_base_model_goes_on_from_the_text_itself(tokenizer: PreTrainedTokenizerFast) -> None:
    """Its tokenizer has no chat template."""
    base = copy.deepcopy(tokenizer)
    base.chat_template = None
    prompt = read_workloads(None, 1)["chat"][0]
    assert encode(ChatTemplate(base), prompt, 10**6) == tuple(base.encode(prompt.text))
    assert encode(ChatTemplate(base), prompt, 5) == tuple(base.encode(prompt.text)[-5:])
