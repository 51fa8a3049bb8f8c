"""A Llama-like model on a GPU: a `Runner` whose passes have static shapes, so that CUDA graphs replay them.

A token's logits have the same bits in every pass (see `passes`). So texts are the same at every depth, in every batch,
for prompts that are read in any chunks, and behind a cached prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from adaptspec.gpu.attention_plan import BRANCH
from adaptspec.gpu.device_sampling import DeviceSampler
from adaptspec.gpu.graphs import CudaGraphCache, DeviceMark, current_device
from adaptspec.gpu.passes import (
    FIXED,
    HEAD_TOKENS,
    TILE,
    VARIABLE,
    PagedCache,
    Passes,
    PassShape,
    Product,
    ProductSizes,
    bytes_of_passes,
    products_of_equal_rows,
    rows_are_invariant,
)
from adaptspec.gpu.tensor_parallel import ALONE, RankGroup
from adaptspec.models.async_runner import drawn_tokens
from adaptspec.models.attention import last_indices, new_spans
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachedRows, CachePlan, bytes_for_cache
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Forward, ModelInfo, Packed, without_padding
from adaptspec.models.weights import DecoderWeights
from adaptspec.progress import report_progress

_log = logging.getLogger(__name__)
FOLLOWER = "adaptspec.gpu.decoder:Follower"


def gpu_decoder(
    info: ModelInfo,
    config: DecoderConfig,
    weights: DecoderWeights,
    plan: CachePlan,
    *,
    group: RankGroup = ALONE,
    drafts: bool = False,
) -> GpuDecoder:
    """A decoder with a cache of this plan; each rank of the group has its part of weights and cache.

    The bits of one that only `drafts` may depend on the pass, as answers do not depend on drafts.

    Raises ConfigError if the kernels cannot be imported.
    """
    like = weights.embedding
    with group.together("start", info, plan):
        cache = PagedCache(config.cache_shape, plan, like.dtype, like.device, group)
        return GpuDecoder(info, config, weights, cache, group, drafts=drafts)


class GpuDecoder(CachedRows):
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache on a GPU; satisfies `Runner`.

    Returned logits and states are valid until the next pass. `drawn`: see `AsyncRunner`.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: DecoderConfig,
        weights: DecoderWeights,
        cache: PagedCache,
        group: RankGroup = ALONE,
        *,
        drafts: bool = False,
    ) -> None:
        """`config`, `weights` and `cache` are this rank's part. `drafts`: see `gpu_decoder`."""
        super().__init__(cache)
        self.info, self.device, self.group = replace(info, max_nodes=BRANCH), weights.embedding.device, group
        self.drawn = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._cache, self._config, self._weights = cache, config, weights
        self._drafts = drafts
        with self.working(), torch.inference_mode():
            sizes = VARIABLE if drafts else self._product_sizes()
            self._passes = Passes(config, cache, group.operators, sizes, group)
        self._captured_states: torch.Tensor | None = None
        self._graphs = CudaGraphCache(self.device)
        group.graphs.add(self._graphs)

    @property
    def is_row_invariant(self) -> bool:
        """Whether matrix products of several sizes were found to have rows of the same bits."""
        return self._passes.sizes is not FIXED

    @property
    def widest(self) -> int | None:
        """See `AsyncTarget`."""
        return self._passes.fixed_width or None

    @torch.inference_mode()
    def capture(self, tokens: int) -> None:
        """Capture graphs of all passes of up to `tokens` tokens, and of the LM head, if that was not done before.

        Those of a target have room for `TILE` tokens at least, which take little longer than one: trees of a few rows.
        """
        tokens = tokens if self._drafts else max(tokens, TILE)
        if tokens <= self._passes.fixed_width:
            return
        with self.group.together("call", "capture", tokens), self.working():
            self._graphs.clear()  # they use memory that is replaced here
            widths, like = self._passes.sizes.up_to(tokens), self._weights.embedding
            self._passes.allocate(widths[0])
            self._states = torch.empty((widths[0], self._config.hidden), dtype=like.dtype, device=self.device)
            self._captured_states = self._room_for_captured(widths[0])
            self._logits = torch.empty((widths[0], self._weights.head.width), device=self.device)
            for width in widths:
                self._passes.lay_out_padding(width)
                self._graphs.capture(("layers", width), partial(self._run_fixed_layers, width))
                self._graphs.capture(("head", width), partial(self._run_fixed_head, width))

    @torch.inference_mode()
    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`."""
        report_progress()
        self._cache.flush()
        count = len(packed.tokens)
        spans = new_spans(self._cache, packed)
        wanted = last_indices(spans, packed.wanted.tolist())
        shape = self._passes.lay_out(packed.tokens, spans, wanted)
        with self.group.together("call", "run_pass", shape):
            logits, states = self.run_pass(shape, count if packed.tokens[0] < 0 else 0)
        for span in spans:
            self._cache.set_length(span.row, span.end)
        return Forward(logits[: len(wanted)], None if states is None else states[:count])

    def run_pass(self, shape: PassShape, num_drawn: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the pass that rank 0 has laid out: logits [num_logits, vocab], and captured states if there are any.

        The first `num_drawn` tokens are those that were drawn last.
        """
        passes, width = self._passes, shape.width
        if self.group.part.rank:
            passes.use_buffer(shape)
        self.group.broadcast(passes.buffer.memory[: passes.buffer.used(shape.num_lists)])
        if num_drawn:
            tokens = passes.buffer.field("tokens", num_drawn)
            tokens.copy_(drawn_tokens(tokens, self.drawn))
        if shape.is_fixed:
            self._graphs.run(("layers", width), partial(self._run_fixed_layers, width))
            if shape.num_logits:
                self._graphs.run(("head", shape.num_logits), partial(self._run_fixed_head, shape.num_logits))
            logits, captured = self._logits[: shape.num_logits], self._captured_states
        else:
            with self.working():
                captured = self._room_for_captured(width)
                logits = self._run_head(self._run_layers(width, captured), shape.num_logits)
        if logits.shape[1] != self.info.vocab_size:
            logits = self.group.gather_vocab(logits)
        return without_padding(logits, self.info.drawn_tokens), captured

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Move cached tokens between slots, each (from, to)."""
        self._cache.move_now(pairs)

    def make_chooser(self, rows: int) -> DeviceSampler:
        """See `AsyncTarget`."""
        return DeviceSampler(self.group.operators, rows, self.info.vocab_size, self.device)

    def mark(self) -> DeviceMark:
        """See `AsyncTarget`."""
        return DeviceMark(self.device)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Launch kernels on the device, by the products that a target must have."""
        with current_device(self.device), nullcontext() if self._drafts else products_of_equal_rows(self.device):
            yield

    def _run_fixed_layers(self, width: int) -> None:
        states = self._run_layers(width, self._captured_states)
        self._states[:width].copy_(states)

    def _run_fixed_head(self, num_logits: int) -> None:
        self._logits[:num_logits].copy_(self._run_head(self._states, num_logits))

    def _run_layers(self, width: int, captured: torch.Tensor | None) -> torch.Tensor:
        """States [width, hidden] behind the final norm. Inputs of captured layers are written to `captured`."""
        weights, passes = self._weights, self._passes
        layers = passes.layers(width)
        residual, added = weights.embedding(passes.buffer.field("tokens", width)), None
        parts = () if captured is None else captured[:width].chunk(len(self._captured), 1)
        captures = dict(zip(self._captured, parts, strict=True))
        for i, (layer, pool, window) in enumerate(
            zip(weights.layers, self._cache.pool, self._config.windows, strict=True)
        ):
            report_progress()
            normed = layers.norm(added, residual, layer.attention_norm)
            if i in captures:
                captures[i].copy_(residual)
            added = layers.layer(layer, pool, window, normed, residual)
        normed = layers.norm(added, residual, weights.norm)
        if len(weights.layers) in captures:
            captures[len(weights.layers)].copy_(residual)
        return normed

    def _run_head(self, states: torch.Tensor, num_logits: int) -> torch.Tensor:
        """Logits [num_logits, this rank's vocabulary] in float32 of the wanted tokens."""
        wanted = states.index_select(0, self._passes.buffer.field("wanted", num_logits))
        most = min(HEAD_TOKENS, self._passes.sizes.most)
        parts = [self._weights.head.logits(part) for part in torch.split(wanted, most)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _room_for_captured(self, width: int) -> torch.Tensor | None:
        """Memory for the states that are captured in a pass of this width, if any are."""
        values, like = len(self._captured) * self._config.hidden, self._weights.embedding
        return torch.empty((width, values), dtype=like.dtype, device=self.device) if values else None

    def _product_sizes(self) -> ProductSizes:
        """Sizes of products whose rows have the same bits on all ranks: tried with the first layer's and the head's."""
        like = self._weights.embedding(self.drawn)
        products = products_of(self._config, self._weights).values()
        invariant = all(rows_are_invariant(*product, like) for product in products)
        if not self.group.minimum(int(invariant), self.device):
            _log.info("matrix products of several sizes differ in their last bits here: all have %d tokens", FIXED.most)
            return FIXED
        return VARIABLE


def products_of(config: DecoderConfig, weights: DecoderWeights) -> dict[str, tuple[Product, int, Sequence[int]]]:
    """The products of the first layer and of the LM head: each with its inputs per token, and the sizes that it has."""
    layer = weights.layers[0]
    return {
        "qkv": (layer.qkv, config.hidden, VARIABLE.sizes),
        "output": (layer.output, config.heads * config.head_dim, VARIABLE.sizes),
        "gate_up": (layer.gate_up, config.hidden, VARIABLE.sizes),
        "down": (layer.down, config.mlp, VARIABLE.sizes),
        "head": (weights.head.logits, config.hidden, [size for size in VARIABLE.sizes if size <= HEAD_TOKENS]),
    }


class Follower:
    """A rank other than rank 0, whose methods are rank 0's commands; `load` and `start` come first."""

    def __init__(self, group: RankGroup, device: torch.device, leader: Connection) -> None:
        self._group, self._device, self._leader = group, device, leader

    def load(self, path: str, dtype: str) -> None:
        """Load this rank's part of the target, and answer how many bytes that leaves for its cache."""
        make = partial(gpu_decoder, group=self._group)
        self._loaded = load_model(path, device=str(self._device), dtype=dtype, make=make, part=self._group.part)
        self._leader.send(bytes_for_cache(self._device))

    def start(self, info: ModelInfo, plan: CachePlan) -> None:
        """Make the decoder with its cache."""
        self._target = self._loaded.start(info, plan)

    def call(self, method: str, *values: Any) -> None:
        """Call a method of the decoder."""
        getattr(self._target, method)(*values)


def bytes_without_cache(
    config: DecoderConfig, dtype: torch.dtype, context: int, *, rows: int, decoded: int, prompt: int
) -> int:
    """Bytes of a decoder in addition to its weights and cache, for `rows` rows of up to `context` tokens.

    `decoded`: tokens of the widest pass of a graph. `prompt`: tokens of the widest pass that reads prompts as well.
    """
    width, longest = (
        max(sizes.padded(tokens) for sizes in (FIXED, VARIABLE)) for tokens in (max(decoded, TILE), prompt)
    )
    states = 4 * config.hidden + 2 * (config.heads + config.kv_heads) * config.head_dim + 3 * config.mlp  # of one layer
    # Logits are held where graphs leave them, in parts and together as the LM head makes them, and twice while sampling
    # rules change them. Penalties and biases take two more numbers per token.
    vocab = 5 * width + 2 * (rows + 1)
    return (
        bytes_of_passes(config, context) + (width + longest) * states * dtype.itemsize + 4 * vocab * config.vocab_size
    )
