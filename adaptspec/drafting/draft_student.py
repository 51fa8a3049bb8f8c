"""A draft model as it can be trained, in small pieces: by transformers, in float32, beside the weights that serve."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.func import functional_call

from adaptspec.errors import ConfigError
from adaptspec.models.config import read_decoder_config
from adaptspec.models.loading import DTYPES
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.transformers_runner import load_through_transformers
from adaptspec.models.weights import DecoderWeights, load_weights

LONGEST_SECONDS = 0.05  # of a piece of training: a request that comes meanwhile waits for its end
WINDOWS = (512, 256, 128, 64, 32)  # tokens that a piece may read
LEARNING_RATE = 5e-4
_CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Window:
    """A piece of text, and what the target said at some of its places: its k likeliest tokens, in nats."""

    tokens: torch.Tensor  # [n]
    places: torch.Tensor  # [m], ascending: after tokens[: place + 1]
    ids: torch.Tensor  # [m, k]
    logprobs: torch.Tensor  # [m, k]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute by one thread: pieces are small, and where others compute, too, several would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Student:
    """Takes some 40 bytes per parameter: weights, gradients, two moments, and what is kept or may be kept."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """A Llama-like model, whose weights are to be had in `dtype`.

        Raises:
            ConfigError: no piece of its training is short enough.
        """
        self._folder = folder
        self._config = read_decoder_config(read_json(folder / CONFIG))
        self._dtype = DTYPES[dtype]
        self._model, _ = load_through_transformers(folder, torch.float32, _CPU)
        self.vocab_size = self._config.vocab_size
        self.kept: Tensors = self.copied()
        self.begin()
        self.window = self._longest_window()

    def begin(self) -> None:
        """Train anew from the weights that are kept."""
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self.kept[name])
                parameter.grad = None  # of an update that was broken off
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def learn(self, window: Window) -> None:
        """Gather gradients of a KL divergence in nats, mean over all places: from what the target said where it did,
        over its likeliest tokens and all others as one; elsewhere from what the weights that are kept say.

        Without the latter a draft that is good forgets more than it learns: on the bundled pair it then guessed 0.2 to
        9 points fewer, with it up to 4 points more.
        """
        tokens = window.tokens
        now, before = self._said(tokens, 1, None), self._said(tokens, 1, self.kept)
        known, own = window.logprobs, now[window.places].gather(1, window.ids)
        rest, own_rest = (torch.log1p(-part.exp().sum(-1).clamp(max=1 - 1e-6)) for part in (known, own))
        lost = F.kl_div(now, before, reduction="none", log_target=True).sum(-1)
        lost = lost.index_copy(0, window.places, (known.exp() * (known - own)).sum(-1) + rest.exp() * (rest - own_rest))
        lost.mean().backward()  # type: ignore[no-untyped-call]

    def step(self, share: float) -> None:
        """Apply them at this share (0 to 1) of the learning rate, and clear them."""
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * share
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def gained(self, tokens: torch.Tensor, first: int) -> float:
        """Nats by which `tokens` [n] from `first` on are likelier now than by the weights that are kept.

        That tells a gain in acceptance from fewer texts than counting tokens guessed: over its error it was 1.3 times
        as large.
        """
        with torch.no_grad():
            now, before = (self._said(tokens[:-1], first, tensors) for tensors in (None, self.kept))
        return float((now - before).gather(1, tokens[first:].unsqueeze(1)).sum())

    def copied(self) -> dict[str, torch.Tensor]:
        """The weights as they are now, by name."""
        return {name: parameter.detach().clone() for name, parameter in self._model.named_parameters()}

    def served(self, tensors: Tensors) -> DecoderWeights:
        """These weights as a decoder has them."""
        return load_weights(self._folder, self._config, self._dtype, _CPU, tensors=tensors)

    def _said(self, tokens: torch.Tensor, first: int, tensors: Tensors | None) -> torch.Tensor:
        """Log-probabilities [n - first + 1, vocab] after tokens[:first] and each longer part, by `tensors`, for which
        there are no gradients, or by the weights as they are.
        """
        inputs, options = (tokens.unsqueeze(0),), {"use_cache": False, "logits_to_keep": len(tokens) - first + 1}
        if tensors is None:
            logits = self._model(*inputs, **options).logits
        else:
            with torch.no_grad():
                logits = functional_call(self._model, dict(tensors), inputs, options).logits
        return logits[0].log_softmax(-1)  # type: ignore[no-any-return]

    def _longest_window(self) -> int:
        """Tokens that can be learned from in `LONGEST_SECONDS` of a processor here, whatever else it does now."""
        took = 0.0
        with one_thread():
            for size in WINDOWS:
                took = min(self._rehearsed(size) for _ in range(3))
                if took <= LONGEST_SECONDS:
                    return size
        raise ConfigError(
            f"--learn-draft: a piece of training of the draft {self._folder.name} takes {took:.2f} s here, for which "
            "requests would wait; leave it out, or draft with a smaller model"
        )

    def _rehearsed(self, size: int) -> float:
        """Seconds of the longest piece of an update with windows of so many tokens; nothing is learned."""
        last, likeliest = torch.tensor([size - 1]), torch.zeros(1, 1)
        window = Window(torch.arange(size) % self.vocab_size, last, likeliest.long(), likeliest - 1.0)
        pieces = (
            lambda: self.learn(window),
            lambda: self.step(0.0),
            lambda: self.gained(window.tokens, 1),
            lambda: self.served(self.copied()),
            self.begin,
        )
        laps = [time.thread_time()]
        for piece in pieces:
            piece()
            laps.append(time.thread_time())
        return max(end - start for start, end in pairwise(laps))
