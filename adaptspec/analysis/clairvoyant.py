"""The clairvoyant plan of one request: the cheapest rounds that emit its text, every agreement known in advance.

Dynamic programming over output positions, from the last to the first. Exact for a request alone, with what a draft
model has missed counted as read in the round that drafts again (the engine reads at most 512 tokens a round: where a
lag is longer, the true optimum is a little slower than this).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from adaptspec.analysis.row_costs import RowCosts
from adaptspec.errors import ConfigError
from adaptspec.simulation.tape import Tape

_NEVER = float("inf")


def plan_seconds(tape: Tape, request: int, rows: Mapping[str, RowCosts]) -> float:
    """Seconds of the best plan for all tokens after the first, with these drafters at these costs.

    A draft model's cache falls behind in each round that it does not draft in, which it pays for when it drafts again.
    That price is linear in the tokens missed, so three values per position carry it: `coming` is the least time if the
    model will draft again, each missed token paid at once; `never`, if it will not; `fresh`, if the round
    before was the model's and ended in a miss, when one more token may pass before any is missed.

    Raises:
        ConfigError: there is more than one draft model.
    """
    model = _model(rows)
    price = rows[model].catch_up if model else 0.0
    options = _Options(tape, request, rows)
    length, prompt = options.length, options.prompt
    coming, never, fresh = [_NEVER] * (length + 1), [0.0] * (length + 1), [0.0] * (length + 1)
    for at in range(length - 1, 0, -1):
        draft = _NEVER
        if model:
            for seconds, to, missed in options.drafts(model, at, past_run=1):
                draft = min(draft, seconds + (fresh[to] if missed else min(coming[to], never[to])))
        idle = [(options.plain(at), at + 1)]
        for lookup in rows:
            if lookup != model:
                idle += [(seconds, to) for seconds, to, _ in options.drafts(lookup, at)]
        coming[at] = min(draft, *(seconds + price * (to - at) + coming[to] for seconds, to in idle), _NEVER)
        never[at] = min(seconds + never[to] for seconds, to in idle)
        later = (seconds + min(coming[to] + price * (to - at - 1), never[to]) for seconds, to in idle)
        fresh[at] = min(draft, *later, _NEVER)
    return 0.0 if length == 1 else min(coming[1] + price * (prompt - 1), never[1])


def _model(rows: Mapping[str, RowCosts]) -> str | None:
    models = [name for name, row in rows.items() if row.runs_model]
    if len(models) > 1:
        raise ConfigError(f"the clairvoyant plan knows one draft model, not {' and '.join(models)}; name one of them")
    return models[0] if models else None


class _Options:
    """What a round may do at each position of one request, as plain numbers."""

    def __init__(self, tape: Tape, request: int, rows: Mapping[str, RowCosts]) -> None:
        start = int(tape.offsets[request])
        self.length = int(tape.lengths[request])
        self.prompt = int(tape.prompt_tokens[request])
        self._most = int(tape.max_tokens[request])
        self._rows = rows
        self._runs = {name: tape.views[name].run[start : start + self.length].tolist() for name in rows}

    def plain(self, at: int) -> float:
        """Seconds of a round without drafts."""
        return next(iter(self._rows.values())).round(self.prompt + at, 0)

    def drafts(self, drafter: str, at: int, past_run: int = 0) -> Iterator[tuple[float, int, bool]]:
        """Seconds, next position, and whether the draft ended in a miss, for every depth that may be worth it."""
        row, run = self._rows[drafter], self._runs[drafter][at]
        limit = min(row.deepest, self._most - at - 1, run + past_run)
        for depth in range(1, limit + 1):
            yield row.round(self.prompt + at, depth), min(at + min(depth, run) + 1, self.length), depth > run
