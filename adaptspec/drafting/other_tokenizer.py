"""Drafting with a model of another tokenizer: in the tokens that both have, or through text.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies" (TLI and SLEM). Either way each row has a list of tokens of the draft's own, of which its cache holds a
beginning. A draft is only a proposal: where the tokenizers do not meet less of it is accepted, and no text changes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

import numpy as np
import torch

from adaptspec.arrays import IntArray
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

# The share of a text that must be written alike for drafts in shared tokens. Where it was 79 %, chains through text had
# 5 % more tokens accepted (40 prompts of the bundled target, a draft model of 0.6 M): about what branches earn.
ALIKE = 0.8
# A word is seldom more tokens than this, and what follows changes how the last word is written, none before it.
_LOOK_BACK = 8
# A score that leaves no share, and yet a number: entropies are sums over all tokens.
_NO_CHANCE = -1e9
_UTF8 = codecs.getincrementaldecoder("utf-8")


def make(loaded: Loaded, least: float = ALIKE) -> ModelDrafter:
    """The drafter for a draft model, by how its tokens stand to the target's; `least` is in place of `ALIKE`."""
    if loaded.draft is None or loaded.tokenizers is None:
        return _of_same_tokens(loaded)
    target, draft = loaded.tokenizers
    if target.get_vocab() == draft.get_vocab():
        return _of_same_tokens(loaded)
    its, own = Spelling(target, loaded.target.info), Spelling(draft, loaded.draft.info)
    alike = its.alike(own)
    if alike < least:
        inner = DraftModelDrafter(loaded.draft, loaded.draft.info.eos_token_ids)
        return TextDrafter(inner, its, own, f"through text (the two tokenizers write only {alike:.0%} of it alike)")
    shared = SharedVocabulary(loaded.draft, its, own)
    description = f"in the {shared.count} tokens of both tokenizers (which write {alike:.0%} of a text alike)"
    return SharedTokensDrafter(DraftModelDrafter(shared, loaded.eos_token_ids), its, own, description)


def _of_same_tokens(loaded: Loaded) -> DraftModelDrafter:
    if isinstance(loaded.draft, HeadRunner):
        return HeadDrafter(loaded.draft, loaded.eos_token_ids)
    return DraftModelDrafter.make(loaded)


def shared_tokens(its: Spelling, own: Spelling) -> dict[int, int]:
    """The draft's id of each of the target's tokens that it has, too: those of the same bytes, and what ends a text."""
    shared = {token: own.ids[word] for word, token in its.ids.items() if word in own.ids}
    if its.end is not None and own.end is not None:
        shared[its.end] = own.end
    return shared


@dataclass
class _Row:
    """One row's text in the draft's `own` tokens: `read` of the target's stand for it.

    The last `waiting` of those end in a part of a character, which has no tokens of the draft yet.
    """

    own: list[int]
    read: int
    waiting: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _UTF8("replace"))


