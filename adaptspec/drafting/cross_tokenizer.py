"""Drafting with a model of another tokenizer: in shared tokens, or through text.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies" (TLI and SLEM). In both cases each row's text is also kept as draft tokens, and the draft model's cache
holds a prefix of these. Where the tokenizers disagree fewer tokens are accepted; the output never changes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.common_prefix import common_prefix
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Draft, DraftJob, Loaded, ModelDrafter
from adaptspec.drafting.head_drafter import HeadDrafter
from adaptspec.drafting.tree_builder import TreeBuilder
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.noise import token_keys
from adaptspec.models.runner import Forward, Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.models.tokenization import Spelling
from adaptspec.request import SamplingParams

# Drafts are in shared tokens if the tokenizers encode at least this share of a sample alike. At a share of 79 %, chains
# through text had 5 % more tokens accepted (40 prompts of the bundled target, a draft model of 0.6 M): about as much
# as branches gain.
MIN_ALIKE = 0.8
# Tokens that are encoded again when text is appended: it may change the tokens of the last word, but of none before,
# and words rarely have more tokens.
_LOOK_BACK = 8
# A score of probability 0. It is finite because entropies are sums over all tokens.
_IMPOSSIBLE = -1e9
_UTF8 = codecs.getincrementaldecoder("utf-8")


def make(loaded: Loaded, min_alike: float = MIN_ALIKE) -> ModelDrafter:
    """Make the drafter for a draft model, depending on how similar its tokenizer is to the target's."""
    if loaded.draft is None or loaded.tokenizers is None:
        return _same_tokenizer(loaded)
    target_tokenizer, draft_tokenizer = loaded.tokenizers
    if target_tokenizer.get_vocab() == draft_tokenizer.get_vocab():
        return _same_tokenizer(loaded)
    target, draft = Spelling(target_tokenizer, loaded.target.info), Spelling(draft_tokenizer, loaded.draft.info)
    alike = target.alike(draft)
    if alike < min_alike:
        inner = DraftModelDrafter(loaded.draft, loaded.draft.info.eos_token_ids)
        description = f"through text (the two tokenizers encode only {alike:.0%} of it alike)"
        return TextDrafter(inner, target, draft, description)
    shared = SharedVocabulary(loaded.draft, target, draft)
    description = f"in the {shared.count} tokens of both tokenizers (which encode {alike:.0%} of a text alike)"
    return SharedTokensDrafter(DraftModelDrafter(shared, loaded.eos_token_ids), target, draft, description)


def _same_tokenizer(loaded: Loaded) -> DraftModelDrafter:
    if isinstance(loaded.draft, HeadRunner):
        return HeadDrafter(loaded.draft, loaded.eos_token_ids)
    return DraftModelDrafter.make(loaded)


def shared_tokens(target: Spelling, draft: Spelling) -> dict[int, int]:
    """Draft ids of shared tokens, by target id. Tokens are shared if their bytes are equal; so are the EOS tokens."""
    shared = {token: draft.ids[word] for word, token in target.ids.items() if word in draft.ids}
    if target.end is not None and draft.end is not None:
        shared[target.end] = draft.end
    return shared


@dataclass
class _Row:
    """One row's text in draft tokens: the translation of its first `num_read` target tokens.

    The last `num_pending` of these end in an incomplete character, which has no draft tokens yet.
    """

    draft_tokens: list[int]
    num_read: int
    num_pending: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _UTF8("replace"))


class CrossTokenizerDrafter(ModelDrafter):
    """Base class of drafters with another tokenizer: keeps each row's text in draft tokens."""

    name = DraftModelDrafter.name

    def __init__(self, inner: DraftModelDrafter, target: Spelling, draft: Spelling, description: str) -> None:
        """`inner` drafts from draft tokens; `target` and `draft` are the two tokenizers."""
        self.runner, self.eos_token_ids, self.description = inner.runner, inner.eos_token_ids, description
        self._inner, self._target, self._draft = inner, target, draft
        self._opening = draft.opening  # draft tokens before every text
        self._rows: dict[int, _Row] = {}
        self._copied: dict[int, list[int]] = {}  # draft tokens in the cache of a row whose text was not encoded yet

    def cache_gap(self, row: int, length: int) -> int:
        """See `Drafter.cache_gap`. Each unread target token is assumed to be one draft token."""
        text = self._rows.get(row)
        return self._inner.cache_gap(row, length if text is None else len(text.draft_tokens) + length - text.num_read)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`."""
        return self._inner.propose(self._in_draft_tokens(job))

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:  # noqa: ARG002
        """See `Drafter.commit`. The draft tokens that remain are found by translating the text."""
        if row in self._rows:
            self._update_row(row, tokens)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`.

        The draft's tokens are compared with the new text when it is next encoded.
        """
        held = self.runner.length(source) if length else 0
        text, copied = self._rows.get(source), self._copied.get(source, [])
        self._rows.pop(target, None)
        self._copied[target] = list((copied if text is None else text.draft_tokens)[:held])
        self._inner.copy_prefix(source, target, len(self._copied[target]))

    def free(self, row: int) -> None:
        self._rows.pop(row, None)
        self._copied.pop(row, None)
        self._inner.free(row)

    def _in_draft_tokens(self, job: DraftJob) -> DraftJob:
        """The job in draft tokens, with depth 0 for rows that have none."""
        texts: list[list[int]] = [[]] * len(job.rows)
        for i in np.flatnonzero(job.depths).tolist():
            texts[i] = self._update_row(int(job.rows[i]), job.tokens[i])
        return replace(job, tokens=texts, depths=np.where([bool(text) for text in texts], job.depths, 0))

    def _update_row(self, row: int, tokens: list[int]) -> list[int]:
        """Translate a row's target `tokens` and return its draft tokens. The cache keeps the unchanged ones, except for
        the last.
        """
        text, copied = self._rows.get(row), self._copied.pop(row, None)
        if text is None:
            text = self._rows[row] = _Row([*self._opening], 0)
        kept = before = len(text.draft_tokens)
        if text.num_read < len(tokens):
            kept = self._translate(text, tokens[text.num_read :])
            text.num_read = len(tokens)
        valid = last = max(len(text.draft_tokens) - 1, 0)
        if copied is not None:
            valid = common_prefix(copied, text.draft_tokens)
        elif kept < before:
            valid = kept
        self._inner.commit(row, min(valid, last), text.draft_tokens)
        return text.draft_tokens

    def _translate(self, text: _Row, target_tokens: Sequence[int]) -> int:
        """Append target tokens to a row's draft tokens; return how many earlier draft tokens are unchanged."""
        raise NotImplementedError


