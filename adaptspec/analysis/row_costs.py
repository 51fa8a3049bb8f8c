"""What one request's own round costs when it has the machine to itself, or its share of a full batch.

At batch 1 the figures are the round's, exactly. At batch B they are shares that no round of at most B rows can
undercut, so that a plan priced with them is at most as slow as any real one: see `shares`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from adaptspec.simulation.cost_profiles import MachineCosts


@dataclass(frozen=True)
class RowCosts:
    """Seconds of a row's round. `verify[n]` and `steps[n]` are for n drafted tokens, overhead included in `verify`;
    cached tokens come on top: `per_cached` for each the target attends to, `draft_per_cached` for each of a draft step.
    """

    verify: Sequence[float]
    steps: Sequence[float]  # n draft steps in all
    catch_up: float  # per token
    per_cached: float
    draft_per_cached: float
    draft_row: float  # a row that drafts, whatever its depth

    @property
    def deepest(self) -> int:
        """The most tokens these costs know of."""
        return len(self.verify) - 1

    @property
    def runs_model(self) -> bool:
        """Whether drafting takes passes of a model, which must have read what came before."""
        return self.steps[-1] > 0.0

    def round(self, context: int, drafted: int, asked: int | None = None) -> float:
        """A round that verifies `drafted` tokens; `asked` differs where a lookup found fewer."""
        seconds = self.verify[drafted] + self.per_cached * context
        if drafted or asked:
            seconds += self.steps[drafted] + self.draft_row
            seconds += self.draft_per_cached * drafted * (context + (drafted - 1) / 2)
        return seconds

    def reading(self, context: int) -> float:
        """A round in which the draft model takes a step to read on, and drafts nothing yet."""
        return self.round(context, 1) - self.verify[1] + self.verify[0]


def alone(costs: MachineCosts, drafter: str, deepest: int) -> RowCosts:
    """The exact costs of a round of one row."""
    own = costs.drafters[drafter]
    step = costs.step_seconds(drafter, 1, 0.0)
    return RowCosts(
        [costs.overhead + costs.verify_seconds(1, 1 + n, 0.0) for n in range(deepest + 1)],
        [step * n for n in range(deepest + 1)],
        own.catch_up_per_token,
        costs.per_cached_token,
        own.per_cached_token,
        own.per_row + own.start,
    )


def shares(costs: MachineCosts, drafter: str, deepest: int, rows: int) -> list[RowCosts]:
    """Shares of a round of `rows` rows, each of which underestimates every round; the largest bound is the best.

    For any slope b, a round that verifies n tokens takes at least a(b) + b n with a(b) = min over n of (T(n) - b n), n
    from `rows` to rows x (deepest + 1): a row with d drafts gets a(b) / rows + b (1 + d). A draft step of m <= rows
    rows takes at least m / rows of a full one if its cost does not fall with m per row more than in proportion, which
    holds for a line s0 + s1 m. Slopes tried are those of the lower convex hull of T: between hull points no other
    slope gives a higher a(b) + b n.
    """
    own = costs.drafters[drafter]
    sizes = range(rows, rows * (deepest + 1) + 1)
    points = [(float(n), costs.overhead + costs.verify_seconds(rows, n, 0.0)) for n in sizes]
    step = costs.step_seconds(drafter, rows, 0.0) / rows
    priced = []
    for (x0, y0), (x1, y1) in pairwise(_lower_hull(points)):
        slope = (y1 - y0) / (x1 - x0)
        fixed = (y0 - slope * x0) / rows
        priced.append(
            RowCosts(
                [fixed + slope * (1 + n) for n in range(deepest + 1)],
                [step * n for n in range(deepest + 1)],
                own.catch_up_per_token,
                costs.per_cached_token,
                own.per_cached_token,
                own.per_row + own.start / rows,
            )
        )
    return priced


def _lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            # Points closer to the chord than rounding would only make slopes that differ by rounding.
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0) * (1.0 - 1e-12):
                break
            hull.pop()
        hull.append((x, y))
    return hull
