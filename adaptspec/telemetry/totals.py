"""Running totals over rounds, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord

DEPTH_LABELS = 64  # more depths than any sensible policy has; keeps label values bounded

_COUNTS = ("prefill_tokens", "target_tokens", "draft_steps", "caught_up")
_SECONDS = ("draft", "verify", "total")


def _empty() -> IntArray:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Totals:
    """Sums over all rounds so far. The three tallies are indexed by number of tokens, and count row-rounds.

    Of drafts that branch, `drafted` and `accepted` are along a path, so that they say how deep; `nodes` are all tokens.

    As in `SpeculationStats`, `accepted` counts only tokens that were emitted: what lies behind an end of
    sequence, a stop string or max_tokens was kept by verification but earned nothing.
    """

    rounds: int = 0
    emitted: int = 0
    nodes: int = 0  # submitted for verification
    prefill_tokens: int = 0
    target_tokens: int = 0
    draft_steps: int = 0
    caught_up: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    total_seconds: float = 0.0
    depths: IntArray = field(default_factory=_empty)  # by decided depth
    drafted: IntArray = field(default_factory=_empty)  # by tokens submitted for verification along the longest path
    accepted: IntArray = field(default_factory=_empty)  # by number of tokens accepted
    reasons: IntArray = field(default_factory=lambda: np.zeros(1 + max(Reason), dtype=np.int64))

    @property
    def drafts(self) -> int:
        return int(self.drafted[1:].sum())

    @property
    def drafted_tokens(self) -> int:
        return _weighted(self.drafted)

    @property
    def accepted_tokens(self) -> int:
        return _weighted(self.accepted)

    @property
    def accepted_per_position(self) -> IntArray:
        """[deepest draft] row-rounds whose draft was accepted at position j (0-based)."""
        beyond = self.accepted[::-1].cumsum()[::-1][1:]
        return np.pad(beyond, (0, max(0, len(self.drafted) - len(self.accepted))))

    @property
    def labelled_depths(self) -> list[tuple[str, int]]:
        pairs = [(str(depth), int(count)) for depth, count in enumerate(self.depths[:DEPTH_LABELS])]
        if len(self.depths) > DEPTH_LABELS:
            pairs.append((f"{DEPTH_LABELS}+", int(self.depths[DEPTH_LABELS:].sum())))
        return pairs

    def plus(self, records: Sequence[RoundRecord]) -> Totals:
        """These totals with some more rounds added, in a few vectorised passes."""
        if not records:
            return self
        emitted = gathered(records, "emitted")
        more: dict[str, Any] = {
            name: getattr(self, name) + sum(getattr(record, name) for record in records) for name in _COUNTS
        }
        for part in _SECONDS:
            name = f"{part}_seconds"
            more[name] = getattr(self, name) + sum(getattr(record.timing, part) for record in records)
        for name in ("depths", "drafted", "reasons"):
            more[name] = tallied(getattr(self, name), gathered(records, name))
        more["rounds"] = self.rounds + len(records)
        more["emitted"] = self.emitted + int(emitted.sum())
        more["nodes"] = self.nodes + int(gathered(records, "nodes").sum())
        more["accepted"] = tallied(self.accepted, np.minimum(gathered(records, "accepted"), emitted))
        return replace(self, **more)


def gathered(records: Sequence[RoundRecord], name: str) -> IntArray:
    """What rounds say of their rows, one after the other [N]."""
    values: IntArray = np.concatenate([getattr(record, name) for record in records])
    return values


def by_proposer(records: Sequence[RoundRecord], drafters: int) -> tuple[IntArray, IntArray]:
    """By drafter, of at least so many: the tokens that it proposed, and those of them that were emitted.

    A row may hold tokens of several, whoever was decided to draft for it.
    """
    proposed, kept = [np.arange(0)], [np.arange(0)]
    chains = [record for record in records if record.branches is None]
    if chains:
        owners, drafted = gathered(chains, "drafter"), gathered(chains, "drafted")
        proposed.append(np.repeat(owners, drafted))
        kept.append(np.repeat(owners, np.minimum(gathered(chains, "accepted"), gathered(chains, "emitted"))))
    for record in records:
        if record.branches is not None:
            tree, path = record.branches.tree, record.branches.path
            proposed.append(tree.drafter)
            emitted = np.minimum(record.accepted, record.emitted)
            nodes = tree.offsets[:-1, None] + path
            kept.append(tree.drafter[nodes[np.arange(path.shape[1]) < emitted[:, None]]])
    told = [np.bincount(np.concatenate(owners), minlength=drafters) for owners in (proposed, kept)]
    return told[0], np.pad(told[1], (0, len(told[0]) - len(told[1])))


def tallied(before: IntArray, values: IntArray) -> IntArray:
    """How often each value came, with some more values."""
    counts = np.bincount(values, minlength=len(before)).astype(np.int64)
    counts[: len(before)] += before
    return counts


def _weighted(tally: IntArray) -> int:
    return int(tally @ np.arange(len(tally)))
