"""A decoder on a device: passes of static shapes over a paged cache, whose products run in tiles of a fixed size.

With the order of attention's sums fixed too (see `plan.SPLIT`), what a token's logits are does not depend on what else
is in its pass: in 16 bits, where the last bit decides ties, text is the same at every depth, beside whatever prompts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.gpu import ops
from adaptspec.gpu.ops import Choice, ChoiceParts, HeadNorm
from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.gpu.plan import AttentionPlan, Workspace, programs, tiles
from adaptspec.gpu.ranks import ALONE, Group
from adaptspec.gpu.staging import at_work
from adaptspec.models.attention import Heads, Span, last_places, new_spans, positions
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachedRows, CachePlan
from adaptspec.models.layers import Linear, RmsNorm, rotations
from adaptspec.models.runner import Forward, ModelInfo, Packed, without_padding
from adaptspec.models.weights import DecoderWeights
from adaptspec.progress import report_progress

# Tokens of each product of a pass, by the rows that decode; prompts take the last. While 16-bit weights are read once,
# devices compute 150 to 280 tokens (A100 153, H200 206, B200 281): 64 take no longer than one.
TILES = (64, 128, 256)
# Bytes for splits that several programs share: 64 tokens of an 8B model after 128k of context, 256 after 32k. In wider
# passes programs walk: they have a tile for most processors, or read a prompt.
WORKSPACE = 300_000_000
# Times that logits are held: where they are kept for rules and choices, and as they were before, for rows whose
# probabilities are told. Of those that `forward` gives: tile by tile, and together.
SCORES = 2


@dataclass(frozen=True)
class Inputs:
    """T tokens of a pass, on the device. Padding has slots of nobody's block and sees nothing."""

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int64 [T]: where in the cache their keys and values go
    base: torch.Tensor  # int32 [T] and
    seen: torch.Tensor  # int64 [T]: see `AttentionPlan`
    tiles: torch.Tensor  # int32 [n, 3]
    tile: int = 0  # tokens of each product, of which T is a multiple; 0: all of them


def device_decoder(
    info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan, *, group: Group = ALONE
) -> DeviceDecoder:
    """A decoder with a cache of this plan, of which each rank of the group has its part."""
    like = weights.embedding
    with group.together("start", info, plan):
        cache = PagedCache(config.cache_shape, plan, like.dtype, like.device, group)
        return DeviceDecoder(info, config, weights, cache)


def whole_sums(device: torch.device) -> None:
    """Have products on a CUDA device add in 32 bits: by default parts of a split sum may be rounded to 16 bits, and
    containers may switch float32 products to TF32. For the whole process, as torch has these settings.
    """
    if device.type == "cuda":
        products = torch.backends.cuda.matmul
        products.allow_bf16_reduced_precision_reduction = False
        products.allow_fp16_reduced_precision_reduction = False
        products.allow_tf32 = False


