"""Ways to complete a prompt that a benchmark compares: our engine under a policy, with drafts that are always wrong
(the worst case for a policy), and transformers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.drafting.drafter import Drafter, DraftJob, ModelFreeDrafter, RowStart
from adaptspec.engine.core import EngineCore
from adaptspec.models.draft import Draft
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.training.measure import load_transformers
from adaptspec.types import Completion, RoundRecord


@dataclass(frozen=True)
class Run:
    """One prompt completed. `total` seconds from request to end; `decode` from the first token to the last."""

    tokens: tuple[int, ...]
    total: float
    decode: float
    accepted: int = 0
    drafted: int = 0


class Records:
    """A sink that keeps rounds."""

    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def started(self, request: Request) -> None:
        """Nothing to keep."""

    def emit(self, record: RoundRecord) -> None:
        self.rounds.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        """Nothing to keep."""


class OwnEngine:
    """Our engine under one of its policies. Several contenders may share an engine: they take turns."""

    _ids = itertools.count()

    def __init__(self, core: EngineCore, policy: str, name: str | None = None) -> None:
        self.name = name or policy
        self._core = core
        self._policy = policy

    def run(self, prompt: tuple[int, ...], tokens: int) -> Run:
        """Complete one prompt greedily, alone, with at most `tokens` tokens, and time it.

        It ends where the model itself finds an end: what a model writes beyond that is like nothing it was trained on,
        and so is what its draft makes of it.
        """
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
        request = Request(f"bench-{next(self._ids)}", prompt, sampling, SpeculationParams(policy=self._policy))
        started = time.perf_counter()
        self._core.check(request)
        self._core.add(request)
        done: Completion | None = None
        while done is None:
            for delta in self._core.step():
                done = delta.completion
        total = time.perf_counter() - started
        first = done.timings.first_token or done.timings.finished
        return Run(done.tokens, total, done.timings.finished - first, done.stats.accepted, done.stats.drafted)


class TransformersGenerate:
    """The same weights through `transformers` `generate`, in the same data type and threads."""

    name = "transformers"

    def __init__(self, place: str, dtype: torch.dtype, device: torch.device, ends: Sequence[int]) -> None:
        """`ends` are the token ids that end a text."""
        self._model = load_transformers(place, dtype, device)
        self._device = device
        self._ends = list(ends) or None

    def run(self, prompt: tuple[int, ...], tokens: int) -> Run:
        """As `OwnEngine.run`. `decode` is the total: generate does not tell its first token apart."""
        ids = torch.tensor([prompt], device=self._device)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                eos_token_id=self._ends,
                pad_token_id=0,
            )
        total = time.perf_counter() - started
        return Run(tuple(out[0, len(prompt) :].tolist()), total, total)


Contender = OwnEngine | TransformersGenerate


class WrongDrafter:
    """Drafts like the real one, confidence included, then proposes the next token id instead.

    Right only where draft and target differ by exactly that one id, which is rare enough.
    """

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.name = drafter.name
        self.non_anticipating = drafter.non_anticipating
        self._drafter = drafter
        self._vocab_size = vocab_size

    def cache_gap(self, row: int, length: int) -> int:
        return self._drafter.cache_gap(row, length)

    def propose(self, job: DraftJob) -> Draft:
        draft = self._drafter.propose(job)
        for i in np.flatnonzero(draft.counts).tolist():
            # What the real one has seen of its own draft is not what is proposed here, so none of it may stay.
            self._drafter.commit(int(job.rows[i]), len(job.tokens[i]), job.tokens[i])
        proposed = np.arange(draft.tokens.shape[1]) < draft.counts[:, None]
        tokens = np.where(proposed, (draft.tokens + 1) % self._vocab_size, 0)
        drawn_from = draft.distribution
        shifted = None if drawn_from is None else torch.roll(drawn_from, 1, dims=-1)
        return replace(draft, tokens=tokens, distribution=shifted)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        self._drafter.commit(row, valid, tokens)

    def free(self, row: int) -> None:
        self._drafter.free(row)


class WrongNgram(WrongDrafter):
    """The same for a model-free one: it offers as much as the real one, and is scored as what it proposes: wrong."""

    def __init__(self, drafter: ModelFreeDrafter, vocab_size: int) -> None:
        super().__init__(drafter, vocab_size)
        self._real = drafter

    def begin(self, row: int, start: RowStart) -> None:
        self._real.begin(row, start)

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        return self._real.offer(row, tokens, most)

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        return self._real.shadow(row, tokens, start)[0], 0


def wrong(drafter: Drafter, vocab_size: int) -> WrongDrafter:
    """The hostile form of a drafter."""
    if isinstance(drafter, ModelFreeDrafter):
        return WrongNgram(drafter, vocab_size)
    return WrongDrafter(drafter, vocab_size)
