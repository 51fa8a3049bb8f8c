"""Estimates of how many drafted tokens are accepted, as decayed counts of tokens that were reached and rejected.

`ModelAcceptance` is for drafters that run a model, by position in the draft and by the confidence that the model
states. `model_free_acceptance` has the estimates of the other drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.policy import Learner
from adaptspec.rounds import RoundRecord

# The least acceptance: stop rules divide by it.
_MIN_ACCEPTANCE = 0.005
# Observations that the parent of a level is worth in each class, and rejections that it is worth in the level's one
# factor; equal to the default prior. Policies earn the same with 20.
_PARENT_WEIGHT = 8.0
CONFIDENCE_BINS = 10
# Side nodes have counts for each rank up to this one; later ranks share the last.
_RANKS = 8
# Prior of side nodes: tokens that they add for each missed token of the main chain, side nodes for each token of the
# chain, and the observations that both are worth.
_SIDE_GAIN, _SIDE_NODES, _SIDE_WEIGHT = 0.3, 1.0, 20.0
_LEARNED_TOGETHER = 8  # rounds; fewer at first, since early rounds say most


@dataclass(frozen=True)
class AcceptanceSettings:
    """Prior of acceptance, and how fast counts decay."""

    prior: float = 0.5
    prior_weight: float = 8.0  # observations that the prior is worth
    decay: float = 0.998  # of a row's counts per round, of a task's and of all traffic's per draft: some 500 count


class Acceptance:
    """P(a token is accepted | all before it were) by class, on three levels: all traffic, tasks, rows.

    Classes are positions in the draft, or what else a subclass or user distinguishes. The hazards (1 - acceptance) of a
    level are those of its parent times one factor, how much more often the level rejects than its parent predicts, and
    then corrected in each class by the level's counts. So a few shallow drafts inform deeper positions, and a cautious
    prior does not keep drafts shallow. The counts of a row decay with each of its rounds, drafted or not.
    """

    def __init__(
        self,
        rows: int,
        tasks: int,
        classes: int,
        settings: AcceptanceSettings = AcceptanceSettings(),
        prior: FloatArray | None = None,
    ) -> None:
        """`tasks` includes task 0, unknown. `prior` [classes]: acceptance in place of `settings.prior`."""
        self.settings = settings
        self._first_row = 1 + tasks
        # By level (all traffic, each task, each row): how often each class was reached, and rejected.
        self._counts: FloatArray = np.zeros((1 + tasks + rows, 2, classes))
        self._prior: FloatArray = np.full((1, classes), 1.0 - settings.prior) if prior is None else 1.0 - prior[None]
        self._task_hazards: FloatArray | None = None  # [tasks, classes] until counts change

    def start(self, row: int) -> None:
        """A request starts in a row."""
        self._counts[self._first_row + row] = 0.0

    def observe(self, rows: IntArray, tasks: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn from N row-rounds, all [N], whose classes are positions.

        Rows may repeat; row -1 is a request that has ended, and counts for its task. A row-round without a draft only
        decays the counts of its row.
        """
        classes = np.arange(self._counts.shape[2])
        self.observe_classes(rows, tasks, np.broadcast_to(classes, (len(rows), len(classes))), drafted, accepted)

    def observe_classes(
        self, rows: IntArray, tasks: IntArray, classes: IntArray, drafted: IntArray, accepted: IntArray
    ) -> None:
        """As `observe`, for tokens of `classes` [N, tokens]."""
        levels, _, size = self._counts.shape
        reach = np.minimum(accepted + 1, drafted)  # tokens after the first rejected one are unknown
        index, position = (np.arange(classes.shape[1]) < reach[:, None]).nonzero()
        row_level = np.where(rows < 0, levels, self._first_row + rows)  # `levels`: discarded below
        reached = np.stack((1 + tasks[index], row_level[index])) * (2 * size) + classes[index, position]
        rejected = reached[:, position >= accepted[index]] + size
        counts = np.bincount(np.append(reached, rejected), minlength=(levels + 1) * 2 * size).reshape(-1, 2, size)
        counts[0] = counts[1 : self._first_row].sum(axis=0)
        drafts = drafted > 0
        rounds = np.bincount(1 + tasks[drafts], minlength=levels)
        rounds[self._first_row :] = np.bincount(row_level, minlength=levels)[self._first_row : levels]
        rounds[0] = np.count_nonzero(drafts)
        self._counts *= (self.settings.decay**rounds)[:, None, None]
        self._counts += counts[:-1]
        self._task_hazards = None

    def acceptance(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """[B, classes] of rows [B] whose requests are of these tasks [B]."""
        parent = self._hazards_of_tasks()[tasks]
        return 1.0 - _hazards(self._counts[self._first_row + rows], parent)

    def of_tasks(self, tasks: IntArray) -> FloatArray:
        """[N, classes] of tasks [N]."""
        return np.asarray(1.0 - self._hazards_of_tasks()[tasks])

    def counts(self) -> FloatArray:
        """[1 + tasks, 2, classes] counts of all traffic and of tasks, to be saved or written to."""
        self._task_hazards = None
        return self._counts[: self._first_row]

    def _hazards_of_tasks(self) -> FloatArray:
        """[tasks, classes]."""
        if self._task_hazards is None:
            traffic = _hazards(self._counts[:1], self._prior, self.settings.prior_weight)
            self._task_hazards = _hazards(self._counts[1 : self._first_row], traffic)
        return self._task_hazards


def _hazards(counts: FloatArray, parent: FloatArray, weight: float = _PARENT_WEIGHT) -> FloatArray:
    """[levels, classes] hazards of levels with these counts [levels, 2, classes], given those of their parents.

    `weight`: observations that the parent is worth in each class.
    """
    reached, rejected = counts[:, 0], counts[:, 1]
    observed, expected = rejected.sum(axis=1, keepdims=True), (reached * parent).sum(axis=1, keepdims=True)
    scaled = np.minimum(parent * (observed + _PARENT_WEIGHT) / (expected + _PARENT_WEIGHT), 1.0)
    hazards = (rejected + weight * scaled) / (reached + weight)
    return np.asarray(np.minimum(hazards, 1.0 - _MIN_ACCEPTANCE))


class Calibration(Acceptance):
    """P(a token is accepted | its confidence, the row): an `Acceptance` whose classes are bins of confidence.

    The confidence is the probability that the drafter states for its token, and the prior of acceptance.
    """

    def __init__(self, rows: int, tasks: int) -> None:
        super().__init__(rows, tasks, CONFIDENCE_BINS, prior=(np.arange(CONFIDENCE_BINS) + 0.5) / CONFIDENCE_BINS)

    @property
    def informed(self) -> bool:
        """Whether any confidence was observed: some drafters state none."""
        return bool(self._counts[0, 0].any())

    def observe_confidence(
        self, confidence: FloatArray, rows: IntArray, tasks: IntArray, drafted: IntArray, accepted: IntArray
    ) -> None:
        """As `observe`, for tokens of `confidence` [N, D]. Drafts with an unknown confidence (NaN) are left out."""
        unknown = np.isnan(confidence)
        if not self.informed and unknown.all():
            return  # there is nothing to decay
        reached = np.arange(confidence.shape[1]) < np.minimum(accepted + 1, drafted)[:, None]
        usable = np.where((unknown & reached).any(axis=1), 0, drafted)
        self.observe_classes(rows, tasks, self.bins_of(np.where(unknown, 0.0, confidence)), usable, accepted)

    def bins_of(self, confidence: FloatArray) -> IntArray:
        """The bin of each confidence; any shape, no NaN."""
        return np.minimum(confidence * CONFIDENCE_BINS, CONFIDENCE_BINS - 1).astype(np.int64)


class SideNodes(Learner):
    """What nodes next to the main chain add: how far their confidence can be believed, and their tokens in all.

    Counts are of all traffic, and decay with each row-round that branched.
    """

    def __init__(self, decay: float = AcceptanceSettings.decay) -> None:
        self._decay = decay
        # By rank: nodes that were accepted, and the sum of their confidences; only of nodes whose parent was accepted.
        self._ranks: FloatArray = np.zeros((2, _RANKS))
        # Tokens that side nodes added, and misses of main chains; side nodes, and tokens of main chains.
        self._totals: FloatArray = np.zeros((2, 2))

    def observe(self, drafter_id: int, record: RoundRecord) -> None:
        """Learn from the rows of a round with branches in which this drafter drafted the main chain."""
        branches, accepted = record.branches, record.kept
        assert branches is not None
        tree, path, row = branches.tree, branches.path, branches.tree.row
        drafted = (record.drafter == drafter_id) & (record.chain > 0) & own_chain(record)
        nodes = (tree.drafter == drafter_id) & drafted[row]
        start = tree.offsets[:-1]
        on_path: BoolArray = np.zeros(len(nodes), dtype=np.bool_)
        depths = np.arange(path.shape[1]) < accepted[:, None]
        on_path[(start[:, None] + path)[depths]] = True
        reached = (tree.parent < 0) | on_path[start[row] + np.maximum(tree.parent, 0)]
        known = nodes & (tree.rank > 0) & reached & ~np.isnan(tree.confidence)
        rank = np.minimum(tree.rank, _RANKS)[known] - 1
        self._ranks[0] += np.bincount(rank, on_path[known], _RANKS)
        self._ranks[1] += np.bincount(rank, tree.confidence[known], _RANKS)
        on_chain = record.kept_on_chain
        missed = drafted & (on_chain < tree.chain)
        added = np.bincount(row[nodes & on_path], minlength=len(drafted)) - on_chain
        self._totals[0] += added[missed].sum(), missed.sum()
        self._totals[1] += (nodes & (tree.index >= tree.chain[row])).sum(), tree.chain[drafted].sum()
        decay = self._decay ** int(drafted.sum())
        self._ranks *= decay
        self._totals *= decay

    @property
    def chances(self) -> FloatArray:
        """[ranks] P(a node of rank 1, 2 ... is accepted) over its confidence; the last serves all later ranks."""
        accepted, confidence = self._ranks + _SIDE_WEIGHT
        return np.asarray(accepted / confidence)

    @property
    def gain(self) -> float:
        """Tokens that side nodes add for each token of a main chain that was not accepted."""
        added, missed = self._totals[0].tolist()
        return float((added + _SIDE_GAIN * _SIDE_WEIGHT) / (missed + _SIDE_WEIGHT))

    @property
    def nodes(self) -> float:
        """Side nodes for each token of a main chain."""
        nodes, chain = self._totals[1].tolist()
        return float((nodes + _SIDE_NODES * _SIDE_WEIGHT) / (chain + _SIDE_WEIGHT))

    def state(self) -> dict[str, FloatArray]:
        return {"ranks": self._ranks, "brought": self._totals}


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
    """Estimates of a drafter that runs a model: by position, by confidence, and of side nodes."""

    def __init__(
        self, rows: int, tasks: int, depth: int, settings: AcceptanceSettings, *, branches: bool = False
    ) -> None:
        self.by_position = Acceptance(rows, tasks, depth, settings)
        self.calibration = Calibration(rows, tasks)
        self.sides = SideNodes() if branches else None

    def start(self, row: int) -> None:
        """A request starts in a row."""
        self.by_position.start(row)
        self.calibration.start(row)

    def observe(self, drafter_id: int, rounds: RowRounds) -> None:
        """Learn from the row-rounds of this drafter."""
        drafts = (rounds.drafter == drafter_id) & (rounds.depths > 0)
        rows, tasks, drafted, accepted = rounds.rows, rounds.tasks, rounds.drafted * drafts, rounds.kept * drafts
        self.by_position.observe(rows, tasks, drafted, accepted)
        self.calibration.observe_confidence(rounds.confidence, rows, tasks, drafted, accepted)
        if self.sides is not None:
            for record in rounds.branched:
                self.sides.observe(drafter_id, record)

    def state(self) -> dict[str, FloatArray]:
        return {
            "acceptance": self.by_position.counts(),
            "calibration": self.calibration.counts(),
            **({} if self.sides is None else self.sides.state()),
        }


class RecordBuffer:
    """Rounds that are yet to be learned from; each counts for the request that had the row when it ran."""

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
        """Remove the buffered rounds and return them, joined row by row; None: there are none."""
        if not self._records:
            return None
        depth, records = self._depth, [record for _, record in self._records]
        rows, counts = np.concatenate([rows for rows, _ in self._records]), [len(r.rows) for r in records]
        tasks, drafter, depths, drafted, kept = (
            np.concatenate([getattr(r, name) for r in records])
            for name in ("tasks", "drafter", "depths", "chain", "kept_on_chain")
        )
        own = np.concatenate([own_chain(r) for r in records])
        drafted, kept = drafted * own, kept * own
        read = np.repeat([r.caught_up > 0 for r in records], counts)
        confidence: FloatArray = np.full((len(rows), depth), np.nan)
        for r, end in zip(records, np.cumsum(counts).tolist(), strict=True):
            stated = r.confidence[:, :depth]
            confidence[end - len(stated) : end, : stated.shape[1]] = stated
        drafted = np.minimum(drafted, depth)
        self._records = []
        return RowRounds(
            rows,
            tasks,
            drafter,
            np.where((drafted == 0) & read, 0, np.minimum(depths, depth)),  # a row that only caught up was not stopped
            drafted,
            np.minimum(kept, drafted),
            confidence,
            [r for r in records if r.branches is not None],
        )


def own_chain(record: RoundRecord) -> BoolArray:
    """Whether each row's main chain is of the drafter decided for it, not of the lookups of a union [B]."""
    return np.asarray(record.main_chains().drafter == record.drafter)
