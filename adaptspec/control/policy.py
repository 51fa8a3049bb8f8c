"""The Policy protocol: what a policy sees before a round, what it answers, and what it learns from.

Knows arrays of numbers, not requests, tensors or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from adaptspec.types import BoolArray, FloatArray, IntArray, Provenance, RoundRecord


@dataclass(frozen=True)
class BatchSignals:
    """The decoding rows of the coming round, one entry per row (B of them).

    `rows` are the engine's row numbers: stable while a request runs, reused afterwards. `limits`
    is the depth each row may not pass (the request's ceiling, its remaining tokens, the context's
    room). `lag` is how many tokens the draft cache is behind, beyond the usual one or two: what
    drafting would have to catch up first. `position` counts the tokens a row has emitted, `region` is what kind of
    text it is in the middle of (an index into `control.tasks.REGIONS`). `beside` counts rows that decode in the same
    round under other policies; `free_memory` is the share of the cache that no row holds.
    """

    rows: IntArray
    tasks: IntArray  # 0 = unknown
    context: IntArray
    limits: IntArray
    lag: IntArray
    position: IntArray
    region: IntArray
    prefill_tokens: int = 0
    beside: int = 0
    free_memory: float = 1.0

    @property
    def batch_size(self) -> int:
        """Number of decoding rows."""
        return len(self.rows)

    @property
    def round_size(self) -> int:
        """Number of rows that decode in this round, under whatever policy."""
        return len(self.rows) + self.beside

    def take(self, index: IntArray) -> BatchSignals:
        """The same signals for some of the rows, by position in the batch; the others are beside them."""
        return BatchSignals(
            self.rows[index],
            self.tasks[index],
            self.context[index],
            self.limits[index],
            self.lag[index],
            self.position[index],
            self.region[index],
            self.prefill_tokens,
            self.round_size - len(index),
            self.free_memory,
        )


class RoundStop(Protocol):
    """A stop rule at work in one round: decides after each draft step who drafts on.

    The token just drafted is always submitted for verification; only what follows it is at stake. So a rule
    may look at that token's confidence and stay exact under every lossless verification.
    """

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """Which of the rows at `index` (positions in the batch) go on after drafting token `step` (1-based).

        `confidence` is the draft's probability of the token it just chose, `entropy` that of its
        distribution in nats, both for the rows at `index`. Called with steps in order.
        """


@dataclass(frozen=True)
class Decision:
    """Depth, reason and drafter per row, and the stop rule of this round (None: draft all of it).

    `drafter` indexes the policy's `drafters`; the controller translates it to the engine's. `provenance` is told by
    policies that explore.
    """

    depths: IntArray
    reasons: IntArray
    drafter: IntArray
    stop: RoundStop | None = None
    provenance: Provenance | None = None


class Policy(Protocol):
    """Decides the depths of a batch and learns from rounds. Called on one thread, once each per round.

    `learn` only takes notes: it never switches anything. `start` and `finish` bracket the life of a
    request in a row; state of a row must not outlive `finish`.
    """

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters it uses, preferred first."""

    @property
    def max_depth(self) -> int:
        """The deepest draft it will ever ask for."""

    def start(self, row: int, task: int) -> None:
        """A request begins decoding in `row`."""

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""

    def decide(self, signals: BatchSignals) -> Decision:
        """Choose depths (0 <= depth <= limits) for these rows."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round in which this policy's rows ran (and only its rows are listed).

        Seconds, steps and tokens of the verify pass are those of the whole round.
        """