class SharedVocabulary:
    """Wraps a draft model in a `Runner` with the target's vocabulary; its logits are those of target tokens.

    Input ids below the target's vocabulary size are target ids of shared tokens. Higher ones are draft ids plus that
    size. `inner` is the wrapped runner.
    """

    def __init__(self, runner: Runner, target: Spelling, draft: Spelling) -> None:
        pairs = shared_tokens(target, draft)
        self.inner, self.device, self.count = runner, runner.device, len(pairs)
        self._size = len(target.bytes)
        self.info = replace(runner.info, vocab_size=self._size + len(draft.bytes))
        self._ids: IntArray = np.concatenate((np.zeros(self._size, dtype=np.int64), np.arange(len(draft.bytes))))
        self._ids[list(pairs)] = list(pairs.values())
        self._target_ids, self._draft_ids = (
            torch.tensor(list(ids), device=runner.device) for ids in (pairs, pairs.values())
        )
        self.reserve, self.length, self.truncate = runner.reserve, runner.length, runner.truncate
        self.keep, self.free, self.copy_prefix = runner.keep, runner.free, runner.copy_prefix
        self.share_of = runner.share_of

    @property
    def free_memory(self) -> float:
        return self.inner.free_memory

    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`. Tokens that are not shared have probability 0."""
        logits = self.inner.forward(replace(packed, tokens=self._ids[packed.tokens])).logits
        target_logits = logits.new_full((len(logits), self._size), _IMPOSSIBLE)
        return Forward(target_logits.index_copy_(1, self._target_ids, logits.index_select(1, self._draft_ids)))


class SharedTokensDrafter(CrossTokenizerDrafter):
    """Drafts shared tokens by the target's noise and sampling rules, with branches: token-level intersection.

    Each other token of the text is encoded to draft tokens by itself, so draft tokens never change once they were
    read. Draft tokens have ids of `SharedVocabulary`.
    """

    def __init__(self, inner: DraftModelDrafter, target: Spelling, draft: Spelling, description: str) -> None:
        super().__init__(inner, target, draft, description)
        self._size = len(target.bytes)
        self._opening = [self._size + token for token in draft.opening]
        self._codes = {token: [token] for token in shared_tokens(target, draft)}
        if target.begin is not None and target.begin != target.end:
            self._codes[target.begin] = []  # the text begins with the draft's BOS token instead

    def _translate(self, text: _Row, target_tokens: Sequence[int]) -> int:
        before = len(text.draft_tokens)
        for token in target_tokens:
            codes = self._codes.get(token)
            text.draft_tokens += self._spell_out(token) if codes is None else codes
        return before

    def _spell_out(self, token: int) -> list[int]:
        word, draft = self._target.bytes[token], self._draft
        try:
            ids = draft.after("", word.decode())
        except UnicodeDecodeError:  # a part of a character
            ids = [draft.ids[byte] for byte in (word[i : i + 1] for i in range(len(word))) if byte in draft.ids]
        codes = self._codes[token] = [self._size + draft_id for draft_id in ids]
        return codes


def text_sampling(job: DraftJob, words: IntArray) -> SamplingBatch:
    """How draft tokens are sampled: with the target's noise for the target token of the same bytes, if there is one,
    else with noise of the draft token.

    `words` [V] are the noise keys of the draft tokens. Where noise is not shared the likeliest tokens are taken.
    """
    rows = []
    for row in job.sampling.rows:
        temperature, p = row.params.temperature * job.shares_noise, row.params
        params = SamplingParams(temperature=temperature, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p)
        rows.append(RowSampling(params, row.seed, row.tokens, row.prompt_length, ()))
    return SamplingBatch(rows, len(words), words)


class TextDrafter(CrossTokenizerDrafter):
    """Drafts text and encodes it with the target's tokenizer: string-level exact match.

    The text so far is encoded with the draft's tokenizer. Its end is encoded again with the text that follows, which
    may change the tokens. Drafts are chains. Where the target's noise may not be shared the draft is the likeliest
    text, a function of the text so far, and thus exact under every method.
    """

    def __init__(self, inner: DraftModelDrafter, target: Spelling, draft: Spelling, description: str) -> None:
        super().__init__(inner, target, draft, description)
        self._token_bytes = list(target.bytes)
        if target.begin is not None:
            self._token_bytes[target.begin] = b""  # the text begins with the draft's BOS token instead
        if target.end is not None:
            self._token_bytes[target.end] = b"" if draft.end is None else draft.bytes[draft.end]
        shared = shared_tokens(target, draft)
        ids = np.arange(len(draft.bytes)) + len(target.bytes)
        ids[list(shared.values())] = list(shared)
        self._words = token_keys(len(target.bytes) + len(draft.bytes))[ids]

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. The depths are scaled by the text's ratio of draft to target tokens, to at most 1."""
        translated = self._in_draft_tokens(job)
        steps = [
            min(depth, ceil(depth * len(draft_tokens) / len(tokens)))
            for depth, draft_tokens, tokens in zip(
                translated.depths.tolist(), translated.tokens, job.tokens, strict=True
            )
        ]
        depths = np.array(steps, dtype=np.int64)
        sampling = text_sampling(job, self._words)
        drawn = self._inner.propose(DraftJob(job.rows, translated.tokens, depths, sampling, stop=job.stop))
        builder = TreeBuilder(len(job.rows))
        for i in np.flatnonzero(drawn.tree.counts).tolist():
            nodes = builder.row(i)
            for token, confidence, entropy in self._in_target_tokens(job, drawn.tree, i):
                nodes.chain.append(nodes.add(nodes.chain_end, token, confidence=confidence, entropy=entropy))
        return Draft(builder.build(), tuple(work._replace(drafter=self.name) for work in drawn.work))

    def _in_target_tokens(self, job: DraftJob, drawn: DraftTree, row: int) -> list[tuple[int, float, float]]:
        """One row's draft as (target token, confidence, entropy).

        The confidence is the product, the entropy the sum of those of the draft tokens that the target token needs in
        addition to the ones before it.
        """
        nodes = drawn.row_nodes(row)
        drafted, confidence, entropy = (part[nodes].tolist() for part in (drawn.token, drawn.confidence, drawn.entropy))
        ended = drafted[-1] in self.eos_token_ids
        written, num_pending = drafted[:-1] if ended else drafted, self._rows[int(job.rows[row])].num_pending
        tokens = job.tokens[row]
        before = self._target.text(tokens[max(len(tokens) - num_pending - _LOOK_BACK, 0) : len(tokens) - num_pending])
        ids = self._target.after(before, self._draft.text(written))
        if ids[:num_pending] != tokens[len(tokens) - num_pending :]:
            return []
        # Ends of draft tokens and, below, of the target token, in bytes.
        draft_ends, translated = np.cumsum([len(self._draft.bytes[token]) for token in written]), []
        used, end = 0, len(self._target.spelled(ids[:num_pending]))
        for token in ids[num_pending : num_pending + int(job.depths[row])]:
            end += len(self._target.bytes[token])
            needed = max(used, min(int(np.searchsorted(draft_ends, end)) + 1, len(written)))
            translated.append((token, prod(confidence[used:needed]), sum(entropy[used:needed])))
            used = needed
        if ended and self._target.end is not None and len(translated) < job.depths[row]:
            translated.append((self._target.end, confidence[-1], entropy[-1]))
        return translated

    def _translate(self, text: _Row, target_tokens: Sequence[int]) -> int:
        piece = ""
        for token in target_tokens:
            piece += text.decoder.decode(self._token_bytes[token])
            text.num_pending = text.num_pending + 1 if text.decoder.getstate()[0] else 0
        draft, tokens, opening = self._draft, text.draft_tokens, len(self._opening)
        start = max(len(tokens) - _LOOK_BACK, opening)
        while start > opening and b"\x80" <= draft.bytes[tokens[start]][:1] < b"\xc0":
            start -= 1  # do not start within a character
        tail = draft.text(tokens[start:])
        if start > opening:
            ids = draft.after(draft.text(tokens[max(start - _LOOK_BACK, opening) : start]), tail + piece)
        else:
            # A space that a tokenizer adds before every text is not part of the text.
            whole = tail.removeprefix(draft.space) + piece if tail else piece.removeprefix(self._target.space)
            ids = draft.encode(whole) if whole else []
        kept = start + common_prefix(tokens[start:], ids)
        tokens[kept:] = ids[kept - start :]
        return kept
