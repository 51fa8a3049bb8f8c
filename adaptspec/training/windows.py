"""The order in which a training run sees its tokens: a function of the step alone, so that it can resume.

Each epoch cuts the flat token array at a fresh offset and visits the windows in a fresh order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.errors import CorpusError


@dataclass(frozen=True)
class Windows:
    """A flat token array seen as batches of windows.

    Raises:
        CorpusError: the tokens do not fill one batch.
    """

    tokens: npt.NDArray[np.uint16]
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
        """Tokens trained on in so many steps."""
        return steps * self.batch * self.window

    def at(self, step: int) -> torch.Tensor:
        """Token ids [batch, window + 1] of step number `step`, int64."""
        first = step * self.batch
        rng = np.random.default_rng((self.seed, first // self._count))
        offset = int(rng.integers(self.window))
        order = _permutation(rng, self._count)
        picks = order[np.arange(first, first + self.batch) % self._count]
        rows = [self.tokens[p * self.window + offset :][: self.window + 1] for p in picks]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def _permutation(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """A cheap pseudo-random order: i -> a * i + b mod count with a coprime to count."""
    a = int(rng.integers(count // 3, count)) | 1
    while math.gcd(a, count) != 1:
        a += 1
    return (np.arange(count, dtype=np.int64) * a + int(rng.integers(count))) % count
