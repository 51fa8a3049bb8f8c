"""Loads the chat template of the target with its tokenizer, and adds their tokens to the target's description."""

from __future__ import annotations

from dataclasses import replace

from adaptspec.config import EngineConfig
from adaptspec.models.chat.chat_template import ChatTemplate, use_template
from adaptspec.models.gguf import is_gguf
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.runner import ModelInfo
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import load_tokenizer


def load_template(config: EngineConfig) -> ChatTemplate:
    """The chat template to use, with the target's tokenizer. Raises ModelError or ConfigError if it is unusable."""
    found = find_model(config.target_path, gguf=True)
    if not is_gguf(found):
        read_json(found / CONFIG)  # a folder without a model gets an error about that
    tokenizer = load_tokenizer(str(found))
    use_template(tokenizer, config.chat_template)
    template = ChatTemplate(tokenizer, config.default_chat_template_kwargs, sanitize=config.sanitize_control_tokens)
    template.check(config.chat_template)
    return template


def with_tokens(info: ModelInfo, template: ChatTemplate) -> ModelInfo:
    """Add the further EOS tokens of the tokenizer and its template, and the number of ids that have a token."""
    ids = template.tokenizer.get_vocab()
    further = (template.tokenizer.eos_token_id, ids.get(template.traits.end_of_turn or ""))
    valid = [token for token in further if token is not None and token < info.vocab_size]
    eos_token_ids = tuple(dict.fromkeys([*info.eos_token_ids, *valid]))
    known = min(max(ids.values(), default=-1) + 1, info.vocab_size)
    return replace(info, eos_token_ids=eos_token_ids, known_tokens=known)
