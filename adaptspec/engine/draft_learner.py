"""Trains the draft model on what is served, while nothing is: on what the target would have said where it rejected.

Texts stay what they are, since a draft decides only how fast they come. Source of the idea: Liu et al. 2023, "Online
Speculative Decoding" (https://arxiv.org/abs/2310.07177).

An update is made of small pieces of work, in the gaps between requests. It is swapped in if it finds answers
likelier that it was not trained on, and undone if less of its drafts are then accepted than before.
"""

from __future__ import annotations

import logging
import math
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import stdtrit

from adaptspec.drafting.draft_student import Student, Tensors, Window, one_thread
from adaptspec.engine.scheduler import Batch
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.decoder import Decoder
from adaptspec.models.draft import Draft
from adaptspec.models.weights import DecoderWeights
from adaptspec.types import IntArray
from adaptspec.verification.method import VerifyResult, window_starts

TOP = 16  # of the target's likeliest tokens that are kept, in 8 bytes each
MOST_BYTES = 8 * 2**20  # of texts and of what the target said in them: the oldest finished ones go first
HELD_OUT, FEWEST = 128, 16  # requests, at most and at least, that updates are judged by: every other one
FRESH = 1024  # rejections before an update
STEPS, BATCH = 64, 8  # of an update, and windows in each
TRIAL = 64  # requests by which an update that serves is judged
CONFIDENCE = 0.95  # one-sided, of both judgements
_log = logging.getLogger(__name__)
_Kind = tuple[str, str | None]  # a request's policy and task


@dataclass(frozen=True)
class Lesson:
    """A request's tokens [n], and what the target said before those at `places` [m], where it rejected a drafted one:
    its k likeliest tokens [m, k] of those that the draft model has.
    """

    tokens: npt.NDArray[np.int32]
    prompt: int
    places: IntArray
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.tokens.nbytes + self.places.nbytes + self.ids.nbytes + self.logprobs.nbytes


