"""Counts what passes of full-size models launch, read, copy and hold: `python -m tests.gpu.counted` needs no GPU.

Tensors are on torch's device `meta`, which computes shapes only. The kernels are not run but counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from adaptspec.bench.random_models import DTYPE, LLAMA_1B, LLAMA_8B, random_weights
from adaptspec.gpu.attention_plan import Workspace
from adaptspec.gpu.decoder import GpuDecoder, bytes_without_cache
from adaptspec.gpu.graphs import CudaGraphCache
from adaptspec.gpu.passes import FIXED, VARIABLE, PagedCache, ProductSizes, workspace_tokens
from adaptspec.gpu.tensor_parallel import RankGroup
from adaptspec.models import layers
from adaptspec.models.attention import Heads
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK, CachePlan
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.tables import Table

META = torch.device("meta")
PROCESSORS = 132  # of an H100
MODELS = {"llama-1b": LLAMA_1B, "llama-8b": LLAMA_8B}
PASSES = ((1, 1), (16, 1), (64, 1), (128, 1), (16, 8))  # rows and tokens per row
CONTEXT = 1024  # tokens that each row holds
LONGEST = 8192  # tokens that a row may hold
PROMPT = 2048  # tokens of a prompt that are read in one pass
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "_reshape_alias"}
GREEDY = SamplingParams(temperature=0.0)
RULED = SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=0.5)


class MetaDevice(TorchDispatchMode):
    """Counts operations on `META`, as if each were one launch on a GPU, and copies between it and the host."""

    def __init__(self, weights: Collection[torch.Tensor]) -> None:
        """Reads of `weights` by matrix products are counted."""
        super().__init__()
        self._weights = {StorageWeakRef(weight.untyped_storage()).cdata for weight in weights}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}  # memory that was allocated here
        self._graph: Hashable = None
        self.clear()

    def clear(self) -> None:
        """Start counting anew."""
        self.launches: Counter[str] = Counter()
        self.in_graphs: Counter[Hashable] = Counter()  # launches by the key of their graph
        self.uploads: list[int] = []  # bytes of each copy
        self.downloads: list[int] = []
        self.weight_bytes = 0
        self.peak = self.held

    @property
    def held(self) -> int:
        """Bytes of tensors that exist."""
        self._live = {key: one for key, one in self._live.items() if not one[0].expired()}
        return sum(size for _, size in self._live.values())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Run the kernels and graphs of a GPU here."""
        run = CudaGraphCache.run

        def launch(kernel: Any, *_: object, **__: object) -> None:
            self._launch(kernel.__name__)

        def run_graph(graphs: CudaGraphCache, key: Hashable, function: Callable[[], object]) -> None:
            self._graph = key
            run(graphs, key, function)
            self._graph = None

        def logits(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
            return torch.mm(hidden, head, out_dtype=torch.float32)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(JITFunction, "run", launch))
            stack.enter_context(mock.patch.object(CudaGraphCache, "run", run_graph))
            stack.enter_context(mock.patch.object(layers, "float32_logits", logits))
            stack.enter_context(torch.inference_mode())
            stack.enter_context(self)
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode, torch has not divided operations into their parts before
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        name, given = func.overloadpacket.__name__, [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        sources = [tensor for tensor in given if tensor.device == META]
        if name == "_to_copy" and sources and kwargs.get("device") == torch.device("cpu"):
            self.downloads.append(args[0].nbytes)
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if _is_tensor(leaf) and leaf.device == META]
        if not made:
            assert not sources, f"{name} makes the host wait"
            return result
        self._hold(made)
        if name in ("_to_copy", "copy_") and given[-1].device != META:
            self.uploads.append(given[-1].nbytes)
        elif not func.is_view and name not in NO_LAUNCH:
            self._launch(name)
            if name in ("mm", "addmm"):
                self.weight_bytes += sum(one.nbytes for one in sources if _key(one) in self._weights)
        return result

    def _launch(self, name: str) -> None:
        self.launches[name] += 1
        if self._graph is not None:
            self.in_graphs[self._graph] += 1

    def _hold(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found = self._live.get(key := _key(tensor))
            if key not in self._weights and (found is None or found[0].expired()):
                self._live[key] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.held)


@dataclass(frozen=True)
class Counts:
    """What one pass and the choice of its tokens take.

    `host_launches`: a graph is one. `memory`: bytes of the decoder and this pass, in addition to weights and cache, if
    graphs keep their memory and a prompt of `PROMPT` tokens is read in another pass; `reserved`: what is set apart.
    """

    layer_launches: int
    launches: int
    host_launches: int
    weight_bytes: int
    uploads: Sequence[int]
    downloads: Sequence[int]
    memory: int
    reserved: int


