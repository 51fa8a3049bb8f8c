"""What drafts gain by branching: nodes beside the main chain, in counts of what they stated and what was kept."""

from __future__ import annotations

import numpy as np

from adaptspec.control.policy import Learner
from adaptspec.types import BoolArray, FloatArray, RoundRecord

# Ranks of side nodes that are told apart. At first a node is as likely as it states, and where a chain misses its side
# nodes bring this many tokens, by so many for each of its own: as strong as so many observations.
_RANKS, _SIDE_GAIN, _SIDE_NODES, _SIDE_WEIGHT = 8, 0.3, 1.0, 20.0


class SideNodes(Learner):
    """What nodes beside the main chain bring: how far what they state can be believed, and what they come to in all.

    By all traffic, in counts that fade with each row that branched.
    """

    def __init__(self, fade: float = 0.998) -> None:
        self._fade = fade
        # By rank: nodes that were kept, and the sum of what they stated; only of those whose parent was kept.
        self._ranks: FloatArray = np.zeros((2, _RANKS))
        # Tokens they brought, of so many misses of the chain; side nodes, of so many tokens of chains.
        self._brought: FloatArray = np.zeros((2, 2))

    def observe(self, which: int, record: RoundRecord) -> None:
        """A round whose drafts branch, for rows in which drafter `which` drafted the chain."""
        branches, kept = record.branches, record.kept
        assert branches is not None
        tree, path, rows = branches.tree, branches.path, np.arange(len(kept))
        mine = (record.drafter == which) & (record.chain > 0)
        places = np.arange(tree.parents.shape[1])
        own = (places < branches.nodes[:, None]) & (tree.drafters == which) & mine[:, None]
        on_path: BoolArray = np.zeros(own.shape, dtype=np.bool_)
        steps = np.minimum(path.shape[1], kept)
        for depth in range(int(steps.max(initial=0))):
            on_path[rows[depth < steps], path[depth < steps, depth]] = True
        reached = (tree.parents < 0) | on_path[rows[:, None], np.maximum(tree.parents, 0)]
        side = own & (tree.ranks > 0)
        known = side & reached & ~np.isnan(branches.confidence)
        rank = np.minimum(tree.ranks, _RANKS) - 1
        for at, what in enumerate((on_path[known], branches.confidence[known])):
            self._ranks[at] += np.bincount(rank[known], what, _RANKS)[:_RANKS]
        straight = record.straight
        missed = mine & (straight < tree.chain)
        extra = (own & on_path).sum(axis=1) - straight
        self._brought[0] += extra[missed].sum(), missed.sum()
        self._brought[1] += (own & (places >= tree.chain[:, None])).sum(), tree.chain[mine].sum()
        fade = self._fade ** int(mine.sum())
        self._ranks *= fade
        self._brought *= fade

    @property
    def chances(self) -> FloatArray:
        """[ranks] what a node of rank 1, 2 ... is kept by, in what it states; the last is that of all later ones."""
        kept, stated = self._ranks + _SIDE_WEIGHT
        return np.asarray(kept / stated)

    @property
    def gain(self) -> float:
        """Tokens brought for each token of a chain that was not kept."""
        brought, missed = self._brought[0].tolist()
        return float((brought + _SIDE_GAIN * _SIDE_WEIGHT) / (missed + _SIDE_WEIGHT))

    @property
    def nodes(self) -> float:
        """Side nodes for each token of a chain."""
        nodes, chain = self._brought[1].tolist()
        return float((nodes + _SIDE_NODES * _SIDE_WEIGHT) / (chain + _SIDE_WEIGHT))

    def state(self) -> dict[str, FloatArray]:
        return {"ranks": self._ranks, "brought": self._brought}
