"""Heads that run token by token on a GPU: the layers of EAGLE-3 and MTP as captured graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from adaptspec.gpu.attention_plan import BRANCH
from adaptspec.gpu.graphs import CudaGraphCache, current_device
from adaptspec.gpu.passes import VARIABLE, PagedCache, Passes
from adaptspec.gpu.tensor_parallel import ALONE, RankGroup
from adaptspec.models.attention import Span, last_indices
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.head_checkpoint import HeadMakers
from adaptspec.models.heads.head_runner import HeadSpec
from adaptspec.models.heads.recurrent_head import RecurrentHead, RecurrentWeights
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.runner import ModelInfo


class GpuRecurrentHead(RecurrentHead):
    """A `RecurrentHead` whose layers run as passes on a GPU (see `passes`)."""

    def __init__(
        self,
        info: ModelInfo,
        spec: HeadSpec,
        config: DecoderConfig,
        weights: RecurrentWeights,
        cache: KVCache,
        *,
        group: RankGroup = ALONE,
    ) -> None:
        super().__init__(replace(info, max_nodes=BRANCH), spec, config, weights, cache)
        assert isinstance(cache, PagedCache)
        self._paged = cache
        with current_device(self.device), torch.inference_mode():
            # The bits of drafts may depend on the pass: answers do not depend on drafts.
            self._passes = Passes(config, cache, group.operators, VARIABLE, group)
        self._graphs = CudaGraphCache(self.device)

    @torch.inference_mode()
    def capture(self, tokens: int) -> None:
        """Capture graphs of the passes of up to `tokens` tokens, if that was not done before."""
        if tokens <= self._passes.fixed_width:
            return
        widths = VARIABLE.up_to(tokens)
        self._graphs.clear()  # they use memory that is replaced here
        with current_device(self.device):
            self._passes.allocate(widths[0])
            room = torch.zeros((2, widths[0], self._config.hidden), dtype=self.spec.dtype, device=self.device)
            self._entering, self._results = room.unbind(0)
            for width in widths:
                self._passes.lay_out_padding(width)
                self._graphs.capture(width, partial(self._run_fixed, width))

    def _pass(self, tokens: torch.Tensor, states: torch.Tensor, spans: list[Span], wanted: list[int]) -> torch.Tensor:
        passes, count = self._passes, len(tokens)
        shape = passes.lay_out(np.zeros(count, dtype=np.int64), spans, last_indices(spans, wanted))
        passes.buffer.field("tokens", count).copy_(tokens)
        with current_device(self.device):
            if shape.is_fixed:
                self._entering[:count].copy_(states)
                self._graphs.run(shape.width, partial(self._run_fixed, shape.width))
                results = self._results
            else:
                padded = states.new_zeros((shape.width, states.shape[1]))
                padded[:count] = states
                results = self._run_layers(padded)
        return results.index_select(0, passes.buffer.field("wanted", sum(wanted)))

    def _run_fixed(self, width: int) -> None:
        self._results[:width].copy_(self._run_layers(self._entering[:width]))

    def _run_layers(self, states: torch.Tensor) -> torch.Tensor:
        """States [width, hidden] behind the last layer, from those that enter the first."""
        weights, width = self._weights, len(states)
        layers = self._passes.layers(width)
        token = layers.norm(None, weights.embedding(self._passes.buffer.field("tokens", width)), weights.token_norm)
        state = layers.norm(None, states, weights.state_norm)
        entering = torch.cat((token, state), 1)
        if weights.entry is None:
            residual, normed = (state if weights.norm_before_residual else states).clone(), entering
        else:
            residual = self._passes.sizes.product(weights.entry, entering)
            normed = layers.norm(None, residual, weights.layers[0].attention_norm)
        added: torch.Tensor | None = None
        for layer, pool, window in zip(weights.layers, self._paged.pool, self._config.windows, strict=True):
            if added is not None:
                normed = layers.norm(added, residual, layer.attention_norm)
            added = layers.layer(layer, pool, window, normed, residual)
        return residual if added is None else residual + added


def gpu_heads(group: RankGroup = ALONE) -> HeadMakers:
    """The classes of heads on a GPU, with the kernels of a group."""
    return HeadMakers(PagedCache, partial(GpuRecurrentHead, group=group))


GPU_HEADS = gpu_heads()
