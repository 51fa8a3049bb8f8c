"""What a draft would have been worth to its target: greedy outputs, then one teacher-forced pass of both.

Plain transformers models: this measures the pair, not this project's engine. In the figures, a round at depth k drafts
k tokens on the true prefix; the leading ones that agree are accepted, and one more token (correction or bonus) comes
with them. Tokens beyond the output's end count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adaptspec.arrays import BoolArray, FloatArray
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.models.transformers_runner import load_module

DEPTHS = (1, 3, 7)
TEMPERATURE = 0.8
NOISE_DRAWS = 4  # per position; over a task's thousands of positions the error is below 0.01


@dataclass(frozen=True)
class Trace:
    """One output of the target and, for each of its n tokens, how the draft did on the true prefix.

    `agreed`: the draft's most likely token is the target's. `confidence` is the draft's probability of that token,
    `entropy` (nats) that of its distribution. The last three are acceptance probabilities at TEMPERATURE: by rejection
    sampling, sum(min(p, q)); with coupled noise; and for a greedy draft under rejection, p(argmax q). `synthetic`: a
    program wrote the prompt.
    """

    agreed: BoolArray
    confidence: FloatArray
    entropy: FloatArray
    rejection: FloatArray
    coupled: FloatArray
    greedy_draft: FloatArray
    synthetic: bool = False


class MeasuredTarget:
    """A target in float32, with its tokenizer."""

    def __init__(self, target: Path, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._tokenizer = load_tokenizer(str(target))
        self._template = ChatTemplate(self._tokenizer)
        self.model = load_transformers(target, torch.float32, self._device)
        self.context = int(self.model.config.max_position_embeddings)

    def encode_chat(self, message: str) -> list[int]:
        """Token ids of one user message, ready for the answer."""
        return self._template.encode_turn(message)[: self.context]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it stands, cut to the context."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids[: self.context]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, batch: int = 32) -> list[list[int]]:
        """The target's greedy outputs, end token included, in the order of the prompts."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        outputs: dict[int, list[int]] = {}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            outputs |= zip(chosen, self._generate_batch([prompts[i] for i in chosen], max_tokens), strict=True)
        return [outputs[i] for i in range(len(prompts))]

    def _generate_batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        end, own = self._tokenizer.eos_token_id, self.model.generation_config.eos_token_id
        ends = {end, *(own if isinstance(own, list) else [own])}  # after one of them a row is filled up
        # Many have no padding of their own.
        pad = next((token for token in (self._tokenizer.pad_token_id, end) if token is not None), 0)
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=self._device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._device)
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, pad_token_id=pad
        )
        rows: list[list[int]] = out[:, width:].tolist()
        lengths = (next((i + 1 for i, token in enumerate(row) if token in ends), None) for row in rows)
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


class MeasuredPair(MeasuredTarget):
    """Target and draft in float32, with the target's tokenizer."""

    def __init__(self, target: Path, draft: Path, device: str = "cpu") -> None:
        super().__init__(target, device)
        self._draft = load_transformers(draft, torch.float32, self._device)

    @property
    def parameters(self) -> tuple[int, int]:
        """Number of parameters of target and draft, tied ones counted once."""
        return self.model.num_parameters(), self._draft.num_parameters()

    @torch.inference_mode()
    def loss(self, tokens: Sequence[int]) -> tuple[float, float]:
        """Summed negative log-likelihood (nats) of tokens[1:] under target and draft."""
        ids = torch.tensor([list(tokens)], device=self._device)
        sums = [
            nn.functional.cross_entropy(model(ids[:, :-1]).logits[0].float(), ids[0, 1:], reduction="sum")
            for model in (self.model, self._draft)
        ]
        return float(sums[0]), float(sums[1])

    @torch.inference_mode()
    def trace(self, prompt: Sequence[int], output: Sequence[int], seed: int = 0) -> Trace:
        """How the draft did at each token of `output`, the target's greedy output after `prompt`."""
        ids = torch.tensor([[*prompt, *output]], device=self._device)
        wanted = torch.tensor(list(output), device=self._device)
        first = len(prompt) - 1
        target = self.model(ids[:, :-1]).logits[0, first:].float()
        draft = self._draft(ids[:, :-1]).logits[0, first:].float()
        guess = draft.argmax(-1, keepdim=True)
        plain = draft.log_softmax(-1)
        p, q = (target / TEMPERATURE).log_softmax(-1), (draft / TEMPERATURE).log_softmax(-1)
        return Trace(
            agreed=(guess[:, 0] == wanted).cpu().numpy(),
            confidence=_numbers(plain.gather(1, guess)[:, 0].exp()),
            entropy=_numbers(torch.special.entr(plain.exp()).sum(-1)),
            rejection=_numbers(torch.minimum(p, q).exp().sum(-1)),
            coupled=_numbers(_coupled(p, q, seed)),
            greedy_draft=_numbers(p.gather(1, guess)[:, 0].exp()),
        )


