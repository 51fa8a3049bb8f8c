"""Log-probabilities of output and prompt tokens, from the target's logits before sampling rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from adaptspec.draft_tree import DraftTree
from adaptspec.engine.scheduler import Batch
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.async_runner import to_device
from adaptspec.progress import report_progress
from adaptspec.results import TokenLogprob
from adaptspec.verification.method import VerifyResult, position_starts


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log-probabilities of N tokens by their `logits` [N, V], with the `top` likeliest alternatives at each."""
    if not tokens:
        return []
    logprobs = logits.float().log_softmax(1)
    chosen = logprobs.gather(1, to_device(np.array(tokens), logits.device).unsqueeze(1))
    best = torch.topk(logprobs, min(top, logprobs.shape[1]), dim=1)
    # In one copy from the device; as floats, ids are exact up to 2 ** 24.
    lines = torch.cat((chosen, best.values, best.indices.to(chosen.dtype)), 1).tolist()
    count = best.values.shape[1]
    return [
        TokenLogprob(token, line[0], tuple(zip(map(int, line[1 + count :]), line[1 : 1 + count], strict=True)))
        for token, line in zip(tokens, lines, strict=True)
    ]


def output_logprobs(emitting: Sequence[Seq], logits: torch.Tensor, draft: DraftTree, result: VerifyResult) -> None:
    """Score the tokens that each request gains, into `Seq.scored`. `logits` [N + E, V] are of all packed positions.

    Must be called before the commit: if the round fails later, these logits are lost.
    """
    requested = [(i, s) for i, s in enumerate(emitting) if s.request.sampling.logprobs is not None]
    if not requested:
        return
    report_progress()
    starts = position_starts(draft).tolist()
    positions = [starts[i] + at for i, _ in requested for at in (0, *(1 + node for node in result.nodes(i)))]
    tokens = [result.tokens(draft, i) for i, _ in requested]
    tops = [sequence.request.sampling.logprobs or 0 for _, sequence in requested]
    wanted = logits.index_select(0, to_device(np.array(positions), logits.device))
    scored = iter(token_logprobs(wanted, [token for own in tokens for token in own], max(tops)))
    for (_, sequence), own, top in zip(requested, tokens, tops, strict=True):
        sequence.scored = [replace(one, top=one.top[:top]) for one in islice(scored, len(own))]


def take_prompt_logprobs(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """Score prompt tokens, and return the logits of emitting rows alone. Scored chunks have logits of all tokens.

    A prompt that is read again after its request gave way is not scored twice.
    """
    chunks = batch.chunks
    if not any(chunk.scored for chunk in chunks):
        return logits
    at = len(logits) - sum(chunk.count if chunk.scored else chunk.last for chunk in chunks)
    kept = list(range(at))
    for chunk in chunks:
        report_progress()
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
    return logits.index_select(0, to_device(np.array(kept, dtype=np.int64), logits.device))
