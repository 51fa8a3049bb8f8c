"""Counts a corpus for the counts drafter: the contexts that save most, in the tokens of one model."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.drafting.ngram_index import CORPUS_VERSION, MAX_CONTEXT, all_contexts
from adaptspec.errors import CorpusError
from adaptspec.files import write_file
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.tokenization import fingerprint, load_tokenizer
from adaptspec.quantity import quantity
from adaptspec.training.conversations import rendered
from adaptspec.training.corpus import Record, read_corpus

MIN_COUNT = 4  # times that a context must occur
_FOLLOWING = 8  # tokens kept after one context
_BATCH = 512  # records


@dataclass(frozen=True)
class _Order:
    """What follows the contexts of one length. Pairs of context and token are in the order of contexts."""

    contexts: npt.NDArray[np.uint64]  # [C] ascending
    first: IntArray  # [C] the first pair of each context
    tokens: IntArray  # [N]
    counts: IntArray  # [N]
    gains: FloatArray  # [C] nats that the context saves on the corpus, against the next shorter context

    @property
    def owner(self) -> IntArray:
        """[N] the context of each pair."""
        sizes = np.diff(np.append(self.first, len(self.tokens)))
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def shares(self) -> FloatArray:
        """[N] the share of each token among those that follow its context."""
        return np.asarray(self.counts / np.add.reduceat(self.counts, self.first)[self.owner])


def count_corpus(corpus: Path, model: str, out: Path, console: Console, *, contexts: int, max_tokens: int) -> None:
    """Count the records to train on and write the `contexts` that save most to a file.

    Conversations with an answer are written by the model's chat template, or as plain text if it has none.

    Raises:
        CorpusError: the corpus cannot be read, is too short, or has a conversation that the template does not take.
        ModelError: the tokenizer cannot be read.
    """
    template = ChatTemplate(load_tokenizer(model))
    records = read_corpus(corpus).train
    if template.source is None:
        console.print(f"warning: {model} has no chat template; conversations are counted as plain text")
    console.print(f"{quantity(len(records), 'record', form=',')}; tokenizing")
    tokens = np.fromiter(_tokens(template, records, max_tokens), dtype=np.int64)
    arrays = counted(tokens, contexts)
    archive = io.BytesIO()
    about = {"version": np.array(CORPUS_VERSION), "tokenizer": np.array(fingerprint(template.tokenizer))}
    np.savez_compressed(archive, allow_pickle=False, **about, **arrays)
    write_file(out, archive.getbuffer())
    size = out.stat().st_size / 2**20
    console.print(f"{out}: {len(arrays['contexts']):,} contexts of {len(tokens):,} tokens, {size:.1f} MiB")


def _tokens(template: ChatTemplate, records: Sequence[Record], max_tokens: int) -> Iterator[int]:
    """The tokens of all records, thinned evenly to about `max_tokens`."""
    encode = template.tokenizer.backend_tokenizer.encode_batch
    counted_tokens = 0
    for start in range(0, len(records), _BATCH):
        if counted_tokens * len(records) > max_tokens * (start + 1):
            continue
        texts = [_text(template, record) for record in records[start : start + _BATCH]]
        for encoded in encode(texts, add_special_tokens=False):
            counted_tokens += len(encoded.ids)
            yield from encoded.ids


def _text(template: ChatTemplate, record: Record) -> str:
    """A record as the model reads and writes it, special tokens included."""
    tokenizer: PreTrainedTokenizerFast = template.tokenizer
    plain = f"{record.completion}{tokenizer.eos_token or ''}\n"
    if record.prompt is None:
        return plain
    if template.source is None:
        return f"{record.prompt}\n{plain}"
    messages = list(record.messages)
    if record.completion:
        messages.append({"role": "assistant", "content": record.completion})
    return rendered(template, record, messages, answer=False)


def counted(tokens: IntArray, most: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `CorpusTable` for a text [N]: the `most` contexts that save most nats.

    Raises CorpusError: no context occurs often enough.
    """
    orders: list[_Order] = []
    hashes = all_contexts(tokens)
    for length in range(1, MAX_CONTEXT + 1):
        orders.append(_order(tokens, hashes, length, orders[-1] if orders else None))
    gains = np.concatenate([order.gains for order in orders])
    if not len(gains):
        raise CorpusError(f"the corpus is too short: nothing occurs {MIN_COUNT} times in it; give a larger one")
    least = np.sort(gains)[-min(most, len(gains))]
    parts = [_chosen(order, order.gains >= least) for order in orders]
    contexts, following, chosen, shares = (np.concatenate(each) for each in zip(*parts, strict=True))
    contexts, at = np.unique(contexts, return_index=True)  # one of two with the same hash
    owner = np.repeat(np.arange(len(following)), following)
    index = np.full(len(following), -1)
    index[at] = np.arange(len(at))
    kept = index[owner] >= 0
    by_context = np.argsort(index[owner[kept]], kind="stable")
    kind = np.uint16 if chosen.max() < 2**16 else np.uint32
    return {
        "contexts": contexts,
        "following": following[at].astype(np.uint8),
        "tokens": chosen[kept][by_context].astype(kind),
        "shares": shares[kept][by_context].astype(np.uint8),
    }


