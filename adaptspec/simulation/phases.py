"""Shifts of traffic in a stream: its phases, and how soon a policy is as fast as the best fixed setting of a new one.

Knows seconds per request; what a policy did to get them is not its affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.types import FloatArray

# Shorter phases are no traffic that one could settle on: what counts there is each request by itself.
_LEAST_REQUESTS = 2
# Within so much of the best setting's goodput a policy has recovered.
_NEAR = 0.05


@dataclass(frozen=True)
class Phase:
    """Requests `start` to `end` of a stream's order: of one task, with as many rows throughout."""

    start: int
    end: int
    rows: int

    def of(self, stream: Stream) -> Stream:
        """The phase as a stream of its own."""
        return Stream(stream.tape, stream.order[self.start : self.end], Schedule((self.rows,)))


def phases_of(stream: Stream) -> tuple[Phase, ...]:
    """The phases, in order; none where traffic does not shift, or never stays what it is for two requests."""
    kinds = [(stream.tape.tasks[request], stream.rows_at(i)) for i, request in enumerate(stream.order)]
    starts = [i for i, kind in enumerate(kinds) if not i or kind != kinds[i - 1]]
    phases = [Phase(start, end, kinds[start][1]) for start, end in zip(starts, [*starts[1:], len(kinds)], strict=True)]
    if len(phases) < 2 or len(kinds) < _LEAST_REQUESTS * len(phases):
        return ()
    return tuple(phases)


def recovery_tokens(phases: Sequence[Phase], spent: FloatArray, best: FloatArray, tokens: FloatArray) -> list[float]:
    """For each phase but the first: output tokens until what is left of it takes at most 5 % more than it could.

    By whole requests, one at a time: `spent` and `best` [N] are their seconds under the policy and at the phase's best
    fixed setting, `tokens` [N] what they emit. A phase that ends before counts in full.
    """
    found = []
    for phase in phases[1:]:
        here = slice(phase.start, min(phase.end, len(spent)))
        ours, theirs = (part[here][::-1].cumsum()[::-1] for part in (spent, best))
        near = ours * (1.0 - _NEAR) <= theirs
        # The first request from which on every remainder is near.
        late = next((i + 1 for i in range(len(near) - 1, -1, -1) if not near[i]), 0)
        found.append(float(tokens[here][:late].sum()))
    return found