@dataclass
class _Notes:
    """The same of a request that runs. `said` are ids and log-probabilities of each place, without objects around them,
    which would take several times as much.
    """

    sequence: Seq
    places: array[int] = field(default_factory=lambda: array("q"))
    said: bytearray = field(default_factory=bytearray)
    tried: int = 0  # drafted tokens up to the first that was rejected, of all rounds
    accepted: int = 0
    mixed: bool = False  # drafted for by several weights, or from what others have cached: it judges none of them

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.places) * self.places.itemsize + len(self.said)

    def lesson(self) -> Lesson:
        """Of the request as it has ended: where it was cut, something may have been said of what is gone."""
        tokens, count = np.array(self.sequence.tokens, dtype=np.int32), len(self.places)
        said = np.frombuffer(bytes(self.said), dtype=np.int32).reshape(count, 2, len(self.said) // max(8 * count, 1))
        kept = bisect_right(self.places, len(tokens))
        ids, logprobs = said[:kept, 0].copy(), said[:kept, 1].copy().view(np.float32)
        return Lesson(tokens, self.sequence.prompt_length, np.array(self.places[:kept], dtype=np.int64), ids, logprobs)


@dataclass(frozen=True)
class LearningStats:
    """Updates by what became of them, and what is held to learn from. `dropped`: never swapped in."""

    kept: int
    undone: int
    dropped: int
    rejections: int
    size: int


class DraftLearner:
    """A `Witness` of rounds, and other work for an engine's spare time (`work`), all on the engine's thread."""

    def __init__(self, runner: Decoder, student: Student, seed: int = 0) -> None:
        self._runner = runner
        self._student = student
        self._random = np.random.default_rng(seed)
        self._open: dict[int, _Notes] = {}  # by row
        self._lessons: deque[Lesson] = deque()
        # Texts, as far as a window goes, and where the answers begin in them.
        self._held_out: deque[tuple[npt.NDArray[np.int32], int]] = deque()
        self._seen = self._fresh = self._size = self._rejections = 0
        self._needed = FRESH
        self._update: Iterator[None] | None = None
        self._served: deque[tuple[_Kind, float]] = deque(maxlen=TRIAL)  # acceptance by request, with the same weights
        self._trial: _Trial | None = None
        self._outcomes = dict.fromkeys(("kept", "undone", "dropped"), 0)
        self._failed = False

    @property
    def stats(self) -> LearningStats:
        """From any thread."""
        return LearningStats(**self._outcomes, rejections=self._rejections, size=self._size)

    def judged(self, batch: Batch, logits: torch.Tensor, draft: Draft, verdict: VerifyResult) -> None:
        """See `Witness.judged`."""
        if draft.steps:
            self._guarded(lambda: self._note(batch, logits, draft, verdict))

    def left(self, row: int) -> None:
        """See `Witness.left`."""
        notes = self._open.pop(row, None)
        if notes is not None:
            self._size -= notes.size
            self._guarded(lambda: self._add(notes))

    def work(self) -> bool:
        """A small piece of an update; False: there is nothing to do before more is served."""
        if self._failed or (self._update is None and not self._due):
            return False
        with one_thread():
            self._guarded(self._go_on)
        return True

    @property
    def _due(self) -> bool:
        # Rejections go on being counted while a trial runs, and what was accepted is forgotten where that is undone.
        judges = min(len(self._held_out), len(self._served))
        return self._trial is None and self._fresh >= self._needed and judges >= FEWEST and bool(self._lessons)

    def _note(self, batch: Batch, logits: torch.Tensor, draft: Draft, verdict: VerifyResult) -> None:
        """What became of the main chains, which come first, as far as a model drafted them: it says its entropy."""
        chains, scores = draft.chain.tolist(), logits[:, : self._student.vocab_size]
        starts = window_starts(draft.counts).tolist() if len(chains) > 1 else [0]
        for i, sequence in enumerate(batch.decoding):
            if not chains[i] or sequence.row is None or sequence.finish is not None:
                continue
            run = next((n for n, place in enumerate(verdict.places(i)) if n != place), int(verdict.accepted[i]))
            own = [spread == spread for spread in draft.entropy[i, : min(run + 1, chains[i])].tolist()]  # noqa: PLR0124
            if any(own):
                notes = self._open.get(sequence.row)
                if notes is None:
                    notes = self._open[sequence.row] = _Notes(sequence)
                notes.tried += sum(own)
                notes.accepted += sum(own[:run])
                if run < chains[i] and own[run]:
                    self._say(notes, sequence.length + run, scores[starts[i] + run])

    def _say(self, notes: _Notes, place: int, scores: torch.Tensor) -> None:
        said = b"".join(part.tobytes() for part in likeliest(scores))
        if self._has_room(more := notes.places.itemsize + len(said)):
            notes.places.append(place)
            notes.said += said
            self._size += more

    def _has_room(self, more: int) -> bool:
        """For so many bytes: finished texts give way to others, and what runs does not."""
        while self._size + more > MOST_BYTES and self._lessons:
            self._count(self._lessons.popleft(), -1)
        return self._size + more <= MOST_BYTES

    def _add(self, notes: _Notes) -> None:
        """A request has ended: learn from it, or judge by it."""
        if not notes.mixed:
            kind = notes.sequence.policy, notes.sequence.request.speculation.task
            self._served.append((kind, notes.accepted / notes.tried))
            self._judge_trial()
        lesson = notes.lesson()
        if lesson.tokens.max() >= self._student.vocab_size:  # a draft may have fewer tokens than its target
            return
        self._seen += 1
        if self._seen % 2 == 0:
            tokens = lesson.tokens[-self._student.window :]
            first = max(1, lesson.prompt - (len(lesson.tokens) - len(tokens)))
            if first < len(tokens) and self._has_room(tokens.nbytes):
                if len(self._held_out) == HELD_OUT:
                    self._size -= self._held_out.popleft()[0].nbytes
                self._held_out.append((tokens.copy(), first))
                self._size += tokens.nbytes
        elif len(lesson.places) and self._has_room(lesson.size):
            self._lessons.append(lesson)
            self._count(lesson, 1)
            self._fresh += len(lesson.places)

    def _count(self, lesson: Lesson, sign: int) -> None:
        self._rejections += sign * len(lesson.places)
        self._size += sign * lesson.size

    def _go_on(self) -> None:
        if self._update is None:
            self._fresh = 0
            self._update = self._updating()
        if next(self._update, self) is self:
            self._update = None

    def _updating(self) -> Iterator[None]:
        """One update, piece by piece."""
        student = self._student
        student.begin()
        yield
        for step in range(STEPS):
            for _ in range(BATCH):
                if not self._lessons:  # requests that ran since needed all the room
                    return
                student.learn(self._window())
                yield
            student.step(1 - step / STEPS)
            yield
        gains: list[float] = []
        for tokens, first in list(self._held_out):
            gains.append(student.gained(torch.from_numpy(tokens).long(), first))
            yield
        if rose(gains):
            self._swap()
        else:
            self._ended("dropped", f"it expects {len(gains)} answers that it was not trained on no better")

    def _window(self) -> Window:
        """One that ends where something was rejected, every such place being as likely, and all rejections in it."""
        counts = np.cumsum([len(lesson.places) for lesson in self._lessons])
        drawn = int(self._random.integers(counts[-1]))
        which = int(np.searchsorted(counts, drawn, side="right"))
        lesson = self._lessons[which]
        places = lesson.places
        last = int(places[drawn - counts[which]])
        start = max(0, last - self._student.window)
        mine = (places <= last) & (places > start)
        return Window(
            torch.from_numpy(lesson.tokens[start:last]).long(),
            torch.from_numpy(places[mine] - start - 1),
            torch.from_numpy(lesson.ids[mine]).long(),
            torch.from_numpy(lesson.logprobs[mine]),
        )

    def _swap(self) -> None:
        """Serve by what was learned."""
        tensors = self._student.copied()
        self._trial = _Trial(list(self._served), self._adopt(self._student.served(tensors)), tensors)

    def _adopt(self, weights: DecoderWeights) -> DecoderWeights:
        """Draft by these from now on; the former ones."""
        self._served.clear()
        for notes in self._open.values():
            notes.mixed = True
        return self._runner.adopt(weights)

    def _judge_trial(self) -> None:
        """Once as many requests have been served by the new weights as are remembered of the former ones.

        Requests that run when an update is undone keep what it has cached of them: reading that again would cost more
        drafts than it mends, and texts do not depend on it. They judge no weights, the next trial's either.
        """
        trial = self._trial
        if trial is None or len(self._served) < len(trial.before):
            return
        rates = [np.mean([rate for _, rate in part]) for part in (trial.before, self._served)]
        told = f"{rates[0]:.3f} of its tried tokens were accepted before, {rates[1]:.3f} since"
        self._trial = None
        if fell(trial.before, list(self._served)):
            self._adopt(trial.former)
            self._ended("undone", told)
        else:
            self._student.kept = trial.tensors
            self._ended("kept", told)

    def _ended(self, outcome: str, told: str) -> None:
        """What does not help is tried again after twice as many rejections."""
        self._outcomes[outcome] += 1
        self._needed = FRESH if outcome == "kept" else 2 * self._needed
        _log.info("an update of the draft model is %s: %s", outcome, told)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Learning that fails ends, and costs no request its answer."""
        if self._failed:
            return
        try:
            call()
        except Exception:  # noqa: BLE001
            _log.exception("the draft model is not trained any more")
            if self._trial is not None:
                self._runner.adopt(self._trial.former)
            self._failed, self._update, self._trial = True, None, None
            self._rejections = self._size = 0
            for held in (self._open, self._lessons, self._held_out, self._served):
                held.clear()


@dataclass(frozen=True)
class _Trial:
    """New weights that serve, what was accepted of the `former` ones' drafts, and what they are."""

    before: Sequence[tuple[_Kind, float]]
    former: DecoderWeights
    tensors: Tensors


def likeliest(scores: torch.Tensor) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The `TOP` likeliest tokens by scores [V], and their log-probabilities, in memory of their own."""
    best = scores.log_softmax(0).topk(min(TOP, len(scores)))
    # What a model rules out has -inf, of which products are no numbers.
    return best.indices.int().numpy(), best.values.clamp(min=-80.0).numpy()


def rose(gains: Sequence[float]) -> bool:
    """Whether gains, one per request, are above 0 on average: a one-sided t-test."""
    n, values = len(gains), np.array(gains, dtype=np.float64)
    if n < 2:
        return False
    return bool(values.mean() > 0 and values.mean() * math.sqrt(n) > stdtrit(n - 1, CONFIDENCE) * values.std(ddof=1))


def fell(before: Sequence[tuple[_Kind, float]], since: Sequence[tuple[_Kind, float]]) -> bool:
    """Whether rates, one per request, are lower than before among requests of one kind: a one-sided t-test.

    Each kind weighs as much as its two groups can tell together; what was seen in one of them only says nothing.
    """
    groups: dict[_Kind, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for which, part in enumerate((before, since)):
        for kind, rate in part:
            groups[kind][which].append(rate)
    drop = weight = squares = 0.0
    free = 0
    for first, second in groups.values():
        if first and second:
            n = len(first) + len(second)
            own = len(first) * len(second) / n
            drop += own * float(np.mean(first) - np.mean(second))
            weight += own
            squares += float(np.var(first) * len(first) + np.var(second) * len(second))
            free += n - 2
    if drop <= 0 or free < 1:
        return False
    return bool(drop > stdtrit(free, CONFIDENCE) * math.sqrt(squares / free * weight))
