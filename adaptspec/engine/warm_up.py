"""Warm-up: synthetic rounds before the first request, from which the cost model learns the times of rounds.

They run through the engine's executor, so they use what requests will use: the same drafters, caches and
captured graphs. Texts are random tokens, since times hardly depend on them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.decision import Decision
from adaptspec.drafters import Kind, kind_of
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.executor import CommittedTokens, LapTimer
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.scheduler import Batch, Chunk, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.errors import ConfigError
from adaptspec.progress import report_progress
from adaptspec.request import Request, SamplingParams
from adaptspec.rounds import RoundWork, Timing
from adaptspec.verification.coupled import Coupled

SECONDS = 3.0  # a slow model runs fewer kinds of rounds
_DEPTHS = (1, 3, 7)  # of drafts, in addition to the maximum depth of the policies
_PROMPT = 16  # tokens of a prompt
_MAX_CONTEXT = 512  # of a row
_MAX_SWEEPS = 3
_FIRST_SHARE = 0.5  # share of the time for the first sweep; each kind runs again in later ones
_ALWAYS = 2  # the first kinds, which may take all of the time
_TOKENS = (1, 2, 4, 8)  # tokens per row in the profile

# Costs relative to a pass without drafts: initial values for what no round has measured.
_TOKEN, _DRAFT_PASS, _CACHED_TOKEN = 0.03, 0.1, 3e-4


class _RoundKind(NamedTuple):
    """Rounds of `rows` rows that draft `depth` tokens each, or in which one row reads `prompt` tokens."""

    rows: int
    drafter: int = 0
    depth: int = 0
    prompt: int = 0

    @property
    def tokens(self) -> float:
        """Tokens of the target's pass; those of a prompt count half, as no logits are computed for them."""
        return self.prompt / 2 if self.prompt else self.rows * (1 + self.depth)


_Round = tuple[RoundWork, Timing]


