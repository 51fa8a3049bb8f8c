"""What model-free drafters would have proposed at every position of a text: each is asked anew, at full depth.

They read only what was committed. One that learns from other requests may see those recorded before, of the same
temperature: under another one the same prompts were answered, which no server would know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.decision_tables import TreeTable
from adaptspec.drafters import states_confidence
from adaptspec.drafting.drafter import Drafter, DraftJob, ModelFreeDrafter, RowStart
from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.simulation.draft_view import UNRANKED, AfterMiss, DraftView
from adaptspec.types import FloatArray, IntArray

# The deepest draft that a policy may ask for.
_DEEPEST = 64
# Of so many candidates at each position it is noted how sure a drafter is of them.
CANDIDATES = 8


def view_of_model_free(
    drafter: Drafter, start: RowStart, sampling: SamplingBatch, output: Sequence[int], beyond: int
) -> tuple[DraftView, IntArray]:
    """The view of P output tokens, its `rejection` left at 0, and what the drafter proposes first at each (-1: none).

    `start` has the prompt, and says how the request draws. Of a drafter that says how sure it is, `CANDIDATES` are
    noted, and `beyond` tokens after each wrong one.
    """
    found = _Found(output, beyond)
    if isinstance(drafter, ModelFreeDrafter):
        drafter.begin(0, start)
    prompt, here, depths = start.sampling.tokens, np.zeros(1, dtype=np.int64), np.array([_DEEPEST])
    text = [*prompt, *output]
    width, nodes = np.array([CANDIDATES]), np.array([CANDIDATES * _DEEPEST])
    everything = TreeTable(width, nodes, np.zeros(1), np.ones((1, 1, 1)))
    for at in range(len(output)):
        job = DraftJob(here, [text[: len(prompt) + at]], depths, sampling, tree=everything)
        found.note(at, drafter.propose(job))
    drafter.free(0)
    return found.view(states=states_confidence(drafter.name)), found.first


class _Found:
    """What was found so far."""

    def __init__(self, output: Sequence[int], beyond: int) -> None:
        size = len(output)
        self._output = np.array(output, dtype=np.int64)
        self._run, self._reach, self._rank = np.zeros((3, size), dtype=np.int64)
        self._rank[:] = UNRANKED
        self._confidence: FloatArray = np.full(size, np.nan)
        self._after: FloatArray = np.full((size, beyond), np.nan)
        self._top: FloatArray = np.zeros((size, CANDIDATES))
        self.first: IntArray = np.full(size, -1)

    def note(self, at: int, draft: Draft) -> None:
        """What is drafted at a position: its main chain, and candidates beside its first token."""
        count = int(draft.chain[0])
        if not count:
            return
        proposed, sure = draft.tokens[0, :count], draft.confidence[0]
        true = self._output[at : at + count]
        wrong = np.flatnonzero(proposed[: len(true)] != true)
        self._reach[at], self._run[at] = count, wrong[0] if len(wrong) else len(true)
        self.first[at], self._confidence[at] = proposed[0], sure[0]
        firsts = np.zeros(1, dtype=np.int64)
        ranks = firsts
        if draft.tree is not None:
            firsts = np.flatnonzero(draft.tree.parents[0, : draft.counts[0]] < 0)
            ranks = draft.tree.ranks[0, firsts]
        self._top[at, ranks] = sure[firsts]
        right = ranks[draft.tokens[0, firsts] == true[0]]
        if len(right):
            self._rank[at] = right[0]
        if not self._run[at]:
            after = sure[1 : min(count, 1 + self._after.shape[1])]
            self._after[at, : len(after)] = after

    def view(self, *, states: bool) -> DraftView:
        """All of it; of a drafter that never `states` how sure it is, without what it would have said."""
        unknown = np.full_like(self._confidence, np.nan)
        view = DraftView(self._run, self._reach, self._rank, self._confidence, unknown, np.zeros_like(self._confidence))
        if not states:
            return view
        return replace(view, after_miss=AfterMiss(self._after, np.full_like(self._after, np.nan)), top=self._top)
