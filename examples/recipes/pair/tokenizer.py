"""The tokenizer and the markup of the pair, and the corpus as one flat array of token ids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from adaptspec.training.corpus import Record

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = ("<|pad|>", END, USER, ASSISTANT)
# A system message is folded into the first user turn: the corpus has no system turns, so a
# token of its own would be one the pair never saw.
CHAT_TEMPLATE = (
    "{%- set system = namespace(text='') -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'system' or m['role'] == 'developer' -%}"
    "{%- set system.text = system.text + m['content'] + '\\n\\n' -%}"
    "{%- elif m['role'] == 'user' -%}"
    "{{- '<|user|>\\n' + system.text + m['content'] + '<|end|>\\n' -}}{%- set system.text = '' -%}"
    "{%- elif m['role'] == 'assistant' -%}"
    "{{- '<|assistant|>\\n' + m['content'] + '<|end|>\\n' -}}"
    "{%- else -%}{{- raise_exception('role must be system, user or assistant, not ' + m['role']) -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
)


def markup(record: Record) -> str:
    """A record as the pair reads and writes it."""
    if not record.messages:
        return f"{record.completion}{END}\n"
    roles = {"user": USER, "assistant": ASSISTANT}
    turns = "".join(f"{roles.get(m['role'], USER)}\n{m['content']}{END}\n" for m in record.messages)
    return f"{turns}{ASSISTANT}\n{record.completion}{END}\n"


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocab_size` entries, special tokens included. Digits never merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=SPECIAL_TOKENS[0],
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str], chunk: int = 20_000) -> npt.NDArray[np.uint16]:
    """All texts, one after another, as one flat array of token ids (which must be below 65,536)."""
    batches = (texts[start : start + chunk] for start in range(0, len(texts), chunk))
    encodings = (one for batch in batches for one in tokenizer.backend_tokenizer.encode_batch_fast(batch))
    return np.concatenate([np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings])
