"""Rounds without requests: drafts and verify passes as they alternate in service, to be timed.

A pass that follows its like finds its weights in the caches and its threads awake; in a round the other model has run
in between, which makes both of them slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.drafting.drafter import DraftJob, ModelDrafter
from adaptspec.errors import ConfigError
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch, argmax
from adaptspec.quantity import quantity
from adaptspec.request import SamplingParams

Piece = Callable[[], None]
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_WIDTHS = (1, 2, 4, 8)
CONTEXT, _LONG_CONTEXT, _CATCH_UP = 16, 448, 128


@dataclass(frozen=True)
class Extent:
    """What a runner has room to be measured at: numbers of rows, tokens per row, and what each row holds before."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    context: int
    long_context: int
    catch_up: int

    @classmethod
    def of(cls, runner: Runner, max_rows: int) -> Extent:
        """The most that its context and its cache allow; all rows must be free, and are free again.

        Raises:
            ConfigError: not even one short row fits.
        """
        most = runner.info.context
        context = max(1, min(CONTEXT, most // 2))
        widths = tuple(width for width in _WIDTHS if context + width <= most)
        granted = _granted(runner, max_rows, context + max(widths, default=1))
        if not widths or not granted:
            raise ConfigError(f"{runner.info.name} has no room to measure one pass in; give it a longer context")
        rows = tuple(count for count in _ROWS if count <= granted)
        return cls(rows, widths, context, min(_LONG_CONTEXT, most - 1), min(_CATCH_UP, most // 2))


class ProfiledRounds:
    """Rounds of `count` rows that hold `context` tokens each, of at most `widest` verified tokens per row.

    Rows must be free, and are free again once it is closed.
    """

    def __init__(self, target: Runner, count: int, context: int, widest: int) -> None:
        """
        Raises:
            ConfigError: the cache has no room for them.
        """
        self._target, self._count, self._context = target, count, context
        self._draft: _Drafting | None = None
        fill(target, count, context, widest)

    def join(self, draft: ModelDrafter, context: int, widest: int) -> None:
        """Let a draft model take part, with so many tokens in each of its rows, and room for `widest` more.

        Raises:
            ConfigError: its cache has no room for them.
        """
        self._draft = _Drafting(draft, self._target.info.vocab_size, self._count, context, widest)

    def pieces(self, widths: Sequence[int]) -> list[Piece]:
        """One after another, over and over, they are rounds that verify so many tokens per row:

        for each width a draft of one token less, as far as there is a draft model and it has room, and a pass.
        """
        laps: list[Piece] = []
        for width in widths:
            drafts = self._draft is not None and width > 1
            laps += [self._draft.to(width - 1) if self._draft and drafts else _nothing, self._verifying(width)]
        return laps

    def close(self) -> None:
        clear(self._target, self._count)
        if self._draft is not None:
            self._draft.close()

    def _verifying(self, width: int) -> Piece:
        packed = packed_rows(self._target, self._count, width, wanted=width)

        def run() -> None:
            # Judging a greedy draft takes the argmax and brings it to the host: part of what a verify costs.
            argmax(self._target.forward(packed).logits)
            for row in range(self._count):
                self._target.truncate(row, self._context)

        return run


class _Drafting:
    """The draft model's part."""

    def __init__(self, drafter: ModelDrafter, vocab_size: int, count: int, context: int, widest: int) -> None:
        runner = drafter.runner
        fill(runner, count, context, widest)
        self._drafter, self._count, self._context, self._deepest = drafter.endless(), count, context, widest - 1
        known = min(vocab_size, runner.info.vocab_size)
        self._tokens = [some_tokens(context + 1, known).tolist() for _ in range(count)]
        greedy = SamplingParams(temperature=0.0)
        rows = [RowSampling(greedy, 0, tokens, context, ()) for tokens in self._tokens]
        self._sampling = SamplingBatch(rows, vocab_size)

    def to(self, depth: int) -> Piece:
        """A draft of every row, as far as there is room."""
        depths: IntArray = np.full(self._count, min(depth, self._deepest), dtype=np.int64)
        job = DraftJob(np.arange(self._count, dtype=np.int64), self._tokens, depths, self._sampling)

        def run() -> None:
            self._drafter.propose(job)
            for row, tokens in enumerate(self._tokens):
                self._drafter.commit(row, self._context, tokens)

        return run

    def close(self) -> None:
        for row in range(self._count):
            self._drafter.free(row)


def fill(runner: Runner, rows: int, context: int, width: int) -> None:
    """Read `context` tokens into each row, with room for `width` more.

    Raises:
        ConfigError: the cache has no room for them.
    """
    for row in range(rows):
        if not runner.reserve(row, context + width):
            wanted = f"{quantity(rows, 'row')} of {quantity(context + width, 'token')}"
            raise ConfigError(f"the cache has no room for {wanted}; use fewer rows")
    runner.forward(packed_rows(runner, rows, context, wanted=1))


def packed_rows(runner: Runner, rows: int, count: int, wanted: int) -> Packed:
    """A pass over `count` tokens of each of so many rows: a prompt where not all of them are `wanted`."""
    each = np.ones(rows, dtype=np.int64)
    tokens = some_tokens(rows * count, runner.info.vocab_size)
    prompts = rows if wanted < count else 0
    return Packed(np.arange(rows, dtype=np.int64), count * each, tokens, wanted * each, prompts=prompts)


def some_tokens(count: int, vocab_size: int) -> IntArray:
    """Token ids of no meaning."""
    return np.arange(count, dtype=np.int64) % min(97, vocab_size)


def _granted(runner: Runner, rows: int, length: int) -> int:
    """For how many rows of `length` tokens the cache has room."""
    count = 0
    while count < rows and runner.reserve(count, length):
        count += 1
    clear(runner, count)
    return count


def clear(runner: Runner, rows: int) -> None:
    """Leave so many rows free."""
    for row in range(rows):
        runner.free(row)


def _nothing() -> None:
    """A round without drafts."""
