"""What the engine needs of a model: packed forward passes over cached rows.

A row is one request's place in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from adaptspec.types import BoolArray, IntArray


@dataclass(frozen=True)
class ModelInfo:
    """What a model is, and how it runs here.

    `context` is the most tokens a row can hold; `fingerprint` tells weights apart; `dtype` is what they are computed
    in, in torch's words (float32). A model that does not take trees takes no `Packed.seen`: drafts for it are chains.
    `strict`: its logits are to be the same bits whatever else is in a pass. `eager`: its rounds are no CUDA graphs.
    `deepest`: the most tokens that it drafts. `known_tokens`: ids from there on are padding, which no token has, and
    their logits are -inf; None: all ids are tokens.
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
    strict: bool = False
    eager: bool = False
    deepest: int | None = None
    known_tokens: int | None = None

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


@runtime_checkable
class Listener(Protocol):
    """Hears a model's states behind some of its layers, and what becomes of its rows: a head that drafts from them."""

    layers: Sequence[int]  # states before layer i, 0 being the embeddings; the number of layers: those before the norm
    listens: bool  # whether it is to hear states; if not, it is told of passes all the same, with any tensor

    def heard(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """Of a pass: states [sum(counts), layers x hidden] of all its tokens, row i's from place `starts[i]` on.

        Nobody else writes on their memory.
        """

    def truncated(self, row: int, length: int) -> None:
        """See `Runner.truncate`."""

    def kept(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Runner.keep`."""

    def freed(self, row: int) -> None:
        """See `Runner.free`."""


class Runner(Protocol):
    """One model with its KV cache. All calls come from one thread."""

    info: ModelInfo
    device: torch.device  # where it runs, and where `forward` leaves its logits

    @property
    def free_memory(self) -> float:
        """The share of the cache that no row holds, 0 to 1."""

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all in `row`; False if memory is short (nothing changes then)."""

    def forward(self, packed: Packed) -> torch.Tensor:
        """Logits [sum(wanted), vocab] in float32; every row's cache grows by its count. Room must be reserved."""

    def length(self, row: int) -> int:
        """Tokens cached in `row`; 0 for a row that is free."""

    def truncate(self, row: int, length: int) -> None:
        """Forget the cached tokens from `length` on: the exact rollback after a rejection."""

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        """Of the cached tokens from `base` on keep those at base + places, ascending, as if no other had been there.

        They must be a path: each has seen those before it, and nothing else beyond `base`.
        """

    def free(self, row: int) -> None:
        """Forget the row and give its memory back. Freeing a free row does nothing."""


@runtime_checkable
class Heard(Runner, Protocol):
    """A runner whose states can be had."""

    def listen(self, listener: Listener) -> None:
        """Tell it from now on; nobody else listens."""