def warm_up(
    executor: ModelExecutor,
    inputs: InputProcessor,
    limits: EngineLimits,
    *,
    seconds: float = SECONDS,
    timer: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """Build a cost model from about `seconds` of synthetic rounds; all rows must be free, and are free afterwards.

    The first round of each kind takes several times as long as later ones (memory is touched, kernels are chosen), so
    it is not learned.

    Raises:
        ConfigError: the cache has no room for one row of a few tokens.
    """
    rounds = _run_rounds(executor, inputs, limits, seconds, timer)
    models = {executor.drafters[index] for index in _models(executor)}
    decoding = [(work, timing) for work, timing in rounds if work.rows]
    if not decoding:
        raise ConfigError(f"{inputs.info.name} has no room for one round; give it a longer context or a larger cache")
    counts = _row_counts(limits)
    rough = CostModel(_rough_profile(decoding, models, counts))
    rough.fit(decoding)
    costs = CostModel(rough.learned_profile(counts, _TOKENS))
    for work, timing in rounds:
        if work.prefill_tokens:
            costs.observe(work, timing)
    return costs


def _run_rounds(
    executor: ModelExecutor,
    inputs: InputProcessor,
    limits: EngineLimits,
    seconds: float,
    timer: Callable[[], float],
) -> list[_Round]:
    """Run rounds of as many kinds as time allows, in several sweeps, so that a disturbance affects few of each kind."""
    began, rows = timer(), _SyntheticRows(executor, inputs, timer)
    rounds, known = list[_Round](), set[RoundWork]()
    taken: dict[_RoundKind, float] = {}  # seconds of the latest round of each kind that has run
    latest = 0.0  # seconds per token

    def run(kind: _RoundKind) -> None:
        nonlocal latest
        if (one := rows.run(kind)) is None:
            return
        work, timing = one
        taken[kind], latest = timing.total, timing.total / kind.tokens
        same = work._replace(context_tokens=0.0)
        if same in known:
            rounds.append(one)
        known.add(same)

    try:
        for index, kind in enumerate(_kinds(executor, limits)):
            end = began + seconds * (1.0 if index < _ALWAYS else _FIRST_SHARE)
            if taken and timer() + 2.0 * latest * kind.tokens > end:
                break
            run(kind)
            run(kind)
        for kind in [kind for kind in taken for _ in range(2)] * (_MAX_SWEEPS - 1):
            if timer() + taken[kind] > began + seconds:
                break
            run(kind)
    finally:
        rows.close()
    return rounds


def _row_counts(limits: EngineLimits) -> list[int]:
    """1, 2, 4 and so on."""
    return [1 << power for power in range(limits.max_rows.bit_length())]


def _models(executor: ModelExecutor) -> list[int]:
    """Indices of the drafters that run a model."""
    return [index for index, name in enumerate(executor.drafters) if kind_of(name) is not Kind.MODEL_FREE]


def _kinds(executor: ModelExecutor, limits: EngineLimits) -> list[_RoundKind]:
    """All kinds of rounds, ordered by their number of tokens.

    Without a draft model, lookups draft: from the prediction they find as many tokens as requested.
    """
    drafters, max_depth = _models(executor) or range(min(1, len(executor.drafters))), limits.max_depth
    depths = sorted({depth for depth in (*_DEPTHS, max_depth) if 0 < depth <= max_depth})
    rows = _row_counts(limits)
    kinds = [_RoundKind(1, prompt=_PROMPT), *(_RoundKind(count) for count in rows)]
    kinds += [_RoundKind(count, drafter, depth) for count in rows for drafter in drafters for depth in depths]
    return sorted(kinds, key=lambda kind: (kind.tokens, kind.rows))


def _rough_profile(rounds: Sequence[_Round], models: Collection[str], counts: Sequence[int]) -> CostProfile:
    """Initial profile of the fit: lines through the smallest and largest passes; `counts` are numbers of draft rows."""
    first, each = _line([(work.verify_tokens, timing.verify) for work, timing in rounds])
    drafters = {}
    for name in models:
        passes = [
            (max(draft.passes), timing.draft / len(draft.passes))
            for work, timing in rounds
            for draft in work.drafts
            if draft.drafter == name and draft.passes
        ]
        step, row = _line(passes) if passes else (_DRAFT_PASS * first, 0.0)
        steps = tuple(step + row * (count - 1) for count in counts)
        drafters[name] = DrafterCost(tuple(counts), steps, catch_up_per_token=_TOKEN * step)
    overhead = statistics.median(timing.total - timing.verify - timing.draft for _, timing in rounds)
    return CostProfile(
        (1,),
        (1, 2),
        ((first, first + each),),
        drafters,
        per_cached_token=_CACHED_TOKEN * first,
        overhead=max(overhead, 0.0),
    )


def _line(passes: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of the smallest size, and of each more up to the largest; `passes` are sizes with their seconds."""
    sizes = [size for size, _ in passes]
    smallest, largest = min(sizes), max(sizes)
    first, last = (statistics.median(taken for size, taken in passes if size == end) for end in (smallest, largest))
    return first, max(last - first, 0.0) / (largest - smallest) if largest > smallest else _TOKEN * first


class _SyntheticRows:
    """Rows that hold prefixes of one random text; each round appends the next token.

    The models' choices are ignored: all drafts count as rejected, and every run does the same.
    """

    def __init__(self, executor: ModelExecutor, inputs: InputProcessor, timer: Callable[[], float]) -> None:
        self._executor, self._inputs, self._timer = executor, inputs, timer
        info = inputs.info
        words = np.setdiff1d(np.arange(info.drawn_tokens), info.eos_token_ids)
        self._text: list[int] = np.random.default_rng(0).choice(words, min(info.context, _MAX_CONTEXT)).tolist()
        self._sequences: list[Seq] = []

    @torch.inference_mode()
    def run(self, kind: _RoundKind) -> _Round | None:
        """Run a round; None if the cache or the context has no room for it."""
        report_progress()
        for _ in range(2):  # once more with new rows if these have no room left
            if self._open(kind.rows) and self._reserve(kind):
                return self._read(kind.prompt) if kind.prompt else self._decode(kind)
            self.close()
        return None

    def close(self) -> None:
        """Free all rows."""
        while self._sequences:
            row = held_row(self._sequences.pop())
            self._executor.leave(row)
            self._executor.caches.free(row)

    def _open(self, count: int) -> bool:
        """Start rows until `count` of them decode; False if the cache has no room for them."""
        new = list[Seq]()
        for row in range(len(self._sequences), count):
            if not self._executor.caches.reserve(row, 2):
                return False
            # Lookups draft from the prediction, which is the following text.
            params = SamplingParams(len(self._text), 0.0, ignore_eos=True)
            request = Request(f"warm-up-{row}", (self._text[0],), params, prediction=tuple(self._text[1:]))
            sequence = self._inputs.sequence(request, Coupled())
            sequence.row = row
            self._sequences.append(sequence)
            self._executor.start(sequence)
            new.append(sequence)
        if new:
            self._run(Batch([], [], [Chunk(sequence, 0, 1, last=True) for sequence in new]), _RoundKind(0))
        return True

    def _reserve(self, kind: _RoundKind) -> bool:
        """Reserve room in each row; False if there is none."""
        more = kind.prompt + kind.depth + 1
        return all(
            one.length + more <= len(self._text) and self._executor.caches.reserve(held_row(one), one.length + more)
            for one in self._sequences[: kind.rows]
        )

    def _read(self, count: int) -> _Round:
        """Have the first row read the next `count` tokens of the text."""
        sequence = self._sequences[0]
        start = sequence.length - 1  # the newest token is not cached
        sequence.tokens += self._text[sequence.length : start + count]
        return self._run(Batch([], [], [Chunk(sequence, start, count, last=True)]), _RoundKind(0))

    def _decode(self, kind: _RoundKind) -> _Round:
        return self._run(Batch(self._sequences[: kind.rows], [kind.depth] * kind.rows, []), kind)

    def _run(self, batch: Batch, kind: _RoundKind) -> _Round:
        """Run a round as `EngineCore` does, without texts and records."""
        executor, size = self._executor, len(batch.decoding)
        depths = np.full(size, kind.depth, dtype=np.int64)
        decision = Decision(depths, np.zeros_like(depths), np.full_like(depths, kind.drafter))
        context = sum(sequence.length for sequence in batch.decoding)
        laps = LapTimer(self._timer)
        executor.look_up(batch, kind.depth, range(len(executor.drafters)))
        launched = executor.launch(batch, decision)
        laps.lap("draft")
        verified = executor.finish(launched)
        laps.lap("verify")
        for sequence in batch.emitting:
            sequence.tokens.append(self._text[sequence.length])
        drafter = kind.drafter if kind.depth else -1
        executor.commit([CommittedTokens(sequence, sequence.length - 1, [], drafter) for sequence in batch.decoding])
        laps.lap("commit")
        work = RoundWork(
            size, size + len(verified.draft.tree.token), float(context), verified.draft.work, batch.prefill_tokens
        )
        return work, Timing(*(verified.seconds or (laps.seconds("draft"), laps.seconds("verify"))), laps.total)
