"""From text to batches: the pair's tokenizer, the corpus as one flat array of ids, and the order it is seen in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import END, SPECIAL_TOKENS

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


@dataclass(frozen=True)
class Windows:
    """A flat token array as batches of windows, in an order that is a function of the step alone: a run can resume.

    Each epoch cuts the array at a fresh offset and visits the windows in a fresh order.

    Raises:
        CorpusError: the tokens do not fill one batch.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    batch: int
    window: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self._count < self.batch:
            raise CorpusError(
                f"the corpus has {len(self.tokens):,} tokens and one batch needs {(self.batch + 2) * self.window:,}; "
                "give more text, or a smaller --batch or --window"
            )

    @property
    def _count(self) -> int:
        # One window less than fit, so that the epoch's offset never runs over the end.
        return (len(self.tokens) - 1) // self.window - 1

    def tokens_after(self, steps: int) -> int:
        return steps * self.batch * self.window

    def at(self, step: int) -> torch.Tensor:
        """Token ids [batch, window + 1] of step number `step`, int64."""
        first = step * self.batch
        rng = np.random.default_rng((self.seed, first // self._count))
        offset = int(rng.integers(self.window))
        picks = _permutation(rng, self._count)[np.arange(first, first + self.batch) % self._count]
        rows = [self.tokens[p * self.window + offset :][: self.window + 1] for p in picks]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def _permutation(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """A cheap pseudo-random order: i -> a * i + b mod count with a coprime to count."""
    a = int(rng.integers(count // 3, count)) | 1
    while math.gcd(a, count) != 1:
        a += 1
    return (np.arange(count, dtype=np.int64) * a + int(rng.integers(count))) % count
