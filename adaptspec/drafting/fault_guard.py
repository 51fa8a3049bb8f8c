"""Guards against failures of a drafter: they cost drafts, never answers.

Verification gives the target's text without a draft. So an error means that nothing is drafted in that round, and
NaN scores end the draft. The rows' caches are dropped and read again later. The drafter is suspended, for longer each
time it fails again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch

from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob, ModelDrafter, NodeChoices, RowStart
from adaptspec.models.runner import Packed

MIN_SUSPENSION, MAX_SUSPENSION = 0.1, 60.0  # seconds
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class GuardedDrafter(Drafter):
    """Calls a drafter. If the call fails, the result is that of a drafter that finds nothing."""

    def __init__(self, inner: Drafter, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner = inner
        self.name = inner.name
        self.non_anticipating = inner.non_anticipating  # errors do not depend on sampled tokens
        self.learns_from_choices = inner.learns_from_choices
        self._model = inner if isinstance(inner, ModelDrafter) else None
        self._clock = clock
        self._suspended_until = 0.0
        self._suspension_seconds = 0.0  # of the latest suspension

    @property
    def runs_model(self) -> bool:
        return self._model is not None

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`; an empty draft while the drafter is suspended."""
        rows = job.rows.tolist()
        draft = None if self._suspended else self._guarded(lambda: self.inner.propose(job), None, rows)
        if draft is None:
            return Draft(DraftTree.empty(len(rows)))
        broken = np.isnan(draft.tree.confidence)  # drawn from NaN scores
        if not self.runs_model or not broken.any():
            return draft
        self._fail(ArithmeticError("the draft model's scores are NaN"), rows)
        # Tokens drawn earlier are kept: which scores are NaN may depend on them.
        return draft._replace(tree=draft.tree.keep(~broken))

    def start(self, row: int, start: RowStart) -> None:
        """See `Drafter.start`."""
        self._guarded(lambda: self.inner.start(row, start), None, (row,))

    def cache_gap(self, row: int, length: int) -> int:
        """See `Drafter.cache_gap`; the whole text if the call fails."""
        return self._guarded(lambda: self.inner.cache_gap(row, length), length, (row,))

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:
        """See `Drafter.look_up`; empty while the drafter is suspended."""
        if self._suspended:
            return []
        return self._guarded(lambda: self.inner.look_up(row, tokens, max_depth), [], (row,))

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """See `Drafter.score`; (0, 0) while the drafter is suspended."""
        if self._suspended:
            return 0, 0
        return self._guarded(lambda: self.inner.score(row, tokens, start), (0, 0), (row,))

    def observe(self, row: int, choices: NodeChoices) -> None:
        """See `Drafter.observe`."""
        self._guarded(lambda: self.inner.observe(row, choices), None, (row,))

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """See `Drafter.commit`."""
        try:  # not `_guarded`: a closure for each row of each round costs measurable time
            self.inner.commit(row, valid, tokens)
        except Exception as error:  # noqa: BLE001
            self._fail(error, (row,))

    def leave(self, row: int) -> None:
        """See `Drafter.leave`."""
        self._guarded(lambda: self.inner.leave(row), None, ())

    # Methods of `ModelDrafter`. They do nothing for model-free drafters.

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`."""
        if (model := self._model) is not None:
            self._guarded(lambda: model.copy_prefix(source, target, length), None, (target,))

    def free(self, row: int) -> None:
        """See `ModelDrafter.free`."""
        if (model := self._model) is not None:
            self._guarded(lambda: model.free(row), None, ())

    def activate(self, *, active: bool) -> None:
        """See `ModelDrafter.activate`."""
        if self._model is not None:
            self._model.activate(active=active)

    def observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """See `ModelDrafter.observe_pass`."""
        if (model := self._model) is not None:
            self._guarded(lambda: model.observe_pass(packed, starts, states), None, packed.rows.tolist())

    def observe_commit(self, accepted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """See `ModelDrafter.observe_commit`."""
        if (model := self._model) is not None:
            self._guarded(lambda: model.observe_commit(accepted), None, [row for row, _ in accepted])

    def _guarded(self, call: Callable[[], _T], default: _T, rows: Iterable[int]) -> _T:
        """The result of `call`. If it fails, drop `rows`, suspend the drafter and return `default`."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001
            self._fail(error, rows)
            return default

    @property
    def _suspended(self) -> bool:
        return self._clock() < self._suspended_until

    def _fail(self, error: Exception, rows: Iterable[int]) -> None:
        if not self._suspended:  # a suspended drafter still leaves and frees rows, which may fail as well
            self._suspend(error)
        for row in rows:
            self.leave(row)
            self.free(row)

    def _suspend(self, error: Exception) -> None:
        now = self._clock()
        # After a run without failure that was as long as the latest suspension, a failure counts as a new one.
        is_repeated = self._suspension_seconds and now < self._suspended_until + self._suspension_seconds
        self._suspension_seconds = min(2 * self._suspension_seconds, MAX_SUSPENSION) if is_repeated else MIN_SUSPENSION
        self._suspended_until = now + self._suspension_seconds
        _log.warning(
            "%s failed (%s: %s); no drafts for %.1f s",
            self.name,
            type(error).__name__,
            error,
            self._suspension_seconds,
        )
