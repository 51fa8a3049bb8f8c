"""How likely drafted tokens are to be kept: one estimator for all drafters, in decayed counts of reached and rejected.

A model's tokens are told apart by their position in the draft, and by the confidence that the model states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.policy import Learner
from adaptspec.rounds import RoundRecord

# Certainty is never claimed: a hazard (1 - acceptance) stays inside these bounds.
_LEAST, _MOST = 0.005, 0.995
# Bins of confidence, and how sure a draft is at least.
CONFIDENCE_BINS, _LEAST_SURE = 10, 0.35
_RANKS = 8  # side nodes are told apart by rank up to this
_SIDE_GAIN = 0.3  # prior: tokens that side nodes bring for each missed token of the chain
_SIDE_NODES = 1.0  # prior: side nodes for each token of the chain
_SIDE_WEIGHT = 20.0  # observations that these priors are worth
_LEARNED_TOGETHER = 8  # rounds; fewer at first, since early rounds say most


@dataclass(frozen=True)
class AcceptanceSettings:
    """How fast counts fade and how strongly each level leans on the one above."""

    prior: float = 0.5
    prior_weight: float = 8.0  # observations that the prior is worth
    row: float = 0.99  # counts fade so much per round of a request,
    traffic: float = 0.998  # and so much per observation of a task, or of all
    pull: float = 8.0  # rejections that the level above is worth when a level's overall rate is estimated
    class_pull: float = 20.0  # observations that it is worth in one class


class Acceptance:
    """P(a token is kept | all before it were) by class, in levels: all traffic, the tasks, the rows.

    Each level is estimated as its parent's hazards times one factor, how much more often it rejects than its parent,
    then class by class from its own counts: so a few shallow drafts say much about deeper positions, and a cautious
    prior does not stay shallow for ever. The counts of a row fade with every round, drafted or not.
    """

    def __init__(
        self,
        rows: int,
        tasks: int,
        classes: int,
        settings: AcceptanceSettings = AcceptanceSettings(),
        prior: FloatArray | None = None,
        *,
        counts: FloatArray | None = None,
    ) -> None:
        """`tasks` counts the known tasks and task 0, unknown; `prior` [classes] stands in for the settings' own.
        `counts` [1 + tasks + rows, 2, classes], where given, are counted in.
        """
        self.settings = settings
        self._first_row = 1 + tasks
        self._counts: FloatArray = np.zeros((1 + tasks + rows, 2, classes)) if counts is None else counts
        self._prior: FloatArray = np.full((1, classes), 1.0 - settings.prior) if prior is None else 1.0 - prior[None]
        self._known: FloatArray | None = None  # hazards of the tasks, until counts change

    def start(self, row: int) -> None:
        self._counts[self._first_row + row] = 0.0

    def observe(self, rows: IntArray, tasks: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn from row-rounds, all [N]; rows may repeat (-1: the request has ended). One without a draft only fades
        the counts of its row.
        """
        classes = np.arange(self._counts.shape[2])
        places = np.broadcast_to(classes, (len(rows), len(classes)))
        self.observe_classes(rows, tasks, places, drafted, accepted)

    def observe_classes(
        self, rows: IntArray, tasks: IntArray, classes: IntArray, drafted: IntArray, accepted: IntArray
    ) -> None:
        """The same where tokens are of `classes` [N, tokens]."""
        levels, _, size = self._counts.shape
        reach = np.minimum(accepted + 1, drafted)  # what comes after a wrong token is not known to be wrong
        which, place = (np.arange(classes.shape[1]) < reach[:, None]).nonzero()
        ours = np.where(rows < 0, levels, self._first_row + rows)  # the last one: of requests that have ended
        reached = np.stack((1 + tasks[which], ours[which])) * (2 * size) + classes[which, place]
        rejected = reached[:, place >= accepted[which]] + size
        seen = np.bincount(np.append(reached, rejected), minlength=(levels + 1) * 2 * size).reshape(-1, 2, size)
        tried = drafted > 0
        fade = self.settings.traffic ** np.bincount(1 + tasks[tried], minlength=levels)
        fade[self._first_row :] = self.settings.row ** np.bincount(ours, minlength=levels)[self._first_row : levels]
        fade[0] = self.settings.traffic ** np.count_nonzero(tried)
        seen[0] = seen[1 : self._first_row].sum(axis=0)
        self._counts *= fade[:, None, None]
        self._counts += seen[:-1]
        self._known = None

    def acceptance(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """[B, classes] of rows whose requests are of these tasks [B]."""
        parent = self._of_tasks()[tasks]
        hazards = self._shrunk(self._counts[self._first_row + rows], parent, self.settings.class_pull)
        return np.asarray(1.0 - hazards, dtype=np.float64)

    def of_tasks(self, tasks: IntArray) -> FloatArray:
        """[N, classes] of tasks [N]."""
        return np.asarray(1.0 - self._of_tasks()[tasks], dtype=np.float64)

    def seen(self) -> FloatArray:
        """Decayed number of times each class was reached [classes], all traffic."""
        return np.asarray(self._counts[0, 0])

    def counts(self) -> FloatArray:
        """Those of all traffic and of the tasks [1 + tasks, 2, classes], which may be written to: rows come and go."""
        self._known = None
        return self._counts[: self._first_row]

    def _of_tasks(self) -> FloatArray:
        known = self._known
        if known is None:
            everything = self._shrunk(self._counts[:1], self._prior, self.settings.prior_weight)
            known = self._shrunk(self._counts[1 : self._first_row], everything, self.settings.class_pull)
            self._known = known
        return known

    def _shrunk(self, own: FloatArray, parent: FloatArray, class_pull: float) -> FloatArray:
        reached, rejected = own[:, 0], own[:, 1]
        pull = self.settings.pull
        lost, expected = rejected.sum(axis=1, keepdims=True), (reached * parent).sum(axis=1, keepdims=True)
        usual = np.minimum(parent * (lost + pull) / (expected + pull), 1.0)
        hazards = (rejected + class_pull * usual) / (reached + class_pull)
        return np.asarray(np.minimum(np.maximum(hazards, _LEAST), _MOST), dtype=np.float64)


class Calibration(Acceptance):
    """P(a token is kept | the draft's confidence in it, the row): acceptance whose classes are bins of confidence.

    At first `least` + (1 - `least`) x confidence: small drafts are right more often than unsure ones believe. A row
    that repeats itself is surer than its draft knows, one that copies rare names less so.
    """

    def __init__(self, rows: int, tasks: int, bins: int = CONFIDENCE_BINS, least: float = _LEAST_SURE) -> None:
        prior = least + (1.0 - least) * (np.arange(bins) + 0.5) / bins
        super().__init__(rows, tasks, bins, prior=prior)
        self._bins = bins

    @property
    def informed(self) -> bool:
        return bool(self.seen().any())

    def acceptance(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """See `Acceptance`; where drafts never say how sure they are, all rows have what is believed at first."""
        if self.informed:
            return super().acceptance(rows, tasks)
        return np.repeat(1.0 - np.clip(self._prior, _LEAST, _MOST), len(rows), axis=0)

    def observe_confidence(
        self, confidence: FloatArray, rows: IntArray, tasks: IntArray, drafted: IntArray, accepted: IntArray
    ) -> None:
        """As `observe`; `confidence` [N, D], NaN where unknown: that says nothing."""
        unknown = np.isnan(confidence)
        if not self.informed and unknown.all():
            return  # there is nothing to fade
        reached = np.arange(confidence.shape[1]) < np.minimum(accepted + 1, drafted)[:, None]
        told = np.where((unknown & reached).any(axis=1), 0, drafted)
        self.observe_classes(rows, tasks, self.bins_of(np.where(unknown, 0.0, confidence)), told, accepted)

    def bins_of(self, confidence: FloatArray) -> IntArray:
        """The class of each confidence; any shape, no NaN."""
        return np.minimum(confidence * self._bins, self._bins - 1).astype(np.int64)


class Continuation:
    """How far drafts go before a stop rule ends them: P(position j is drafted | j - 1 was, and the depth allowed j).

    Counted twice: over all drafts (what drafting costs), and over those whose tokens were all accepted so far (what it
    gains).
    """

    def __init__(self, depth: int) -> None:
        self._counts: FloatArray = np.zeros((2, 2, 2, depth))
        parts = (Acceptance(0, 1, depth, prior=np.ones(depth), counts=own) for own in self._counts)
        self._everyone, self._alive = parts

    def observe(self, depths: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Row-rounds [N]: depths decided (0: says nothing), tokens drafted and accepted."""
        nobody, any_task = np.full(len(depths), -1), np.zeros(len(depths), dtype=np.int64)
        for known, allowed in ((self._everyone, depths), (self._alive, np.minimum(depths, accepted + 1))):
            known.observe(nobody, any_task, allowed, np.minimum(drafted, allowed))

    def rates(self) -> tuple[FloatArray, FloatArray]:
        """Two [depth]: P(position j is not stopped | accepted so far), P(it is drafted)."""
        any_task = np.zeros(1, dtype=np.int64)
        return self._alive.of_tasks(any_task)[0].cumprod(), self._everyone.of_tasks(any_task)[0].cumprod()

    def counts(self) -> FloatArray:
        """Both counts [2, 2, 2, depth], which may be written to."""
        for known in (self._everyone, self._alive):
            known.counts()
        return self._counts


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
        mine = (record.drafter == which) & (record.chain > 0) & own_chain(record)
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
        """[ranks] P(a node of rank 1, 2 ... is kept) over its stated probability; the last serves all later ranks."""
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


@dataclass(frozen=True)
class RowRounds:
    """Rounds of single rows, all [N] (of requests that have ended: row -1); `confidence` [N, D].

    `kept` are tokens of the main chain. `branched` are the rounds among them whose drafts branch.
    """

    rows: IntArray
    tasks: IntArray
    drafter: IntArray
    depths: IntArray
    drafted: IntArray
    kept: IntArray
    confidence: FloatArray
    branched: Sequence[RoundRecord]


class ModelAcceptance(Learner):
    """What is known of a drafter that runs a model: acceptance by position, its confidence, how far its drafts go."""

    def __init__(
        self, rows: int, tasks: int, depth: int, settings: AcceptanceSettings, *, branches: bool = False
    ) -> None:
        self.by_position = Acceptance(rows, tasks, depth, settings)
        self.calibration = Calibration(rows, tasks)
        self.continuation = Continuation(depth)
        self.sides = SideNodes() if branches else None

    def start(self, row: int) -> None:
        self.by_position.start(row)
        self.calibration.start(row)

    def observe(self, which: int, rounds: RowRounds) -> None:
        """Learn from row-rounds as the drafter with number `which`."""
        mine = (rounds.drafter == which) & (rounds.depths > 0)
        rows, tasks, drafted, kept = rounds.rows, rounds.tasks, rounds.drafted * mine, rounds.kept * mine
        self.by_position.observe(rows, tasks, drafted, kept)
        self.continuation.observe(rounds.depths * mine, drafted, kept)
        self.calibration.observe_confidence(rounds.confidence, rows, tasks, drafted, kept)
        if self.sides is not None:
            for record in rounds.branched:
                self.sides.observe(which, record)

    def state(self) -> dict[str, FloatArray]:
        return {
            "acceptance": self.by_position.counts(),
            "continuation": self.continuation.counts(),
            "calibration": self.calibration.counts(),
            **({} if self.sides is None else self.sides.state()),
        }


class RecordBuffer:
    """Rounds that are yet to be learned from. Requests may begin and end meanwhile: each round is its own request's."""

    def __init__(self, depth: int) -> None:
        """`depth`: longer drafts are cut to this many tokens."""
        self._depth = depth
        self._records: list[tuple[IntArray, RoundRecord]] = []  # with the rows of requests that still run, else -1
        self._rounds = 0

    def start(self, row: int) -> None:
        """Another request has the row."""
        for rows, _ in self._records:
            rows[rows == row] = -1

    def add(self, record: RoundRecord) -> None:
        """Buffer a round."""
        self._records.append((record.current_rows.copy(), record))
        self._rounds += 1

    @property
    def due(self) -> bool:
        """Whether so many rounds wait that they are to be learned now."""
        return len(self._records) >= min(_LEARNED_TOGETHER, 1 + self._rounds // _LEARNED_TOGETHER)

    def taken(self) -> RowRounds | None:
        """What the rounds so far tell, which is then forgotten; None: there are none."""
        if not self._records:
            return None
        depth, records = self._depth, [record for _, record in self._records]
        rows, counts = np.concatenate([rows for rows, _ in self._records]), [len(r.rows) for r in records]
        tasks, drafter, depths, drafted, kept = (
            np.concatenate([getattr(r, name) for r in records])
            for name in ("tasks", "drafter", "depths", "chain", "straight")
        )
        own = np.concatenate([own_chain(r) for r in records])
        drafted, kept = drafted * own, kept * own
        read = np.repeat([r.caught_up > 0 for r in records], counts)
        confidence: FloatArray = np.full((len(rows), depth), np.nan)
        for r, end in zip(records, np.cumsum(counts).tolist(), strict=True):
            own = r.confidence[:, :depth]
            confidence[end - len(own) : end, : own.shape[1]] = own
        drafted = np.minimum(drafted, depth)
        self._records = []
        return RowRounds(
            rows,
            tasks,
            drafter,
            np.where((drafted == 0) & read, 0, np.minimum(depths, depth)),  # who only caught up was not stopped
            drafted,
            np.minimum(kept, drafted),
            confidence,
            [r for r in records if r.branches is not None],
        )


def own_chain(record: RoundRecord) -> BoolArray:
    """Whether each row's main chain is its own drafter's, and not that of one which drafted beside it [B]."""
    if record.branches is None or not record.branches.tree.drafters.shape[1]:
        return np.ones(len(record.rows), dtype=np.bool_)
    return np.asarray(record.branches.tree.drafters[:, 0] == record.drafter)
