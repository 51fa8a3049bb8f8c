"""Templates of popular families, written anew with the structure of the originals, and tokenizers that have them."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from adaptspec.models.chat.chat_template import ChatTemplate
from tests.conftest import tiny_tokenizer

FOLDER = Path(__file__).parent / "templates"
FAMILIES = sorted(file.stem for file in FOLDER.glob("*.jinja"))
# What a template writes between angle brackets is a token of its family.
_TOKEN = re.compile("<[|\uff5c][^<>'{}\\s]+[|\uff5c]>|<(?:start|end)_of_turn>")
_TURNS = [f"<|{role}|>" for role in ("system", "user", "assistant", "tool")]  # that phi4 puts together


def source_of(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")


def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """A byte tokenizer with the family's template and the control tokens in it; <s> and </s> open and end texts."""
    tokenizer, source = tiny_tokenizer(), source_of(family)
    written = sorted({*_TOKEN.findall(source), *_TURNS})
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": written})
    tokenizer.chat_template = source
    return tokenizer


def template_of(family: str, *, sanitize: bool = False) -> ChatTemplate:
    return ChatTemplate(tokenizer_of(family), sanitize=sanitize)
