"""What the engine needs of a model: packed forward passes over cached rows.

A row is one request's place in the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from adaptspec.arrays import BoolArray, IntArray


@dataclass(frozen=True)
class ModelInfo:
    """What a model is, and how it runs here.

    `context` is the most tokens a row can hold; `fingerprint` tells weights apart; `dtype` is what they are computed
    in, in torch's words (float32). A model that does not take trees takes no `Packed.seen`: drafts for it are chains.
    `equal_passes`: logits had the same bits in passes of 1 to so many tokens when that was tried (see `pass_range`);
    0: not even in small ones; None: it was not tried. `deepest`: the most tokens that it drafts. `known_tokens`: ids
    from there on are padding, which no token has, and their logits are -inf; None: all ids are tokens. `max_nodes`: the
    most nodes of a row's tree; None: any number.
    """

    name: str
    architecture: str
    parameters: int
    vocab_size: int
    context: int
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    dtype: str
    takes_trees: bool = True
    equal_passes: int | None = None
    deepest: int | None = None
    known_tokens: int | None = None
    max_nodes: int | None = None

    @property
    def drawn_tokens(self) -> int:
        """How many ids, from 0 on, can be in a text."""
        return self.vocab_size if self.known_tokens is None else self.known_tokens


def without_padding(logits: torch.Tensor, known: int) -> torch.Tensor:
    """Logits [N, V], changed in place: those of the ids from `known` on are -inf."""
    if known < logits.shape[1]:
        logits[:, known:] = -torch.inf
    return logits


@dataclass(frozen=True)
class Packed:
    """Tokens of several rows for one forward pass, row after row, never padded.

    Row i brings `counts[i]` new tokens, to be appended to what it has cached; logits are wanted
    for the last `wanted[i]` of them (0 while a prompt is still being read).

    Tokens of a row that branch come with `seen[i]` [counts[i], n]: which of the row's last n tokens each of the new
    ones sees, itself among them, beside all that come before these. Its position is that of the last such token and
    how many it sees.

    The last `prompts` rows read text that was written before: many tokens, which a device may read in other ways.
    """

    rows: IntArray  # [B]
    counts: IntArray  # [B], each at least 1
    tokens: IntArray  # [sum(counts)]
    wanted: IntArray  # [B]
    seen: Sequence[BoolArray | None] | None = None  # [B]
    prompts: int = 0


class Forward(NamedTuple):
    """What a pass returns: `logits` [sum(wanted), vocab] in float32, and what was captured.

    `hidden_states` [sum(counts), layers * hidden] are the inputs of the captured layers, of all tokens of the pass;
    None if no layer is captured. Nothing writes to their memory before the next pass.
    """

    logits: torch.Tensor
    hidden_states: torch.Tensor | None = None


class Runner(Protocol):
    """One model with its KV cache. All calls come from one thread."""

    info: ModelInfo
    device: torch.device  # where it runs, and where `forward` leaves its logits

    @property
    def free_memory(self) -> float:
        """The share of the cache that no row holds, 0 to 1."""

    def share_of(self, rows: Collection[int]) -> float:
        """The share of the cache that these rows hold, 0 to 1. Any thread may call it."""

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all in `row`; False if memory is short (nothing changes then)."""

    def forward(self, packed: Packed) -> Forward:
        """Run a pass; every row's cache grows by its count. Room must be reserved."""

    def length(self, row: int) -> int:
        """Tokens cached in `row`; 0 for a row that is free."""

    def truncate(self, row: int, length: int) -> None:
        """Forget the cached tokens from `length` on: the exact rollback after a rejection."""

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        """Of the cached tokens from `base` on keep those at base + places, ascending, as if no other had been there.

        They must be a path: each has seen those before it, and nothing else beyond `base`.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """Copy the first `length` cached tokens of `source` to the free row `target`.

        Returns how many were copied, fewer or 0 if memory is short or the cache cannot be cut there. With
        `source == target` the row is cut to `length`, or to less where its last block is shared.
        """

    def free(self, row: int) -> None:
        """Forget the row and give its memory back. Freeing a free row does nothing."""


@runtime_checkable
class CapturingRunner(Runner, Protocol):
    """A runner whose hidden states can be had, for a head that drafts from them."""

    def capture_states(self, layers: Sequence[int]) -> None:
        """Return the inputs of these layers from now on, ascending; the number of layers stands for the final norm."""