def counts(shape: Mapping[str, Any], rows: int, tokens: int, sizes: ProductSizes = VARIABLE) -> Counts:
    """Count a pass of so many tokens of each row behind `CONTEXT` cached ones, and the choice after each of them."""
    config = read_decoder_config(shape)
    weights = random_weights(config, META)
    plan = CachePlan((rows + 1) * (CONTEXT + PROMPT), LONGEST, CUDA_BLOCK, rows)
    group = RankGroup()
    cache = PagedCache(config.cache_shape, plan, DTYPE, META, group)
    info = ModelInfo("", "llama", weights.parameters, config.vocab_size, LONGEST, "", (1,), "bfloat16")
    matrices = [weights.embedding.table, weights.head.weight]
    matrices += [
        getattr(layer, name).weight for layer in weights.layers for name in ("qkv", "output", "gate_up", "down")
    ]
    device = MetaDevice([*matrices, *cache.pool])
    with device.counting(), mock.patch.object(GpuDecoder, "_product_sizes", return_value=sizes):
        decoder = GpuDecoder(info, config, weights, cache, group)
        _share_work(decoder, config)
        decoder.capture(rows * tokens)
        chooser = decoder.make_chooser(rows)
        index = np.repeat(np.arange(rows), tokens)
        paths = [[0] * n for _ in range(rows) for n in range(tokens)]

        def choose(logits: torch.Tensor, params: SamplingParams) -> None:
            sampled = [RowSampling(params, row, [1, 2], 1, ()) for row in range(rows)]
            batch = SamplingBatch(sampled, config.vocab_size, words=words, chooser=chooser)
            chooser.start(logits, batch, index, paths)

        words = SamplingBatch([], config.vocab_size).words
        for _ in range(2):  # the first pass uploads the keys of tokens
            device.clear()
            before = device.held
            logits = _forward(decoder, cache, rows, tokens)
            in_graphs = device.peak - before
            choose(logits, GREEDY)
        found = device.launches.total(), device.in_graphs, device.weight_bytes, device.uploads, device.downloads
        device.clear()
        before = device.held
        choose(logits, RULED)
        _forward(decoder, cache, rows, tokens, PROMPT)
        outside_graphs = device.peak - before
    launches, graphs, weight_bytes, uploads, downloads = found
    return Counts(
        graphs["layers", sizes.padded(rows * tokens)],
        launches,
        launches - graphs.total() + len(graphs),
        weight_bytes,
        uploads,
        downloads,
        before + in_graphs + outside_graphs,
        bytes_without_cache(config, DTYPE, LONGEST, rows=rows, decoded=rows * tokens, prompt=rows * tokens + PROMPT),
    )


def _share_work(decoder: GpuDecoder, config: DecoderConfig) -> None:
    """Have programs share the work of attention, which a decoder does on CUDA devices only."""
    heads, passes = Heads(config.heads, config.kv_heads, config.head_dim), decoder._passes
    passes._programs = -(-2 * PROCESSORS // config.kv_heads)
    passes._workspace = Workspace.of(workspace_tokens(heads, LONGEST), heads, LONGEST, META)


def _forward(decoder: GpuDecoder, cache: PagedCache, rows: int, tokens: int, prompt: int = 0) -> torch.Tensor:
    """Logits of a pass behind `CONTEXT` tokens, in which one more row may read a prompt without logits."""
    for row in range(rows):
        assert cache.reserve(row, CONTEXT + tokens)
        cache.set_length(row, CONTEXT)
    sizes = np.array([tokens] * rows + [prompt] * bool(prompt), dtype=np.int64)
    wanted = np.where(np.arange(len(sizes)) < rows, sizes, 0)
    if prompt:
        cache.free(rows)
        assert cache.reserve(rows, prompt)
    text = np.ones(sizes.sum(), dtype=np.int64)
    return decoder.forward(Packed(np.arange(len(sizes)), sizes, text, wanted, prompts=int(prompt > 0))).logits


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _key(tensor: torch.Tensor) -> int:
    return StorageWeakRef(tensor.untyped_storage()).cdata


def main() -> None:
    """Print a table, or with --json all counts as a list."""
    found = [
        {"model": name, "layers": shape["num_hidden_layers"], "rows": rows, "tokens": tokens, "fixed": sizes is FIXED}
        | asdict(counts(shape, rows, tokens, sizes))
        for name, shape in MODELS.items()
        for rows, tokens in PASSES
        for sizes in (VARIABLE, FIXED)
    ]
    if "--json" in sys.argv:
        json.dump(found, sys.stdout)
        return
    launches = "launches", "of layers", "of the host", "weights GB"
    copies = "uploads", "uploaded KiB", "downloads", "downloaded KiB"
    table = Table("model", "rows", "tokens", "products", *launches, *copies, "memory GB", "reserved GB")
    for line in found:
        table.add_row(
            line["model"],
            str(line["rows"]),
            str(line["tokens"]),
            "fixed" if line["fixed"] else "variable",
            str(line["launches"]),
            str(line["layer_launches"]),
            str(line["host_launches"]),
            f"{1e-9 * line['weight_bytes']:.2f}",
            str(len(line["uploads"])),
            f"{sum(line['uploads']) / 1024:.1f}",
            str(len(line["downloads"])),
            f"{sum(line['downloads']) / 1024:.2f}",
            f"{1e-9 * line['memory']:.2f}",
            f"{1e-9 * line['reserved']:.2f}",
        )
    sys.stdout.write(table.markdown())


if __name__ == "__main__":
    main()