class OwnTokensDrafter(ModelDrafter):
    """A draft model with a text of its own tokens for each row: what both ways have in common."""

    name = DraftModelDrafter.name

    def __init__(self, inner: DraftModelDrafter, its: Spelling, own: Spelling, description: str) -> None:
        """`inner` drafts from own tokens; `its` is how the target writes, `own` how the draft does."""
        self.runner, self.eos_token_ids, self.description = inner.runner, inner.eos_token_ids, description
        self._inner, self._its, self._own = inner, its, own
        self._opening = own.opening  # of a text in own tokens
        self._rows: dict[int, _Row] = {}
        self._copied: dict[int, list[int]] = {}  # draft tokens in the cache of a row whose text was not encoded yet

    def cache_gap(self, row: int, length: int) -> int:
        """See `Drafter.cache_gap`. What was not read yet counts as so many tokens of its own."""
        text = self._rows.get(row)
        return self._inner.cache_gap(row, length if text is None else len(text.own) + length - text.read)

    def catch_up(self, job: DraftJob) -> tuple[IntArray, int]:
        return self._inner.catch_up(self._in_own(job))

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`."""
        return self._inner.propose(self._in_own(job))

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:  # noqa: ARG002
        """See `Drafter.commit`. What of its own tokens stays is seen where they are read again."""
        if row in self._rows:
            self._follow(row, tokens)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`.

        The draft's tokens are compared with the new text when it is next encoded.
        """
        held = self.runner.length(source) if length else 0
        text, copied = self._rows.get(source), self._copied.get(source, [])
        self._rows.pop(target, None)
        self._copied[target] = list((copied if text is None else text.own)[:held])
        self._inner.copy_prefix(source, target, len(self._copied[target]))

    def free(self, row: int) -> None:
        self._rows.pop(row, None)
        self._copied.pop(row, None)
        self._inner.free(row)

    def _in_own(self, job: DraftJob) -> DraftJob:
        """The job in own tokens; without the rows that have none."""
        texts: list[list[int]] = [[]] * len(job.rows)
        for i in np.flatnonzero(job.depths).tolist():
            texts[i] = self._follow(int(job.rows[i]), job.tokens[i])
        return replace(job, tokens=texts, depths=np.where([bool(text) for text in texts], job.depths, 0))

    def _follow(self, row: int, tokens: list[int]) -> list[int]:
        """A row's own tokens, now that these are the target's. The cache keeps those that stayed, but for the last."""
        text, copied = self._rows.get(row), self._copied.pop(row, None)
        if text is None:
            # A cache without a text that was not copied was filled to be timed.
            held = self.runner.length(row) if copied is None else 0
            begin = _Row([0] * held, len(tokens) - 1) if held else _Row([*self._opening], 0)
            text = self._rows[row] = begin
        kept = before = len(text.own)
        if text.read < len(tokens):
            kept = self._read(text, tokens[text.read :])
            text.read = len(tokens)
        if copied is not None:
            kept = next((i for i, (one, other) in enumerate(zip(copied, text.own)) if one != other), len(copied))  # noqa: B905
        last = max(len(text.own) - 1, 0)
        self._inner.commit(row, last if kept == before else min(kept, last), text.own)
        return text.own

    def _read(self, text: _Row, fresh: Sequence[int]) -> int:
        """Take in tokens of the target; how many of its own stayed as they were."""
        raise NotImplementedError


class SharedVocabulary:
    """A draft model as if it had the target's vocabulary: a `Runner` whose logits are of the target's tokens.

    What it reads are the target's ids of tokens that both have, and its own behind all of the target's.
    """

    def __init__(self, runner: Runner, its: Spelling, own: Spelling) -> None:
        pairs = shared_tokens(its, own)
        self._runner, self.device, self.count = runner, runner.device, len(pairs)
        self._size = len(its.bytes)
        self.info = replace(runner.info, vocab_size=self._size + len(own.bytes))
        self._ids: IntArray = np.concatenate((np.zeros(self._size, dtype=np.int64), np.arange(len(own.bytes))))
        self._ids[list(pairs)] = list(pairs.values())
        self._its, self._own = (torch.tensor(list(ids), device=runner.device) for ids in (pairs, pairs.values()))
        self.reserve, self.length, self.truncate = runner.reserve, runner.length, runner.truncate
        self.keep, self.free, self.copy_prefix = runner.keep, runner.free, runner.copy_prefix
        self.share_of = runner.share_of

    @property
    def free_memory(self) -> float:
        return self._runner.free_memory

    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`; what is not in both vocabularies has no chance."""
        logits = self._runner.forward(replace(packed, tokens=self._ids[packed.tokens])).logits
        whole = logits.new_full((len(logits), self._size), _NO_CHANCE)
        return Forward(whole.index_copy_(1, self._its, logits.index_select(1, self._own)))


class SharedTokensDrafter(OwnTokensDrafter):
    """Drafts tokens that both have, by the target's noise and rules, with branches: token-level intersection.

    Other tokens of the text are read in the draft's tokens for their bytes, each by itself, so that what was read
    never changes. Its own tokens have the target's ids, or stand behind them (see `SharedVocabulary`).
    """

    def __init__(self, inner: DraftModelDrafter, its: Spelling, own: Spelling, description: str) -> None:
        super().__init__(inner, its, own, description)
        self._size = len(its.bytes)
        self._opening = [self._size + token for token in own.opening]
        self._codes = {token: [token] for token in shared_tokens(its, own)}
        if its.begin is not None and its.begin != its.end:
            self._codes[its.begin] = []  # the draft's own opens the text

    def _read(self, text: _Row, fresh: Sequence[int]) -> int:
        before = len(text.own)
        for token in fresh:
            codes = self._codes.get(token)
            text.own += self._spell_out(token) if codes is None else codes
        return before

    def _spell_out(self, token: int) -> list[int]:
        word, own = self._its.bytes[token], self._own
        try:
            ids = own.after("", word.decode())
        except UnicodeDecodeError:  # a part of a character
            ids = [own.ids[byte] for byte in (word[i : i + 1] for i in range(len(word))) if byte in own.ids]
        codes = self._codes[token] = [self._size + one for one in ids]
        return codes


def text_sampling(job: DraftJob, words: IntArray) -> SamplingBatch:
    """How the draft's own tokens are drawn: by the target's noise for the token of the same text, as if each were one
    token of the target; those that the target does not have by noise of their own.

    `words` [V] are what noise is made of for each token. Where noise is not shared the likeliest are taken.
    """
    rows = []
    for row in job.sampling.rows:
        warmth, p = row.params.temperature * job.shares_noise, row.params
        params = SamplingParams(temperature=warmth, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p)
        rows.append(RowSampling(params, row.seed, row.tokens, row.prompt_length, ()))
    return SamplingBatch(rows, len(words), words)


