"""Log-probabilities for the requests that ask for them, from logits that a round has computed anyway.

They are the target's own (see `types.TokenLogprob`), so neither depth, drafter nor verification can touch them. Knows a
round's logits and layout; costs one look at each request where nobody asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adaptspec.engine.scheduler import Batch
from adaptspec.models.draft import Draft
from adaptspec.types import TokenLogprob
from adaptspec.verification.method import VerifyResult, window_starts


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], most: int) -> list[TokenLogprob]:
    """What `logits` [N, V] say of N tokens, with the `most` likeliest alternatives at each."""
    if not tokens:
        return []
    shares = logits.float().log_softmax(1)
    own = shares.gather(1, torch.tensor(tokens, device=shares.device).unsqueeze(1)).squeeze(1).tolist()
    best = torch.topk(shares, min(most, shares.shape[1]), dim=1)
    tops = [
        tuple(zip(row, values, strict=True))
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [TokenLogprob(*entry) for entry in zip(tokens, own, tops, strict=True)]


def score_output(batch: Batch, logits: torch.Tensor, draft: Draft, verdict: VerifyResult) -> None:
    """Before commit: score what each request is about to gain. `logits` are what was verified, [sum(counts + 1), V].

    After it would be too late: a round that fails in between leaves tokens whose logits are gone.
    """
    asking = [(i, s) for i, s in enumerate(batch.emitting) if s.request.sampling.logprobs is not None]
    if not asking:
        return
    starts = window_starts(draft.counts).tolist()
    for i, sequence in asking:
        kept = int(verdict.accepted[i])
        tokens = [*draft.tokens[i, :kept].tolist(), int(verdict.following[i])]
        rows = logits[starts[i] : starts[i] + kept + 1]
        sequence.scored = token_logprobs(rows, tokens, sequence.request.sampling.logprobs or 0)


def score_prompts(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """Score prompt tokens, and return the logits of what emits alone. Scored chunks bring all of theirs.

    A prompt that is read again, its request having given way, is not scored twice.
    """
    if not batch.chunks:
        return logits
    chunks = batch.ordered_chunks
    if not any(chunk.scored for chunk in chunks):
        return logits
    at = len(logits) - sum(chunk.count if chunk.scored else chunk.last for chunk in chunks)
    kept = list(range(at))
    for chunk in chunks:
        width = chunk.count if chunk.scored else int(chunk.last)
        if chunk.last:
            kept.append(at + width - 1)
        if chunk.scored:
            sequence = chunk.sequence
            first = max(chunk.start, len(sequence.prompt_logprobs))
            targets = sequence.tokens[first + 1 : min(chunk.start + width + 1, sequence.prompt_length)]
            rows = logits[at + first - chunk.start : at + first - chunk.start + len(targets)]
            sequence.prompt_logprobs += token_logprobs(rows, targets, sequence.request.sampling.prompt_logprobs or 0)
        at += width
    return logits[torch.from_numpy(np.array(kept, dtype=np.int64)).to(logits.device)]