def load_transformers(place: str | Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A model as `transformers` runs it, whose annotations refuse `.generate`. Raises ModelError."""
    return load_module(find_model(str(place)), dtype, device)


def _coupled(p: torch.Tensor, q: torch.Tensor, seed: int) -> torch.Tensor:
    """Share [n] of noise draws for which log-distributions p and q [n, V] pick the same token."""
    generator = torch.Generator(p.device).manual_seed(seed)
    same = torch.zeros(len(p), device=p.device)
    for _ in range(NOISE_DRAWS):
        noise = torch.empty_like(p).exponential_(generator=generator).log()
        same += (p - noise).argmax(-1) == (q - noise).argmax(-1)
    return same / NOISE_DRAWS


def _numbers(values: torch.Tensor) -> FloatArray:
    return values.cpu().numpy().astype(np.float64)


@dataclass(frozen=True)
class AcceptanceFigures:
    """Acceptance on one task's greedy outputs. None where it cannot be said (no such prompts, no variation).

    `lengths` is by depth (DEPTHS), with the bonus token; `by_position[j]` is the conditional acceptance at position
    j + 1 of depth-7 rounds; the correlations are those of agreement with the draft's confidence and entropy.
    """

    task: str
    prompts: int
    output_tokens: float
    agreement: float
    agreement_synthetic: float | None
    agreement_real: float | None
    lengths: dict[int, float]
    by_position: tuple[float | None, ...]
    rejection: float
    coupled: float
    greedy_draft: float
    confidence_correlation: float | None
    entropy_correlation: float | None


def task_figures(task: str, traces: Sequence[Trace]) -> AcceptanceFigures:
    """The figures of at least one non-empty trace. Means are over output positions."""
    outputs = [trace.agreed for trace in traces]
    agreed = np.concatenate(outputs)
    synthetic = np.repeat([trace.synthetic for trace in traces], [len(output) for output in outputs])

    def joined(name: str) -> FloatArray:
        return np.concatenate([getattr(trace, name) for trace in traces])

    return AcceptanceFigures(
        task=task,
        prompts=len(traces),
        output_tokens=len(agreed) / len(traces),
        agreement=float(agreed.mean()),
        agreement_synthetic=_mean(agreed[synthetic]),
        agreement_real=_mean(agreed[~synthetic]),
        lengths={depth: acceptance_length(outputs, depth) for depth in DEPTHS},
        by_position=conditional_acceptance(outputs, DEPTHS[-1]),
        **{name: float(joined(name).mean()) for name in ("rejection", "coupled", "greedy_draft")},
        confidence_correlation=_correlation(joined("confidence"), agreed),
        entropy_correlation=_correlation(joined("entropy"), agreed),
    )


def acceptance_length(outputs: Sequence[BoolArray], depth: int) -> float:
    """Emitted tokens per round at a fixed depth: 1 + accepted, cut at the output's end.

    An output's agreements are [n], or [n, depths]: of the tokens that a round drafts which begins there.
    """
    rounds = sum(len(_rounds(agreed, depth)) for agreed in outputs)
    return sum(len(agreed) for agreed in outputs) / rounds


def conditional_acceptance(outputs: Sequence[BoolArray], depth: int) -> tuple[float | None, ...]:
    """accepted_j / reached_j for each position of rounds at a fixed depth; None where none was reached.

    Outputs as above.
    """
    accepted, reached = np.zeros(depth), np.zeros(depth)
    for agreed in outputs:
        for start, kept in _rounds(agreed, depth):
            accepted[:kept] += 1
            reached[: min(kept + 1, len(agreed) - start)] += 1
    return tuple(float(a / r) if r else None for a, r in zip(accepted, reached, strict=True))


def _rounds(agreed: BoolArray, depth: int) -> list[tuple[int, int]]:
    """Start and number of accepted tokens of each round over one output."""
    rounds, start = [], 0
    while start < len(agreed):
        ahead = agreed[start : start + depth] if agreed.ndim == 1 else agreed[start, : min(depth, len(agreed) - start)]
        kept = len(ahead) if ahead.all() else int(np.argmin(ahead))
        rounds.append((start, kept))
        start += kept + 1
    return rounds


def _mean(values: BoolArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _correlation(values: FloatArray, agreed: BoolArray) -> float | None:
    if np.ptp(values) == 0 or agreed.all() or not agreed.any():
        return None
    return float(np.corrcoef(values, agreed)[0, 1])
