"""The speed of one CUDA device: passes, products, draft steps and requests, next to its bandwidth and to transformers.

`python -m adaptspec.bench.gpu --out DIR` measures two models of random weights, and those that `--model` names. Results
are written as soon as they are there, since devices are lent for minutes. `--tiny` runs the same code on small shapes,
also on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

from adaptspec.bench.contenders import Records
from adaptspec.bench.random_models import (
    DTYPE,
    LLAMA_1B,
    LLAMA_8B,
    TINY_DRAFT,
    TINY_TARGET,
    any_tokenizer,
    random_text,
    random_weights,
    temperature_for,
    weight_bytes,
)
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.build import assemble, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.warm_up import warm_up
from adaptspec.errors import ConfigError
from adaptspec.gpu.decoder import GpuDecoder, products_of
from adaptspec.gpu.graphs import CudaGraphCache, DeviceMark, current_device
from adaptspec.gpu.passes import TILE, PagedCache, PassShape, rows_are_invariant
from adaptspec.gpu.tensor_parallel import KERNELS, RankGroup
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK, CachePlan
from adaptspec.models.loading import load_model
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.models.weights import DecoderWeights
from adaptspec.request import Request, SamplingParams
from adaptspec.results import FinishReason
from adaptspec.simulation.simulator import static_spec
from adaptspec.tables import Table, show

Line = dict[str, Any]
DEPTHS = (1, 3, 7)
AGREEMENT = 0.8  # of the random draft model with its target
PRODUCT_TOKENS = (16, 32, 64, 128, 256)
ANSWER = 10  # times the tokens that are timed, so that no request ends before


@dataclass(frozen=True)
class Sizes:
    """What is measured. `seconds` are what pieces take on an H100, by the last word of their names (estimates)."""

    shapes: Mapping[str, Mapping[str, Any]]  # the draft model, and then its target
    context: int  # tokens cached before a pass
    rows: Sequence[int]  # of passes
    tokens: Sequence[int]  # per row
    widest: int  # most tokens of a pass
    batches: Sequence[int]  # of drafts and requests
    timed: int  # tokens per request
    copied: int  # bytes
    seconds: Mapping[str, float]
    backend: str  # of torch.compile
    turns: int = 5  # of which results are medians
    calls: int = 10  # per turn
    warm_up: float = 3.0  # seconds of rounds from which the engine learns costs


FULL = Sizes(
    {"llama-1b": LLAMA_1B, "llama-8b": LLAMA_8B},
    context=1024,
    rows=(1, 4, 16, 64),
    tokens=(1, 2, 4, 8, 16, 32, 64),
    widest=512,
    batches=(1, 16),
    timed=128,
    copied=2**31,
    seconds={"model": 30.0, "passes": 30.0, "products": 10.0, "drafts": 15.0, "requests": 90.0, "transformers": 90.0},
    backend="inductor",
)
TINY = replace(
    FULL,
    shapes={"tiny-draft": TINY_DRAFT, "tiny": TINY_TARGET},
    context=40,
    rows=(1, 2),
    tokens=(1, 8),
    widest=16,
    batches=(1, 2),
    timed=6,
    copied=2**20,
    seconds={},
    backend="eager",
    turns=2,
    calls=2,
    warm_up=0.5,
)


class TimedDecoder(GpuDecoder):
    """A decoder that keeps the shape of its latest pass, so that the pass alone can run again."""

    latest: PassShape

    def run_pass(self, shape: PassShape, num_drawn: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `GpuDecoder.run_pass`."""
        self.latest = shape
        return super().run_pass(shape, num_drawn)


@dataclass(frozen=True)
class Model:
    """A model with its cache. `shape` is its config.json, which a GGUF file does not have."""

    shape: Mapping[str, Any] | None
    config: DecoderConfig
    weights: DecoderWeights
    cache: PagedCache
    decoder: TimedDecoder

    def fill(self, rows: int, context: int, more: int) -> None:
        """Have each row hold `context` tokens, with room for `more`."""
        for row in range(rows):
            self.cache.reserve(row, context + more)
            self.cache.set_length(row, context)

    def free(self, rows: int) -> None:
        for row in range(rows):
            self.cache.free(row)

    def bytes(self, rows: int, context: int) -> int:
        """Bytes that a pass reads: weights, and the keys and values of rows that hold `context` tokens."""
        return weight_bytes(self.config) + rows * context * self.config.cache_shape.bytes_per_token(DTYPE)


