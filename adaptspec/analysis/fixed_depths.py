"""What a fixed depth would have taken for the text of a journal, as far as its rounds show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.analysis.counterfactual import Counterfactual
from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.drafters import Kind, kind_of
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork
from adaptspec.telemetry.speedup import Estimate, speedup

DEPTHS: IntArray = np.array([1, 2, 3, 4, 5, 7])
_MAX_GUESSED = 0.3  # share of tokens whose acceptance was never seen: beyond, a depth is not known
_MIN_ROUNDS = 30  # rows in which a drafter drafted or was scored: with fewer, none of its depths is known
_PRIOR = 4.0  # rounds that the first guess of an acceptance counts for


@dataclass(frozen=True)
class FixedDepth:
    """A fixed depth of one drafter, `gain` over plain decoding; a share of its tokens was `guessed`."""

    drafter: str
    depth: int
    gain: Estimate
    guessed: float


class FixedDepths:
    """Sums, for every drafter and depth, the rounds that the emitted tokens would have taken.

    A round shows how many tokens other depths would have had accepted (`Counterfactual`). Beyond what it shows, tokens
    are expected by the acceptance of this drafter so far, by position. Where a draft was rejected the number of rounds
    is known exactly. Of drafts that branch, the main chains count.
    """

    def __init__(self, drafters: Sequence[str]) -> None:
        self._drafters = tuple(drafters)
        shape = len(self._drafters), int(DEPTHS[-1])
        self._reached: FloatArray = np.full(shape, _PRIOR)
        self._accepted: FloatArray = np.full(shape, _PRIOR / 2)
        self._known = [0] * len(self._drafters)
        self._tokens = 0
        self._guessed: FloatArray = np.zeros((len(self._drafters), len(DEPTHS)))
        # (drafter, depth index, rows, drafted tokens) -> rounds, and their context tokens
        self._rounds: defaultdict[tuple[int, int, int, int], FloatArray] = defaultdict(lambda: np.zeros(2))

    def add(self, record: RoundRecord) -> None:
        """Add a round by its rows; `record.work` is that of the whole round."""
        if not len(record.rows):
            return
        self._tokens += int(record.emitted.sum())
        for drafter in range(len(self._drafters)):
            self._add(record, drafter)

    def best(self, costs: CostModel, plain: FloatArray) -> FixedDepth | None:
        """The depth with the greatest gain, by the features `plain` [F] of the same rounds; None: none is known."""
        found = [one for drafter in range(len(self._drafters)) for one in self._of_drafter(drafter, costs, plain)]
        return max(found, key=lambda one: one.gain.value, default=None)

    def _add(self, record: RoundRecord, drafter: int) -> None:
        known = Counterfactual.of(record, drafter)
        usual = self._accepted[drafter] / self._reached[drafter]  # [D] of each position, after accepted ones
        kept, guesses = known.accepted(DEPTHS, np.tile(usual, (len(record.rows), 1)))
        main = record.main_chains()
        emitted, accepted, ran = main.emitted[:, None], main.accepted[:, None], known.ran[:, None]
        tokens = 1.0 + kept + guesses
        tokens = np.where(emitted <= accepted, np.minimum(tokens, emitted), tokens)  # the request ended
        # Where a side node was accepted, the tokens after the main chain take rounds of the usual length.
        of_chain = np.where(ran & (emitted > accepted + 1), accepted + 1, emitted)
        rounds = of_chain / np.maximum(tokens, 1.0)
        rounds = np.where(ran & ~known.open_end[:, None], np.ceil(rounds), rounds)
        self._guessed[drafter] += (guesses * rounds).sum(axis=0) + (emitted - of_chain).sum()
        rounds += (emitted - of_chain) / (1.0 + usual.cumprod().cumsum()[DEPTHS - 1])
        drafted = np.minimum(DEPTHS, known.available[:, None]).mean(axis=0)
        work = record.work
        for index, (count, mean) in enumerate(zip(rounds.mean(axis=0).tolist(), drafted.tolist(), strict=True)):
            key = drafter, index, work.rows, round(mean * work.rows)
            self._rounds[key] += (count, count * work.context_tokens)
        self._learn(record, drafter)

    def _learn(self, record: RoundRecord, drafter: int) -> None:
        chains = record.chains(drafter)
        self._known[drafter] += int(np.count_nonzero(chains.known))
        positions = np.arange(self._reached.shape[1])
        drafted, accepted = chains.drafted[:, None], chains.accepted[:, None]
        self._reached[drafter] += ((positions < drafted) & (positions <= accepted)).sum(axis=0)
        self._accepted[drafter] += (positions < accepted).sum(axis=0)

    def _of_drafter(self, drafter: int, costs: CostModel, plain: FloatArray) -> list[FixedDepth]:
        name, found = self._drafters[drafter], list[FixedDepth]()
        if self._known[drafter] < _MIN_ROUNDS:
            return found
        for index, depth in enumerate(DEPTHS.tolist()):
            guessed = float(self._guessed[drafter, index]) / max(self._tokens, 1)
            if guessed > _MAX_GUESSED:
                continue
            keys = [key for key in self._rounds if key[:2] == (drafter, index)]
            counts = np.array([self._rounds[key][0] for key in keys])
            works = [_work(name, depth, *key[2:], self._rounds[key][1] / self._rounds[key][0]) for key in keys]
            gain = speedup(costs, counts @ costs.features(works), plain) if works else None
            if gain is not None:
                found.append(FixedDepth(name, depth, gain, guessed))
        return found


def _work(drafter: str, depth: int, rows: int, drafted: int, context: float) -> RoundWork:
    """A round of a fixed depth."""
    number = {Kind.MODEL_FREE: 0, Kind.BLOCK: 1}.get(kind_of(drafter), depth)
    return RoundWork(rows, rows + drafted, context, (DraftWork(drafter, rows, (rows,) * number),))