def padded(tokens: int, tile: int) -> int:
    """Tokens of a pass of so many, at least one."""
    return -(-max(tokens, 1) // tile) * tile


def tile_of(rows: int, info: ModelInfo) -> int:
    """Tokens of each product of a pass in which so many rows decode: plain decoding is one of them."""
    return TILES[-1] if info.strict else next((size for size in TILES if size >= rows), TILES[-1])


def shared_tokens(heads: Heads, places: int) -> int:
    """Tokens of the widest pass whose splits are shared, of rows of up to `places`."""
    return max(TILES[0], min(TILES[-1], WORKSPACE // Workspace.bytes(1, heads, places)))


def beside_cache(config: DecoderConfig, dtype: torch.dtype, places: int, passes: Sequence[tuple[int, int]]) -> int:
    """Bytes of a decoder beside its weights and its cache, of rows of up to `places`.

    `passes`: tokens of each that may be held at a time (one in a graph, one that reads prompts), and those of them that
    are given logits.
    """
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    standing = Workspace.bytes(shared_tokens(heads, places), heads, places) + 4 * places * heads.dim
    states = 4 * config.hidden + 2 * (heads.query + heads.kv) * heads.dim + 3 * config.mlp  # of one layer's steps
    scored = sum(SCORES * wanted + min(wanted, TILES[-1]) for _, wanted in passes)  # with a tile on its way
    return standing + sum(tokens for tokens, _ in passes) * states * dtype.itemsize + 4 * scored * config.vocab_size


class DeviceDecoder(CachedRows):
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache on a device; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, cache: PagedCache) -> None:
        """`config`, `weights` and `cache` are this rank's part."""
        super().__init__(cache)
        self.info = info
        self.group = cache.group
        self.device = weights.embedding.device
        whole_sums(self.device)
        self.cache = cache
        self.heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._config, self._weights = config, weights
        mine = self.group.part.vocabulary(config.vocab_size)
        self.tokens = mine.stop - mine.start  # that this rank's head is for
        self._known = max(0, info.drawn_tokens - mine.start)  # of these, how many are no padding
        table = rotations(config.rope, config.head_dim, info.context).to(self.device)
        self._cos, self._sin = table.real.contiguous(), table.imag.contiguous()
        shared = shared_tokens(self.heads, info.context)
        self._workspace = Workspace.of(shared, self.heads, info.context, self.device)
        self.ops, self._processors = kernels_for(self.device)
        self.show = cache.show

    def room_for_states(self, tokens: int) -> torch.Tensor | None:
        """Where passes of so many tokens leave what is captured, if anything is."""
        width = len(self._captured) * self._config.hidden
        embedding = self._weights.embedding
        return torch.empty((tokens, width), dtype=embedding.dtype, device=self.device) if width else None

    def run(self, inputs: Inputs, captured: torch.Tensor | None = None) -> torch.Tensor:
        """States [T, hidden] behind the last norm; nothing of it asks the host, so a graph can hold it.

        Inputs of the captured layers are left in `captured` [T, layers * hidden]. They are whole on all ranks.
        """
        weights, residual, added = self._weights, self._weights.embedding(inputs.tokens), None
        parts = () if captured is None else captured.chunk(len(self._captured), 1)
        states = dict(zip(self._captured, parts, strict=False))
        product = partial(in_tiles, inputs.tile or len(inputs.tokens))
        plans = {window: self._plan(inputs, window) for window in set(self._config.windows)}
        layers = zip(weights.layers, self.cache.pool, self._config.windows, strict=True)
        for i, (layer, pool, window) in enumerate(layers):
            report_progress()
            normed = self._normed(added, residual, layer.attention_norm)
            if i in states:
                states[i].copy_(residual)
            qkv = product(layer.qkv, normed)
            norm = None if layer.qk_norm is None else HeadNorm(layer.qk_norm.weight, layer.qk_norm.eps)
            queries = self.ops.rope_store(qkv, self._cos, self._sin, inputs.positions, inputs.slots, pool, norm)
            added = self.group.total(product(layer.output, self.ops.attend(queries, pool, plans[window])))
            gate_up = product(layer.gate_up, self._normed(added, residual, layer.mlp_norm))
            added = self.group.total(product(layer.down, self.ops.silu_mul(gate_up)))
        normed = self._normed(added, residual, weights.norm)
        if len(weights.layers) in states:
            states[len(weights.layers)].copy_(residual)
        return normed

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[N, this rank's tokens] in float32, of states [N, hidden], as one product."""
        return without_padding(self._weights.head.logits(states), self._known)

    def bucket(self, tokens: int) -> int:
        """Tokens of a pass of so many in one product: at least the 16 that tensor cores take."""
        return max(tokens, 16)

    def joined(self, logits: torch.Tensor) -> torch.Tensor:
        """[N, vocab] of what each rank has."""
        return logits if self.tokens == self.info.vocab_size else self.group.joined(logits)

    def choose(
        self, logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, token_keys: torch.Tensor
    ) -> Choice:
        """`ops.choose` of logits [N, vocab], or of this rank's [N, tokens] and all others', which are not sent."""
        found: Choice
        if logits.shape[1] == self.info.vocab_size:
            found = self.ops.choose(logits, temperatures, keys, token_keys)
        else:
            mine = self.group.part.vocabulary(self.info.vocab_size)
            parts = self.ops.choose_parts(logits, temperatures, keys, token_keys[mine], mine.start)
            found = self.ops.merge_choices(ChoiceParts(*map(self.group.joined, parts)))
        return found

    def slots(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Where in the cache the `places` [T] of these rows [T] of the table lie."""
        size = self.cache.block_size
        blocks = self.cache.table[rows, torch.div(places, size, rounding_mode="floor")]
        return blocks.long() * size + places % size

    @torch.inference_mode()
    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`. Rows that decode pass as in rounds, prompts by themselves: neither sees the other."""
        spans, decoding = new_spans(self.cache, packed), len(packed.rows) - packed.prompts
        self.cache.send()
        tile, one, first = tile_of(decoding, self.info), tile_of(1, self.info), 0
        parts, captured = list[torch.Tensor](), list[torch.Tensor]()
        # The head is for few of a prompt's tokens, as for those of one row that decodes.
        for own, size, head in ((slice(decoding), tile, tile), (slice(decoding, None), TILES[-1], one)):
            if spans[own]:
                count = int(packed.counts[own].sum())
                last = last_places(spans[own], packed.wanted[own].tolist())
                places = np.pad(last, (0, padded(len(last), head) - len(last)))
                laid = self._laid(packed.tokens[first : first + count], spans[own], size)
                states = self.room_for_states(len(laid[0]))
                with self.group.together("call", "read", laid, places, size, head):
                    parts.append(self.read(laid, places, size, head, states)[: len(last)])
                if states is not None:
                    captured.append(states[:count])
                first += count
        for span in spans:
            self.cache.set_length(span.row, span.end)
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Forward(logits, torch.cat(captured) if captured else None)

    def read(
        self, laid: Sequence[IntArray], places: IntArray, tile: int, head: int, captured: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [N, vocab] after the tokens at `places` [N] of a pass that `_laid` laid out; `head`: its head's."""
        with at_work(self.device):
            tokens, at, base, seen, parts, *slots = map(self._sent, laid)
            states = self.run(Inputs(tokens, at, self.slots(*slots), base, seen, parts, tile), captured)
            wanted = torch.split(states.index_select(0, self._sent(places)), head)
            return self.joined(torch.cat([self.logits(part) for part in wanted]))

    def _laid(self, tokens: IntArray, spans: Sequence[Span], tile: int) -> Sequence[IntArray]:
        """All that `Inputs` are made of, but rows and places in them for slots."""
        size, rows = padded(len(tokens), tile), np.array([span.row for span in spans])
        counts = np.array([span.size for span in spans])
        owners, places = np.repeat(rows, counts), np.concatenate([np.arange(span.start, span.end) for span in spans])
        base, seen = places.copy(), np.zeros(len(tokens), dtype=np.int64)
        at = 0
        for span in spans:
            if span.seen is not None:
                own = slice(at, at + span.size)
                base[own], seen[own] = branches(span)
            at += span.size
        more = size - len(tokens)
        owners, places = np.pad(owners, (0, more), constant_values=self.cache.nobody), np.pad(places, (0, more))
        laid = tiles(rows, counts, self.heads)
        return (
            np.pad(tokens, (0, more)),
            np.pad(positions(spans), (0, more)).astype(np.int32),
            np.pad(base, (0, more), constant_values=-1).astype(np.int32),
            np.pad(seen, (0, more)),
            laid.astype(np.int32),
            owners,
            places,
        )

    def _plan(self, inputs: Inputs, window: int | None) -> AttentionPlan:
        several = programs(len(inputs.tiles), self.heads, self.info.context, self._processors)
        shared = several > 1 and len(inputs.tokens) <= len(self._workspace.peaks)
        who = inputs.tiles, inputs.base, inputs.seen, inputs.slots, inputs.positions
        work = (self._workspace, several) if shared else (None, 1)
        return AttentionPlan(self.heads, self.cache.block_size, *who, self.cache.table, window, *work)

    def _normed(self, added: torch.Tensor | None, residual: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        normed: torch.Tensor = self.ops.add_norm(added, residual, norm.weight, norm.eps)
        return normed

    def _sent(self, numbers: IntArray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # or the host would wait for the pass that is under way
        return tensor.to(self.device, non_blocking=True)


def in_tiles(tile: int, product: Linear, x: torch.Tensor) -> torch.Tensor:
    """`product` of x [T, in], of so many tokens at a time."""
    if len(x) <= tile:
        return product(x)
    result = x.new_empty((len(x), product.width))
    for part, out in zip(torch.split(x, tile), torch.split(result, tile), strict=True):
        product(part, out)
    return result


def branches(span: Span) -> tuple[IntArray, IntArray]:
    """`base` and `seen` [size] of the tokens of a row that branches: what all of them see is no longer told one by one.

    A window of a newest token and 64 nodes is thus 64 bits.
    """
    assert span.seen is not None
    common = int(np.logical_and.accumulate(span.seen.all(axis=0)).sum())
    others = span.seen.copy()
    others[np.arange(span.size), np.arange(-span.size, 0)] = False
    told = others[:, common:]
    packed = np.packbits(np.pad(told, ((0, 0), (0, 64 - told.shape[1]))), axis=1, bitorder="little")
    return np.minimum(span.end - told.shape[1], np.arange(span.start, span.end)), packed.view(np.int64)[:, 0]


def kernels_for(device: torch.device) -> tuple[ModuleType, int]:
    """The functions of `ops` that are fastest there, and how many processors the device has."""
    if device.type != "cuda" or torch.version.cuda is None:
        return ops, 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    name = "kernels" if importlib.util.find_spec("triton") else "ops"  # CUDA builds of torch bring Triton
    return importlib.import_module(f"adaptspec.gpu.{name}"), processors
