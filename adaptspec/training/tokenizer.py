"""Training the pair's tokenizer: byte-level BPE, digits split, with the chat template."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from adaptspec.training.corpus import CHAT_TEMPLATE, END, SPECIAL_TOKENS


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
    parts: list[npt.NDArray[np.uint16]] = []
    for start in range(0, len(texts), chunk):
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts[start : start + chunk])
        parts.append(np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encodings]))
    return np.concatenate(parts)
