"""Sampling on a device: penalties, biases, masks, truncation and the coupled choice for many positions at once."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Choice(NamedTuple):
    """The tokens chosen at N positions: the W largest of logits / temperature + noise, largest first.

    `confidence` is their softmax among all tokens of the same scores with noise; the entropy, in nats, is that of
    the scores without noise. It is NaN where a logit is not finite (but -inf, which removes a token).
    """

    token: torch.Tensor  # int32 [N, W]
    confidence: torch.Tensor  # float32 [N, W]
    entropy: torch.Tensor  # float32 [N]


class PositionRules(NamedTuple):
    """How the logits of N positions are changed before tokens are chosen."""

    lines: torch.Tensor  # int64 [N]: line of `RuleTables`; -1: the position is left as it is
    temperatures: torch.Tensor  # float32 [N]: top-p and min-p are about logits / temperature
    penalties: torch.Tensor  # float32 [N, 3]: repetition, frequency, presence
    top_k: torch.Tensor  # int64 [N]; 0: all
    cuts: torch.Tensor  # float32 [N, 2]: top-p, the logarithm of min-p
    paths: torch.Tensor  # int32 [N, D]: drafted tokens before the position, padded with -1
    masks: torch.Tensor  # int64 [N]: line of `RuleTables.masks`; -1: none


class RuleTables(NamedTuple):
    """Per line: twice the number of times that each token is in the output, + 1 if the prompt has it; and its bias.

    `masks` are bits of the tokens that may follow, 32 in a word.
    """

    counts: torch.Tensor  # int32 [lines, V]
    bias: torch.Tensor  # float32 [lines, V]
    masks: torch.Tensor  # int32 [M, words]
