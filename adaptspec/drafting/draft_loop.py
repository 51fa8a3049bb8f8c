"""Drafting on a device: each step is launched before the host has read the one before.

The host decides one step behind whether a draft goes on, so the device never waits for the host. A row that stops has
one more step under way, whose token is drafted as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.tree_builder import Candidates, Node, TreeBuilder
from adaptspec.models.async_runner import AsyncRunner
from adaptspec.models.runner import Packed
from adaptspec.models.sampling import Choices, Chooser, PendingChoices
from adaptspec.progress import report_progress


class DraftLoop:
    """The passes of one draft, whose main chains alone are expanded; satisfies `CandidateSource`.

    Rules that depend on drafted tokens (penalties, grammars) are known once the host has read these, so such drafts are
    computed step by step.
    """

    beams = False

    def __init__(
        self, runner: AsyncRunner, chooser: Chooser, job: DraftJob, builder: TreeBuilder, first: Packed
    ) -> None:
        """`first` is the pass that reads the text before the draft."""
        self._runner, self._chooser, self._job, self._builder, self._first = runner, chooser, job, builder, first
        self.lag = 0 if any(row.needs_path for row in job.sampling.rows) else 1
        self._rows: list[list[int]] = []  # of each launched step
        self._pending: list[PendingChoices] = []

    @property
    def passes(self) -> list[int]:
        """The number of rows of each pass, used or not."""
        return list(map(len, self._rows))

    def has_room(self, row: int, more: int) -> bool:  # noqa: ARG002
        """See `CandidateSource.has_room`."""
        return False

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        """See `CandidateSource.candidates`."""
        report_progress()
        rows = [row for row, _ in frontier]
        while len(self._pending) <= step + self.lag:
            depth = len(self._pending)
            going = [row for row in rows if not depth or self._job.depths[row] > depth]
            if not going:
                break
            self._launch(going, depth)
        found = self._pending[step].wait()
        index = {row: n for n, row in enumerate(self._rows[step])}
        return [_candidates(found, index[row]) for row in rows]

    def take_rest(self, eos_token_ids: Collection[int]) -> None:
        """Add the tokens of steps that were under way when their rows stopped; none follows one of `eos_token_ids`."""
        for step, rows in enumerate(self._rows):
            for n, row in enumerate(rows):
                nodes = self._builder.row(row)
                has_ended = step > 0 and nodes.tokens[nodes.chain_end] in eos_token_ids
                if len(nodes.chain) == step and not has_ended:
                    self._builder.submit(row, nodes.chain_end, _candidates(self._pending[step].wait(), n))

    def num_read(self, row: int) -> int:
        """Drafted tokens of a row that the model has read."""
        return sum(row in rows for rows in self._rows) - 1

    def _launch(self, rows: list[int], step: int) -> None:
        """Read the newest token of each row and choose the next one."""
        job, index = self._job, np.array(rows, dtype=np.int64)
        packed = self._first
        if step:
            last = {row: n for n, row in enumerate(self._rows[-1])}
            drawn = np.array([-1 - last[row] for row in rows], dtype=np.int64)
            ones = np.ones_like(drawn)
            packed = Packed(job.rows[index], ones, drawn, ones)
        logits = self._runner.forward(packed).logits
        paths = [self._path(row, step) for row in rows]
        width = max(map(self._builder.width, rows))
        choices = self._chooser.start(logits, job.sampling, index, paths, width)
        self._runner.drawn = choices.first
        self._rows.append(rows)
        self._pending.append(choices)

    def _path(self, row: int, step: int) -> list[int]:
        """The drafted tokens before a step; those that the host does not know are 0, since no rule depends on them."""
        nodes = self._builder.row(row)
        known = [nodes.tokens[number] for number in nodes.chain[:step]]
        return known + [0] * (step - len(known))


def _candidates(found: Choices, n: int) -> Candidates:
    """The candidates at position n; their confidence is NaN if logits were, which ends the draft (`GuardedDrafter`)."""
    tokens, confidence, entropy = found.tokens[n].tolist(), found.confidence[n], float(found.entropy[n])
    known = np.full_like(confidence, np.nan) if np.isnan(entropy) else confidence
    return zip(tokens, known.tolist(), strict=True), entropy
