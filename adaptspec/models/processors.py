"""Logits processors: what turns a model's logits into the scores a row is sampled from.

Each processor is built once per batch, keeps what it needs as tensors, and maps scores [N, V] to new
scores without writing on its input. It touches only the positions of rows that use it. Order, as in
`transformers` and vLLM: repetition, presence and frequency penalties, logit bias, min_tokens, grammar, temperature,
then top-k, top-p, min-p. Removed tokens score -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch.nn import functional

from adaptspec.models.grammars import Constraint
from adaptspec.progress import report_progress
from adaptspec.request import SamplingParams
from adaptspec.types import BoolArray, IntArray

# Below this float32 scores are so far apart that sampling is greedy; smaller divisors would overflow.
MIN_TEMPERATURE = 1e-5
# Most nuclei are smaller; only a row whose nucleus is larger pays for sorting the whole vocabulary.
_NUCLEUS_GUESS = 512
_TINY = 1e-37
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, eq=False)
class SamplingRow:
    """One row's way of drawing tokens, for as long as its request lives; each equals itself alone. `tokens` is the
    engine's live list (prompt + output so far).
    """

    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_length: int
    eos_token_ids: tuple[int, ...]
    constraint: Constraint | None = None

    @property
    def missing(self) -> int:
        """How many tokens it has yet to get before it may end."""
        return self.prompt_length + self.params.min_tokens - len(self.tokens)


class Rules:
    """What changes a row's logits beside its temperature, read off its parameters for a vocabulary of this size.

    `penalties` are for repetition, frequency and presence; `early` tokens would end the row too early, and are none if
    that left nothing to choose from; `top_k` 0 is all; `cuts` are top-p and the logarithm of min-p. A greedy row draws
    nothing, so nothing is cut off.
    """

    def __init__(self, row: SamplingRow, vocab_size: int) -> None:
        params, ending = row.params, set[int]()
        if params.min_tokens:
            ending = {*params.stop_token_ids, *(() if params.ignore_eos else row.eos_token_ids)}
        early = sorted(token for token in ending if token < vocab_size)
        self.row, self.bias = row, params.logit_bias
        self.early = early if len(early) < vocab_size else []
        self.penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        self.penalised = self.penalties != (1.0, 0.0, 0.0)
        self.top_k, self.cuts = 0, (1.0, -math.inf)
        if not params.greedy:
            self.top_k = params.top_k if params.top_k < vocab_size else 0
            self.cuts = params.top_p, math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self.truncates = self.top_k > 0 or self.cuts != (1.0, -math.inf)
        self.some = bool(self.penalised or self.bias or self.early or row.constraint or self.truncates)


@dataclass(frozen=True)
class Paths:
    """The drafted tokens before N positions: position n has the first ones of line `lines[n]` of `tokens` [L, D].

    `lines` None: of the line of its batch row, as all of a row's positions lie on one chain.
    """

    tokens: IntArray
    lines: IntArray | None = None

    def take(self, picked: IntArray | slice) -> Paths:
        """Those of some of the positions."""
        return self if self.lines is None else Paths(self.tokens, self.lines[picked])


NO_PATHS = Paths(np.zeros((0, 0), dtype=np.int64))


@dataclass(frozen=True)
class Positions:
    """N positions: the batch row of each, and the drafted tokens before it, `offsets` of them."""

    index: IntArray
    offsets: IntArray
    paths: Paths

    @property
    def lines(self) -> IntArray:
        """[N] the line of `paths.tokens` that each position is on."""
        return self.index if self.paths.lines is None else self.paths.lines

    def take(self, picked: IntArray | slice) -> Positions:
        """Some of the positions."""
        return Positions(self.index[picked], self.offsets[picked], self.paths.take(picked))


Processor = Callable[[torch.Tensor, Positions], torch.Tensor]
"""Maps scores [N, V] of N positions to new scores; the given ones are not written on."""


def build(rules: Sequence[Rules], vocab_size: int, device: torch.device) -> tuple[Processor, ...]:
    """The processors that at least one row needs by its rules, in order."""
    wanted: list[tuple[type[_RowProcessor], list[bool]]] = [
        (Penalties, [one.penalised for one in rules]),
        (LogitBias, [bool(one.bias) for one in rules]),
        (MinTokens, [bool(one.early) for one in rules]),
        (GrammarMask, [one.row.constraint is not None for one in rules]),
        (Temperature, [one.row.params.temperature not in (0.0, 1.0) for one in rules]),
        (Truncation, [one.truncates for one in rules]),
    ]
    return tuple(kind(rules, np.array(uses), vocab_size, device) for kind, uses in wanted if any(uses))


class _RowProcessor:
    """Shared by all: which rows use it, numbered 0, 1, ... as its tensors are (their slots)."""

    def __init__(self, rules: Sequence[Rules], uses: BoolArray, vocab_size: int, device: torch.device) -> None:
        self._rules = [one for one, used in zip(rules, uses, strict=True) if used]
        self._rows = [one.row for one in self._rules]
        self._slots = np.where(uses, np.cumsum(uses) - 1, -1)
        self._vocab_size = vocab_size
        self._device = device
        self._prepare()

    def _prepare(self) -> None:
        """Put what the rows ask for into tensors."""

    def _apply(self, scores: torch.Tensor, slots: IntArray, at: Positions) -> torch.Tensor:
        """New scores for positions that all use this processor; `slots` are those of their rows."""
        raise NotImplementedError

    def _concerned(self, at: Positions) -> IntArray:
        """Slot of each position, -1 where nothing is to be done."""
        slots: IntArray = self._slots[at.index]
        return slots

    def __call__(self, scores: torch.Tensor, at: Positions) -> torch.Tensor:
        slots = self._concerned(at)
        picked = np.flatnonzero(slots >= 0)
        if len(picked) == len(slots):
            return self._apply(scores, slots, at)
        if len(picked) == 0:
            return scores
        where, part = self._index(picked), at.take(picked)
        return scores.index_copy(0, where, self._apply(scores.index_select(0, where), slots[picked], part))

    def _columns(self, settings: Sequence[tuple[float, ...]]) -> tuple[torch.Tensor, ...]:
        """Some settings of every row, each [slots, 1]."""
        return torch.tensor(settings, dtype=torch.float32, device=self._device).unsqueeze(2).unbind(1)

    def _index(self, numbers: IntArray | BoolArray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)


class Penalties(_RowProcessor):
    """Repetition (prompt and output), presence and frequency (output only, as OpenAI defines them).

    score > 0 is divided by the repetition penalty, score < 0 multiplied (Keskar et al. 2019, CTRL); then
    score -= frequency * count + presence * [count > 0]. Counts of the output are kept and grow with it; a
    position also counts the drafted tokens before it.
    """

    def _prepare(self) -> None:
        shape = (len(self._rows), self._vocab_size)
        self._output = torch.zeros(shape, device=self._device)
        self._prompt = torch.zeros(shape, device=self._device)
        self._counted = [row.prompt_length for row in self._rows]
        self._count(self._prompt, [row.tokens[: row.prompt_length] for row in self._rows])
        self._prompt.clamp_(max=1.0)
        settings = [one.penalties for one in self._rules]
        self._repetition, self._frequency, self._presence = self._columns(settings)
        self._repeats = any(repetition != 1.0 for repetition, _, _ in settings)

    def _catch_up(self) -> None:
        fresh = [row.tokens[counted:] for row, counted in zip(self._rows, self._counted, strict=True)]
        self._counted = [len(row.tokens) for row in self._rows]
        self._count(self._output, fresh)

    def _count(self, counts: torch.Tensor, tokens: Sequence[Sequence[int]]) -> None:
        slots = np.repeat(np.arange(len(tokens)), [len(part) for part in tokens])
        if len(slots):
            flat = np.fromiter(chain.from_iterable(tokens), dtype=np.int64, count=len(slots))
            one = torch.ones((), device=self._device)
            counts.index_put_((self._index(slots), self._index(flat)), one, accumulate=True)

    def _apply(self, scores: torch.Tensor, slots: IntArray, at: Positions) -> torch.Tensor:
        self._catch_up()
        slot = self._index(slots)
        counts = self._output.index_select(0, slot)
        tokens = at.paths.tokens
        before = np.arange(tokens.shape[1]) < at.offsets[:, None]
        if before.any():
            drafted = self._index(np.where(before, tokens[at.lines], 0))
            counts.scatter_add_(1, drafted, torch.from_numpy(before.astype(np.float32)).to(self._device))
        present = counts.clamp(max=1.0)
        if self._repeats:
            seen = torch.maximum(present, self._prompt.index_select(0, slot))
            factor = seen * (self._repetition[slot] - 1.0) + 1.0
            # Both signs without a branch per element, which is what where() costs on a CPU.
            scores = scores.clamp(min=0.0) / factor + scores.clamp(max=0.0) * factor
        return scores - self._frequency[slot] * counts - self._presence[slot] * present


class LogitBias(_RowProcessor):
    """Adds each row's biases to its tokens' scores."""

    def _prepare(self) -> None:
        width = max(len(one.bias) for one in self._rules)
        tokens = np.zeros((len(self._rows), width), dtype=np.int64)
        values = np.zeros((len(self._rows), width), dtype=np.float32)  # a padding adds 0 to token 0
        for slot, one in enumerate(self._rules):
            tokens[slot, : len(one.bias)] = list(one.bias.keys())
            values[slot, : len(one.bias)] = list(one.bias.values())
        self._tokens = self._index(tokens)
        self._values = torch.from_numpy(values).to(self._device)

    def _apply(self, scores: torch.Tensor, slots: IntArray, _: Positions) -> torch.Tensor:
        slot = self._index(slots)
        return scores.scatter_add(1, self._tokens[slot], self._values[slot])


class MinTokens(_RowProcessor):
    """Masks the tokens that would end a row (EOS unless ignored, stop_token_ids) until it has min_tokens."""

    def _prepare(self) -> None:
        width = max(len(one.early) for one in self._rules)
        padded = [one.early + one.early[:1] * (width - len(one.early)) for one in self._rules]
        self._tokens = torch.tensor(padded, dtype=torch.int64, device=self._device)

    def _concerned(self, at: Positions) -> IntArray:
        slots = super()._concerned(at)
        missing = np.array([row.missing for row in self._rows])
        return np.where(at.offsets < missing[slots], slots, -1)

    def _apply(self, scores: torch.Tensor, slots: IntArray, _: Positions) -> torch.Tensor:
        return scores.scatter(1, self._tokens[self._index(slots)], -math.inf)


class GrammarMask(_RowProcessor):
    """Masks what a row's grammar refuses at each position, the drafted tokens before it read."""

    def _apply(self, scores: torch.Tensor, slots: IntArray, at: Positions) -> torch.Tensor:
        allowed: list[BoolArray] = []
        for slot, line, offset in zip(slots.tolist(), at.lines.tolist(), at.offsets.tolist(), strict=True):
            constraint = self._rows[slot].constraint
            assert constraint is not None
            report_progress()
            allowed.append(constraint.mask(at.paths.tokens[line, :offset].tolist()))
        return scores.masked_fill(self._index(~np.stack(allowed)), -math.inf)