class TextDrafter(OwnTokensDrafter):
    """Drafts text, and lets the target's tokenizer write it: string-level exact match.

    The text so far is read as the draft's tokenizer writes it, its end again with what follows, as that changes how
    it is written. Drafts are chains. Where the target's noise may not be shared they are the likeliest text, a function
    of the text so far, and thus exact under every method.
    """

    def __init__(self, inner: DraftModelDrafter, its: Spelling, own: Spelling, description: str) -> None:
        super().__init__(inner, its, own, description)
        self._said = list(its.bytes)
        if its.begin is not None:
            self._said[its.begin] = b""  # the draft's own opens the text
        if its.end is not None:
            self._said[its.end] = b"" if own.end is None else own.bytes[own.end]
        shared = shared_tokens(its, own)
        ids = np.arange(len(own.bytes)) + len(its.bytes)
        ids[list(shared.values())] = list(shared)
        self._words = token_keys(len(its.bytes) + len(own.bytes))[ids]

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`. As many steps as, by the text so far, make `depths` tokens of the target; no more."""
        mine = self._in_own(job)
        steps = [
            min(depth, ceil(depth * len(own) / len(tokens)))
            for depth, own, tokens in zip(mine.depths.tolist(), mine.tokens, job.tokens, strict=True)
        ]
        depths = np.array(steps, dtype=np.int64)
        sampling = text_sampling(job, self._words)
        drawn = self._inner.propose(DraftJob(job.rows, mine.tokens, depths, sampling, stop=job.stop))
        builder = TreeBuilder(len(job.rows))
        for i in np.flatnonzero(drawn.tree.counts).tolist():
            nodes = builder.row(i)
            for token, confidence, entropy in self._in_target_tokens(job, drawn.tree, i):
                nodes.chain.append(nodes.add(nodes.chain_end, token, confidence=confidence, entropy=entropy))
        return Draft(builder.build(), tuple(work._replace(drafter=self.name) for work in drawn.work))

    def _in_target_tokens(self, job: DraftJob, drawn: DraftTree, row: int) -> list[tuple[int, float, float]]:
        """One row's draft in tokens of the target, with confidence and entropy: those of the draft's tokens that each
        needs beyond the ones before it.
        """
        nodes = drawn.row_nodes(row)
        own, sure, spread = (part[nodes].tolist() for part in (drawn.token, drawn.confidence, drawn.entropy))
        ended = own[-1] in self.eos_token_ids
        written, waiting = own[:-1] if ended else own, self._rows[int(job.rows[row])].waiting
        tokens = job.tokens[row]
        before = self._its.text(tokens[max(len(tokens) - waiting - _LOOK_BACK, 0) : len(tokens) - waiting])
        ids = self._its.after(before, self._own.text(written))
        if ids[:waiting] != tokens[len(tokens) - waiting :]:
            return []
        places, line = np.cumsum([len(self._own.bytes[token]) for token in written]), []
        used, at = 0, len(self._its.spelled(ids[:waiting]))
        for token in ids[waiting : waiting + int(job.depths[row])]:
            at += len(self._its.bytes[token])
            needed = max(used, min(int(np.searchsorted(places, at)) + 1, len(written)))
            line.append((token, prod(sure[used:needed]), sum(spread[used:needed])))
            used = needed
        if ended and self._its.end is not None and len(line) < job.depths[row]:
            line.append((self._its.end, sure[-1], spread[-1]))
        return line

    def _read(self, text: _Row, fresh: Sequence[int]) -> int:
        piece = ""
        for token in fresh:
            piece += text.decoder.decode(self._said[token])
            text.waiting = text.waiting + 1 if text.decoder.getstate()[0] else 0
        own, opening = text.own, len(self._opening)
        start = max(len(own) - _LOOK_BACK, opening)
        while start > opening and b"\x80" <= self._own.bytes[own[start]][:1] < b"\xc0":
            start -= 1  # the rest of a character
        said = self._own.text(own[start:])
        if start > opening:
            ids = self._own.after(self._own.text(own[max(start - _LOOK_BACK, opening) : start]), said + piece)
        else:
            # What a tokenizer adds before a text is none of it.
            whole = said.removeprefix(self._own.space) + piece if said else piece.removeprefix(self._its.space)
            ids = self._own.encode(whole) if whole else []
        kept = start
        for one, other in zip(own[start:], ids, strict=False):
            if one != other:
                break
            kept += 1
        own[kept:] = ids[kept - start :]
        return kept