class GpuBench:
    """A run of all pieces, each of which gives lines of figures. Results are in `out`, a file per piece."""

    def __init__(self, out: Path, device: torch.device, sizes: Sizes, *, seconds: float, operators: str) -> None:
        self.out, self.device, self.sizes = out, device, sizes
        self.group = RankGroup(operators=operators)
        self.models: dict[str, Model] = {}
        self.failed: list[str] = []
        self.left_out: list[str] = []
        self._bandwidth = 1.0  # bytes per second
        self._end = time.monotonic() + seconds

    def run(self, paths: Sequence[str]) -> None:
        """Run all pieces for which there is time."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.piece("bandwidth", self._measure_bandwidth)
        shapes = dict(self.sizes.shapes)
        for name in (*paths, *shapes):
            title = Path(name).name
            self.piece(f"{title} model", partial(self._load, title, name, shapes.get(name)))
            model = self.models.get(title)
            if model is not None:
                self.piece(f"{title} passes", partial(self._time_passes, model))
                self.piece(f"{title} products", partial(self._time_products, model))
                self.piece(f"{title} drafts", partial(self._time_drafts, model))
        draft, target = (self.models.get(name) for name in shapes)
        if draft is not None and target is not None:
            self.piece("requests", partial(self._time_requests, target, draft))
        compared = {name: model.shape for name, model in self.models.items()}
        self.models.clear()
        del model, draft, target
        for name, shape in reversed(compared.items()):
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if shape is not None:
                self.piece(f"{name} transformers", partial(self._time_transformers, shape), optional=True)

    def piece(self, name: str, lines: Callable[[], Iterator[Line]], *, optional: bool = False) -> None:
        """Run a piece if there is time, and print and write its lines. An error ends this piece only.

        `optional`: an error is reported, but the run has not failed.
        """
        if not self._has_time(name, self.sizes.seconds.get(name.rsplit(maxsplit=1)[-1], 0.0)):
            return
        begun, found = time.monotonic(), list[Line]()
        result: dict[str, Any] = {"piece": name, "machine": machine(self.device), "lines": found}
        try:
            for line in lines():
                found.append(line)
                self._write(name, result)
        except Exception as error:  # noqa: BLE001 - the time on a device is short, so other pieces go on
            result["error"] = traceback.format_exc()
            self.failed += [] if optional else [name]
            outcome = "was skipped" if optional else "failed"
            sys.stdout.write(f"{name} {outcome}: {type(error).__name__}: {error}\n")
        result["seconds"] = round(time.monotonic() - begun, 1)
        self._write(name, result)
        show([table(name, found)])
        sys.stdout.flush()

    def _has_time(self, name: str, seconds: float = 0.0) -> bool:
        """Whether `seconds` are left; if not, `name` is reported as left out."""
        if time.monotonic() + seconds < self._end:
            return True
        self.left_out.append(name)
        return False

    def _write(self, name: str, result: Mapping[str, Any]) -> None:
        (self.out / f"{name.replace(' ', '-')}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")

    def _compared(self, seconds: float, moved: float) -> Line:
        """Milliseconds of work that reads or writes so many bytes, and the share of the bandwidth that it reaches."""
        return {"ms": 1e3 * seconds, "of_bandwidth": moved / seconds / self._bandwidth}

    def _measure_bandwidth(self) -> Iterator[Line]:
        source = torch.zeros(self.sizes.copied, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self._bandwidth = 2 * len(source) / self._seconds(lambda: target.copy_(source))
        yield {"copy_gb_per_s": 1e-9 * self._bandwidth}

    def _seconds(self, call: Callable[[], object], *, captured: bool = False) -> float:
        """Seconds of a call by the device's clock; `captured`: of its graph."""
        graphs = CudaGraphCache(self.device)
        if captured:
            graphs.capture("call", call)
        graphs.run("call", call)
        found = []
        for _ in range(self.sizes.turns):
            begun = DeviceMark(self.device)
            for _ in range(self.sizes.calls):
                graphs.run("call", call)
            found.append(DeviceMark(self.device).seconds_since(begun) / self.sizes.calls)
        return max(statistics.median(found), 1e-9)

    def _load(self, title: str, path: str, shape: Mapping[str, Any] | None) -> Iterator[Line]:
        """Make a decoder of random weights of a shape, or of the model at `path`."""
        sizes, begun = self.sizes, time.monotonic()
        if shape is None:
            dtype = "bfloat16" if self.device.type == "cuda" else "float32"
            loaded = load_model(path, device=str(self.device), dtype=dtype, runner="torch")
            if loaded.config is None or loaded.weights is None:
                raise ConfigError(f"{path} is no Llama-like model, which alone has passes on a GPU")
            shape = read_json(loaded.folder / CONFIG) if loaded.folder.is_dir() else None
            config, weights, info = loaded.config, loaded.weights, loaded.info
        else:
            config = read_decoder_config(shape)
            weights = random_weights(config, self.device)
            sizes_of = weights.parameters, config.vocab_size, config.context
            info = ModelInfo(title, "llama", *sizes_of, fingerprint=title, eos_token_ids=(1,), dtype="bfloat16")
        rows = max(*sizes.rows, *sizes.batches)
        context = min(config.context, 2 * sizes.context + (ANSWER + 1) * sizes.timed)
        room = max(
            max(sizes.rows) * (sizes.context + max(sizes.tokens)),
            max(sizes.batches) * (sizes.context + ANSWER * sizes.timed),
        )
        plan = CachePlan(rows * CUDA_BLOCK + room // CUDA_BLOCK * CUDA_BLOCK, context, CUDA_BLOCK, rows)
        cache = PagedCache(config.cache_shape, plan, weights.embedding.dtype, self.device, self.group)
        for layer in cache.pool:
            layer.zero_()  # passes are timed behind tokens that no pass has written, which may be NaN
        is_draft = title == next(iter(sizes.shapes))
        decoder = TimedDecoder(replace(info, context=context), config, weights, cache, self.group, drafts=is_draft)
        loaded_at = time.monotonic()
        decoder.capture(sizes.widest)
        self.models[title] = Model(shape, config, weights, cache, decoder)
        yield {
            "weights_gb": 1e-9 * weight_bytes(config),
            "row_invariant": decoder.is_row_invariant,
            "load_s": loaded_at - begun,
            "capture_s": time.monotonic() - loaded_at,
        }

    def _time_passes(self, model: Model) -> Iterator[Line]:
        """Passes behind cached tokens: on the device, and until the host has launched one."""
        sizes, decoder = self.sizes, model.decoder
        for rows in sizes.rows:
            for tokens in sizes.tokens:
                if rows * tokens > sizes.widest or not self._has_time(f"passes of {rows} x {tokens}"):
                    continue
                packed = _packed(rows, tokens, model.config.vocab_size)
                host = []
                for _ in range(sizes.turns):
                    model.fill(rows, sizes.context, tokens)
                    begun = time.perf_counter()
                    decoder.forward(packed)
                    host.append(time.perf_counter() - begun)
                seconds = self._seconds(lambda: decoder.run_pass(decoder.latest))
                moved = model.bytes(rows, sizes.context)
                line = {"rows": rows, "tokens": tokens, **self._compared(seconds, moved)}
                yield {**line, "host_ms": 1e3 * statistics.median(host)}
            model.free(rows)

    def _time_products(self, model: Model) -> Iterator[Line]:
        """The products of all layers and the LM head with several numbers of tokens.

        `fixed_ms`: those of all layers in parts of `TILE` tokens, which are needed if rows are not invariant.
        """
        config, weights = model.config, model.weights
        like, products = weights.norm.weight, products_of(config, weights)
        inputs = {name: width for name, (_, width, _) in products.items() if name != "head"}

        def run(states: Mapping[str, torch.Tensor]) -> None:
            for layer in weights.layers:
                for name, x in states.items():
                    getattr(layer, name)(x)

        head_bytes = DTYPE.itemsize * config.hidden * config.vocab_size
        layers, lines = dict[int, float](), dict[int, Line]()
        with model.decoder.working():
            invariant = {name: rows_are_invariant(*product, like) for name, product in products.items()}
            for tokens in PRODUCT_TOKENS:
                states = {name: like.new_ones(tokens, width) for name, width in inputs.items()}
                layers[tokens] = self._seconds(partial(run, states), captured=True)
                hidden = like.new_ones(tokens, config.hidden)
                seconds = self._seconds(partial(weights.head.logits, hidden), captured=True)
                lines[tokens] = self._compared(layers[tokens], weight_bytes(config) - head_bytes)
                lines[tokens] |= {f"head_{name}": value for name, value in self._compared(seconds, head_bytes).items()}
        for tokens, line in lines.items():
            fixed_ms = 1e3 * layers[TILE] * -(-tokens // TILE)
            yield {
                "tokens": tokens,
                **line,
                "fixed_ms": fixed_ms,
                **{f"{n}_invariant": i for n, i in invariant.items()},
            }

    def _time_drafts(self, model: Model) -> Iterator[Line]:
        """Draft steps behind cached tokens, from drafts of the smallest and the largest depth."""
        context, decoder, vocab = self.sizes.context, model.decoder, model.config.vocab_size
        drafter, chooser = DraftModelDrafter(decoder), decoder.make_chooser(max(self.sizes.batches))
        for rows in self.sizes.batches:
            texts = [list(random_text(context + 1, vocab, row)) for row in range(rows)]
            sampled = [RowSampling(SamplingParams(), row, text, 1, ()) for row, text in enumerate(texts)]
            batch = SamplingBatch(sampled, vocab, chooser=chooser)

            def draft(depth: int, texts: list[list[int]] = texts, batch: SamplingBatch = batch) -> None:
                model.fill(len(texts), context, 0)
                each = np.full(len(texts), depth, dtype=np.int64)
                drafter.propose(DraftJob(np.arange(len(texts)), texts, each, batch))

            seconds = {depth: self._seconds(partial(draft, depth)) for depth in (DEPTHS[0], DEPTHS[-1])}
            step = max((seconds[DEPTHS[-1]] - seconds[DEPTHS[0]]) / (DEPTHS[-1] - DEPTHS[0]), 1e-9)
            line = {"rows": rows, **self._compared(step, model.bytes(rows, context))}
            yield {**line, "first_step_ms": 1e3 * seconds[DEPTHS[0]]}
            for row in range(rows):
                drafter.free(row)

    def _time_requests(self, target: Model, draft: Model) -> Iterator[Line]:
        """Rounds of the engine by policy, with a draft model that chooses as its target at `AGREEMENT`."""
        sizes, decoder = self.sizes, target.decoder
        temperature = temperature_for(AGREEMENT, decoder, draft.decoder)
        tokenizer = any_tokenizer(target.config.vocab_size)
        for rows in sizes.batches:
            drafters = [DraftModelDrafter(draft.decoder), LookupDrafter(target.config.vocab_size)]
            limits = EngineLimits(max_rows=rows, max_depth=DEPTHS[-1], prefix_cache="off")
            executor = make_executor(decoder, drafters, limits, eager=False)
            costs = warm_up(executor, InputProcessor(decoder.info, tokenizer), limits, seconds=sizes.warm_up)
            specs = [load_policy_spec(find_policy("off")), *map(static_spec, DEPTHS)]
            plain = 0.0
            for spec in (*specs, load_policy_spec(find_policy("goodput"))):
                if not self._has_time(
                    f"requests of {rows} rows under {spec.name}", 0.1 * sizes.seconds.get("requests", 0)
                ):
                    continue
                records = Records()
                core = assemble(
                    decoder,
                    drafters,
                    tokenizer,
                    specs=[spec],
                    costs=CostModel(costs.profile),
                    sinks=[records],
                    limits=limits,
                    executor=executor,
                )
                params = SamplingParams(ANSWER * sizes.timed, temperature, ignore_eos=True)
                turns = []
                for turn in range(sizes.turns):
                    texts = [
                        random_text(sizes.context // 4, decoder.info.vocab_size, turn * rows + i) for i in range(rows)
                    ]
                    requests = [Request(f"{turn}-{i}", text, replace(params, seed=i)) for i, text in enumerate(texts)]
                    turns.append(timed(core, records, requests, sizes.timed))
                # The first turn warms up, and teaches an adaptive policy.
                line = sorted(turns[1:], key=lambda turn: float(turn["tokens_per_s"]))[len(turns[1:]) // 2]
                plain = plain or line["tokens_per_s"]
                yield {"rows": rows, "policy": spec.name, "over_off": line["tokens_per_s"] / plain, **line}

    def _time_transformers(self, shape: Mapping[str, Any]) -> Iterator[Line]:
        """Passes of one token per row by transformers, compiled, over a static cache."""
        config = AutoConfig.for_model(**shape)
        with torch.device(self.device):
            model = AutoModelForCausalLM.from_config(config, dtype=DTYPE).eval()  # type: ignore[no-untyped-call]
        decoder = read_decoder_config(shape)
        mode = "reduce-overhead" if self.sizes.backend == "inductor" else None
        forward: Any = torch.compile(model.forward, backend=self.sizes.backend, fullgraph=True, mode=mode)
        for rows in self.sizes.batches:
            context = self.sizes.context
            cache = StaticCache(config, max_cache_len=context + 10 + 2 * self.sizes.turns * self.sizes.calls)
            texts = [random_text(context, decoder.vocab_size, row) for row in range(rows)]
            model(torch.tensor(texts, device=self.device), past_key_values=cache, logits_to_keep=1)
            newest = torch.ones((rows, 1), dtype=torch.int64, device=self.device)
            run = partial(forward, newest, past_key_values=cache, logits_to_keep=1)
            begun = time.monotonic()
            for _ in range(3):  # compiles, records a graph, replays it
                run()
            compile_s = time.monotonic() - begun
            moved = weight_bytes(decoder) + rows * context * decoder.cache_shape.bytes_per_token(DTYPE)
            yield {"rows": rows, **self._compared(self._seconds(run), moved), "compile_s": compile_s}


def timed(core: EngineCore, records: Records, requests: Sequence[Request], tokens: int) -> Line:
    """Serve requests at once; figures of `tokens` tokens per request from the round on that follows all prompts."""
    for request in requests:
        core.add(request)
    waiting = {request.id for request in requests}
    while waiting:
        waiting -= {delta.request_id for delta in core.step() if delta.tokens}
    records.rounds.clear()
    begun, written = time.perf_counter(), 0
    while written < tokens * len(requests) and not core.idle:
        written += sum(len(delta.tokens) for delta in core.step())
    seconds, rounds = time.perf_counter() - begun, list(records.rounds)
    core.abort_all(FinishReason.ABORT, "timed")
    while not core.idle:
        core.step()
    drafted, accepted = (sum(int(getattr(one, name).sum()) for one in rounds) for name in ("drafted", "accepted"))
    parts = {
        f"{part}_ms": 1e3 * statistics.median(getattr(one.timing, part) for one in rounds)
        for part in ("draft", "verify")
    }
    return {
        "tokens_per_s": written / seconds,
        "round_ms": 1e3 * seconds / len(rounds),
        **parts,
        "drafted": drafted / len(rounds) / len(requests),
        "accepted": accepted / len(rounds) / len(requests),
    }


def machine(device: torch.device) -> dict[str, str]:
    """The device, and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__, "python": sys.version.split()[0]}


def table(title: str, lines: Sequence[Line]) -> Table:
    """Lines of the same figures for people."""
    names = list(lines[0]) if lines else ["-"]
    found = Table(*names, title=title)
    for line in lines:
        found.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in line.values()))
    return found


def _packed(rows: int, tokens: int, vocab_size: int) -> Packed:
    """A pass of `tokens` random tokens of each row, with logits of all."""
    each = np.full(rows, tokens, dtype=np.int64)
    text = np.array(random_text(rows * tokens, vocab_size), dtype=np.int64)
    return Packed(np.arange(rows), each, text, each)


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; the status is 1 if a piece failed."""
    parser = argparse.ArgumentParser(prog="python -m adaptspec.bench.gpu", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write results as JSON to this directory"
    )
    parser.add_argument("--seconds", type=float, default=540.0, metavar="S", help="begin no piece that would end later")
    parser.add_argument(
        "--model", action="append", default=[], metavar="DIR", help="measure this model, too (repeatable)"
    )
    parser.add_argument("--device", default="cuda:0", help="default cuda:0")
    parser.add_argument("--tiny", action="store_true", help="measure small shapes, to try the command")
    parser.add_argument(
        "--operators", default=KERNELS, metavar="MODULE", help="operators of passes, default the kernels"
    )
    arguments = parser.parse_args(given)
    device, sizes = torch.device(arguments.device), TINY if arguments.tiny else FULL
    bench = GpuBench(arguments.out, device, sizes, seconds=arguments.seconds, operators=arguments.operators)
    with current_device(device), torch.inference_mode():
        bench.run(arguments.model)
    for name in bench.left_out:
        sys.stdout.write(f"no time was left for {name}\n")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