class Temperature(_RowProcessor):
    """Divides by the temperature."""

    def _prepare(self) -> None:
        (self._temperature,) = self._columns([(max(row.params.temperature, MIN_TEMPERATURE),) for row in self._rows])

    def _apply(self, scores: torch.Tensor, slots: IntArray, _: Positions) -> torch.Tensor:
        return scores / self._temperature[self._index(slots)]


class Truncation(_RowProcessor):
    """Top-k, top-p and min-p: in each, tokens that tie with the last one kept are kept too.

    So the kept set depends on scores only, not on the order of token ids or of a sort. Top-p keeps the
    shortest prefix of the top-k tokens whose renormalised mass reaches p (at least one token); min-p keeps
    tokens with at least min_p times the mass of the likeliest.
    """

    def _prepare(self) -> None:
        self._top_k, cuts = np.array([one.top_k for one in self._rules]), [one.cuts for one in self._rules]
        self._alone = (self._top_k == 0) & np.array([top_p < 1.0 for top_p, _ in cuts])
        self._top_p, self._log_min_p = self._columns(cuts)
        self._ranks = self._index(self._top_k[:, None])
        self._relative_to_all = self._index(self._alone[:, None])
        self._cuts_mass = any(top_p < 1.0 for top_p, _ in cuts)
        self._cuts_ratio = any(log_min_p > -math.inf for _, log_min_p in cuts)

    def _apply(self, scores: torch.Tensor, slots: IntArray, _: Positions) -> torch.Tensor:
        # A row with top-k needs those and one more, to see a tie; only top-p alone has to guess how many it keeps.
        slot = self._index(slots)
        width = int(self._top_k[slots].max(initial=-1)) + 1
        width = max(width if width > 1 else 0, _NUCLEUS_GUESS if self._alone[slots].any() else 0)
        threshold = torch.full_like(scores[:, :1], _LOWEST)
        if width:
            threshold, enough = self._by_rank(scores, _largest(scores, width), slot)
            if width < self._vocab_size and not bool(enough.all()):
                threshold = self._by_rank(scores, _largest(scores, self._vocab_size), slot)[0]
        if self._cuts_ratio:
            threshold = torch.maximum(threshold, scores.amax(1, keepdim=True) + self._log_min_p[slot])
        return _cut(scores, threshold)

    def _by_rank(
        self, scores: torch.Tensor, order: torch.Tensor, slot: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Lowest score top-k and top-p keep, and whether `order` [n, W], the largest scores, was enough to tell."""
        rank = self._ranks[slot]
        ranked = rank > 0
        kth = torch.where(ranked, order.gather(1, (rank - 1).clamp_(min=0)), _LOWEST)
        enough = ~ranked | (order[:, -1:] < kth)
        if not self._cuts_mass:
            return kth, enough
        share = _cut(order, kth).softmax(1)
        if self._alone.any():
            # Mass is relative to the top-k tokens where there is a top-k, else to all: 1 / sum(exp(s - max)) of either
            # is the likeliest token's share. (exp itself is slow on a CPU where it underflows; softmax is not.)
            all_tokens = scores.softmax(1).amax(1, keepdim=True) / share[:, :1]
            share.mul_(torch.where(self._relative_to_all[slot], all_tokens, 1.0))
        mass, top_p = share.cumsum(1), self._top_p[slot]
        last = torch.searchsorted(mass, top_p).clamp_(max=order.shape[1] - 1)
        nucleus = torch.where(top_p < 1.0, order.gather(1, last), _LOWEST)
        enough &= (mass[:, -1:] >= top_p) | ~self._relative_to_all[slot]
        return torch.maximum(kth, nucleus), enough


def _cut(scores: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Scores below the row's threshold become -inf. Branch-free: where() takes five times as long on a CPU."""
    above = scores - threshold.clamp(min=_LOWEST)  # finite, or a removed score less no threshold would be NaN
    return scores + functional.threshold(above, -_TINY, -math.inf).clamp_(max=0.0)


def _largest(scores: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` largest scores of each row, descending, [n, width]."""
    if not scores.is_cpu:
        return torch.topk(scores, min(width, scores.shape[1]), dim=1).values
    array = scores.numpy()
    if width < array.shape[1]:  # numpy's vectorised partition and sort take a tenth of torch's time here
        array = np.partition(array, array.shape[1] - width, axis=1)[:, -width:]
    return torch.from_numpy(np.sort(array, axis=1)[:, ::-1].copy())
