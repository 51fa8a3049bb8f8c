"""Whether a token's logits depend on how many tokens share its pass: tried at start, on the model itself.

Libraries choose other kernels for other sizes, with other orders of sums. Runners keep to sizes and orders for which
the bits are the same; whether they are on this machine is seen here. Then speculation, batches, chunks of prompts and
reused caches change no bit of a text. Where they are not, logits agree up to rounding, and texts may differ where two
tokens are nearly equally likely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from adaptspec.models.runner import ModelInfo, Packed, Runner

STEP = 4  # tokens of the passes that all others are compared with
SIZES = (1, 3, 7, 8, 16, 33, 2, 5, 12)  # tokens of a pass; the first `ALWAYS` are tried however long they take
ALWAYS = 5
# From some context on, attention has other kernels or works in parts. Reading so much takes seconds, which is spared
# where a runner can repeat what it has cached: bits are compared there, not texts.
LONG, LONG_SIZES = 700, (1, 3, 8)
SECONDS = 0.5


@runtime_checkable
class Repeating(Runner, Protocol):
    """A runner that can fill its cache with copies of what is there."""

    def repeat(self, row: int, length: int) -> None:
        """Have `row` hold `length` tokens: those that it holds, again and again. Room must be reserved."""


def equal_passes(runner: Runner, *, seconds: float = SECONDS, timer: Callable[[], float] = time.perf_counter) -> int:
    """The most tokens of a pass for which logits had the same bits in all passes tried up to there; 0: fewer than 4.

    All rows must be free. Takes about so many `seconds`; slow models are tried at fewer sizes.
    """
    began = timer()
    most = min(-(-max(SIZES) // STEP), runner.info.context // STEP) * STEP
    text = np.random.default_rng(0).integers(0, runner.info.drawn_tokens, most)
    expected: list[torch.Tensor] = []
    equal, different = [], [most + 1]
    try:
        for tried, size in enumerate(SIZES):
            end = -(-size // STEP) * STEP
            if end > most or size > min(different) or (tried >= ALWAYS and timer() - began > seconds):
                continue
            if not runner.reserve(0, most):
                break
            for start in range(runner.length(0), end, STEP):
                logits = _logits(runner, text[start : start + STEP])
                if start == STEP * len(expected):
                    expected.append(logits)
            runner.truncate(0, end - size)
            found = _logits(runner, text[end - size : end])
            if torch.equal(found, torch.cat(expected)[end - size : end]):
                equal.append(size)
            else:
                different.append(size)
                runner.truncate(0, (end - size) // STEP * STEP)  # other keys and values would change what comes next
        if (
            isinstance(runner, Repeating)
            and runner.length(0) >= STEP
            and runner.reserve(0, min(LONG, runner.info.context))
        ):
            different += _other_bits_far_on(runner, text)
    finally:
        runner.free(0)
    most = max((size for size in equal if size < min(different)), default=0)
    return most if most >= STEP else 0  # drafts make passes of several tokens


def _other_bits_far_on(runner: Repeating, text: np.ndarray) -> list[int]:
    """Sizes of passes with other bits than those of STEP tokens behind a long text, in row 0."""
    first = min(LONG, runner.info.context) - max(LONG_SIZES)
    if first <= runner.length(0):
        return []
    runner.repeat(0, first)
    expected = torch.cat([_logits(runner, text[at : at + STEP]) for at in range(0, max(LONG_SIZES), STEP)])
    different = []
    for size in LONG_SIZES:
        runner.truncate(0, first)
        if not torch.equal(_logits(runner, text[:size]), expected[:size]):
            different.append(size)
    return different


def exactness(info: ModelInfo) -> str:
    """What `equal_passes` found, for people."""
    if info.equal_passes:
        return f"logits have the same bits in passes of 1 to {info.equal_passes} tokens"
    return "passes of several sizes agree up to rounding: texts may differ where two tokens are nearly equally likely"


def _logits(runner: Runner, tokens: np.ndarray) -> torch.Tensor:
    """Of all `tokens`, which go on from what row 0 holds."""
    count = np.array([len(tokens)])
    return runner.forward(Packed(np.zeros(1, dtype=np.int64), count, tokens, count)).logits.cpu()