def _order(tokens: IntArray, hashes: Sequence[npt.NDArray[np.uint64]], length: int, shorter: _Order | None) -> _Order:
    """The contexts of `length` tokens; `shorter` are those of one less, which are the endings of these."""
    context, token = hashes[length - 1][length:], tokens[length:]
    by_context = np.argsort(context, kind="stable")
    context = context[by_context]
    begins = np.flatnonzero(np.append(True, context[1:] != context[:-1])) if len(context) else np.zeros(0, np.int64)
    sizes = np.diff(np.append(begins, len(context)))
    often = np.repeat(sizes >= MIN_COUNT, sizes)
    positions, context = by_context[often] + length, context[often]
    by_token = np.lexsort((tokens[positions], context))
    positions, context, token = positions[by_token], context[by_token], tokens[positions[by_token]]
    new = np.append(True, (context[1:] != context[:-1]) | (token[1:] != token[:-1]))[: len(context)]
    pair = np.flatnonzero(new)
    counts = np.diff(np.append(pair, len(context)))
    contexts, first = np.unique(context[pair], return_index=True)
    order = _Order(contexts, first, token[pair], counts, np.zeros(len(contexts)))
    if not len(contexts):
        return order
    expected: FloatArray = np.full(len(pair), 1.0 / (1 + tokens.max()))
    if shorter is not None:
        expected = _expected(shorter, hashes[length - 2][positions[pair[first]]], order)
    saved = np.add.reduceat(counts * np.log(order.shares / expected), first)
    return _Order(contexts, first, order.tokens, counts, saved)


def _expected(shorter: _Order, endings: npt.NDArray[np.uint64], order: _Order) -> FloatArray:
    """[N] the share of each token of an order after the shorter context, `endings` [C], that ends its context."""
    stride = 1 + int(shorter.tokens.max())
    known = shorter.owner * stride + shorter.tokens
    wanted = np.searchsorted(shorter.contexts, endings)[order.owner] * stride + order.tokens
    return np.asarray(shorter.shares[np.searchsorted(known, wanted)])


def _chosen(order: _Order, chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], ...]:
    """Contexts, how many tokens follow each, those tokens, likeliest first, and their shares of 255."""
    if not chosen.any():
        return order.contexts[:0], order.first[:0], order.tokens[:0], order.tokens[:0]
    owner, shares = order.owner, np.rint(255.0 * order.shares).astype(np.int64)
    likely = np.lexsort((-order.counts, owner))
    rank = np.arange(len(owner)) - order.first[owner]
    kept = likely[(rank < _FOLLOWING) & chosen[owner] & (shares[likely] > 0)]
    following = np.bincount(owner[kept], minlength=len(order.contexts))
    whole = following > 0
    return order.contexts[chosen & whole], following[chosen & whole], order.tokens[kept], shares[kept]
