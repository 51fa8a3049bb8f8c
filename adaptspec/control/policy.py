"""What a policy sees before a round, what it answers, what it learns from, and how what it learned is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import Decision
from adaptspec.errors import StateError
from adaptspec.rounds import RoundRecord


@dataclass(eq=False, slots=True)
class BatchSignals:
    """The decoding rows of the coming round, one entry per row (B of them).

    `rows` are the engine's row numbers: stable while a request runs, reused afterwards. `limits` is the depth each row
    may not pass (the request's ceiling, its remaining tokens, the context's room). `cache_gap` [drafters, B] is
    how many tokens each drafter is behind, beyond the usual one or two: what drafting with it would have to catch up
    first. What a policy sees has its own drafters first, in its order. `found` [drafters, B] is how many tokens a
    model-free drafter has found for each row (a lookup), within the limits: known before the round, since a search
    takes next to no time. It is 0 for drafters that do not report it, and where no search was asked for (see
    `Policy.search_depth`). `stated` [drafters, B, depth] is a drafter's confidence in each token it found, NaN where
    unknown, as for n-grams; None: no drafter states it.
    `position` counts the tokens a row has emitted. `other_rows` counts rows that decode in the same round under other
    policies. The controller fills in `tasks` (0: unknown).
    """

    rows: IntArray
    tasks: IntArray
    context: IntArray
    limits: IntArray
    cache_gap: IntArray
    found: IntArray
    position: IntArray
    prefill_tokens: int = 0
    other_rows: int = 0
    stated: FloatArray | None = None

    @property
    def batch_size(self) -> int:
        return len(self.rows)

    @property
    def round_size(self) -> int:
        return len(self.rows) + self.other_rows

    def take(self, index: IntArray) -> BatchSignals:
        """The same signals for some of the rows, by position in the batch; the rest become `other_rows`."""
        return BatchSignals(
            self.rows[index],
            self.tasks[index],
            self.context[index],
            self.limits[index],
            self.cache_gap[:, index],
            self.found[:, index],
            self.position[index],
            self.prefill_tokens,
            self.round_size - len(index),
            None if self.stated is None else self.stated[:, index],
        )


class Learner:
    """Something with a state. This base has none."""

    def state(self) -> dict[str, FloatArray]:
        """The arrays themselves that it learns in, by name: callers may write to them.

        Decayed sums. They are additive: the states of two replicas, added name by name, are the state of both. So a
        prior stays out of them. Names of optional parts begin with `@` and the part's name, and a slash.
        """
        return {}

    def learned(self) -> dict[str, FloatArray]:
        """Copies of what is worth keeping across restarts; {} where there is nothing."""
        return {name: np.array(values) for name, values in self.state().items()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Go on from what `learned` once gave, in place of what has been seen so far. Called before any row starts.

        An optional part of which it says nothing, or of another kind, starts anew. Raises StateError, and changes
        nothing, for what is not of these shapes, or not possible.
        """
        own = self.state()
        taken: dict[str, FloatArray] = {}
        for part in {_part(name) for name in (*own, *learned)}:
            names, given = ([name for name in all_ if _part(name) == part] for all_ in (own, learned))
            if part and set(names) != set(given):
                continue
            if set(given) - set(names):
                strange = f"{', '.join(sorted(set(given) - set(names)))} cannot be restored: "
                raise StateError(strange + ("it is of another algorithm" if names else "this policy learns nothing"))
            taken.update({name: _checked(learned, name, own[name].shape) for name in names})
        for name, values in taken.items():
            own[name][...] = values


def _part(name: str) -> str:
    return name.rpartition("/")[0] if name.startswith("@") else ""


def _checked(learned: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray:
    if name not in learned:
        raise StateError(f"{name!r} is missing; there are: {', '.join(learned) or 'none'}")
    found: FloatArray = np.array(learned[name], dtype=np.float64)
    if found.shape != shape:
        shapes = f"{name!r} has the shape {list(found.shape)}, not {list(shape)}"
        raise StateError(f"{shapes}: it was learned with other depths, drafters or tasks")
    if not np.isfinite(found).all():
        raise StateError(f"{name!r} holds a value that is no finite number; forget this state and learn anew")
    if (found < 0.0).any():
        raise StateError(f"{name!r} has a negative count; forget this state and learn anew")
    return found


class Policy(Learner):
    """Decides the depths of a batch and learns from rounds. Called on one thread.

    `learn` is called once for each round, in order, maybe several rounds late, without rows that ran by another row's
    decision (see `DecisionCache`); `decide` only where no earlier decision is reused. `start` and `finish` bracket the
    life of a request in a row; state of a row must not outlive `finish`. What is not overridden does nothing.
    """

    drafters: tuple[str, ...]  # names of those that it uses, preferred first
    max_depth: int  # the deepest draft it will ever ask for

    @property
    def wanted(self) -> tuple[str, ...]:
        """The drafters that it cannot do without: none if it never drafts."""
        return self.drafters if self.max_depth else ()

    @property
    def search_depth(self) -> int | None:
        """How many tokens model-free drafters are to look for in the coming round (see `BatchSignals.found`).

        0: none this time, nor are they scored. None: the policy never uses what they find.
        """
        return None

    def start(self, row: int) -> None:
        """A request begins decoding in `row`; what it is comes with the signals of its rounds."""

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""

    def decide(self, signals: BatchSignals) -> Decision:
        """Choose depths (0 <= depth <= limits) for these rows; the decision is the caller's to complete."""
        raise NotImplementedError

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        """Learn from a round in which this policy's rows ran; only its rows are listed.

        `memo` is that of the policy's decision (see `Decision.memo`); None where the round ran by no decision of this
        policy. `drafter` and `shadow` count this policy's drafters first, in its order, as `BatchSignals.cache_gap`
        does. Seconds, steps and tokens of the verify pass are those of the whole round.
        """
