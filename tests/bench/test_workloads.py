"""Workloads: built in or from files, spread over sources, encoded as one chat turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.bench.workloads import encode, read_workloads
from adaptspec.errors import CorpusError
from adaptspec.models.chat.chat_template import ChatTemplate


def test_an_empty_folder_says_what_to_give(tmp_path: Path) -> None:
    """No prompts: an error that names the format."""
    with pytest.raises(CorpusError, match="task, source and prompt"):
        read_workloads(tmp_path, 1)


def test_long_prompts_keep_their_end(tokenizer: PreTrainedTokenizerFast) -> None:
    """The newest part of a prompt that does not fit matters most: the answer's turn stays in."""
    prompt = read_workloads(None, 1)["chat"][0]
    whole, cut = encode(ChatTemplate(tokenizer), prompt, 10**6), encode(ChatTemplate(tokenizer), prompt, 12)
    assert cut == whole[-12:]
