"""What a case runs on: a target with its drafters, loaded once for all cases of one runtime."""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter, ModelDrafter
from adaptspec.drafting.lookahead import LookaheadDrafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.ngram_index import Histories
from adaptspec.engine.build import assemble, build
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.load_models import decoder
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.gpu.decoder import GpuDecoder, gpu_decoder
from adaptspec.gpu.heads import gpu_heads
from adaptspec.gpu.tensor_parallel import RankGroup, start_ranks
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.head_checkpoint import HeadMakers
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.kv_cache import CachePlan
from adaptspec.models.layers import has_products
from adaptspec.models.loading import MakeDecoder
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.weights import DecoderWeights
from adaptspec.results import Completion
from adaptspec.rounds import Sink
from tests.engine.conftest import byte_level
from tests.engine.policies import COSTS
from tests.exactness.drafters import DRAFTERS, FEW, INSTEAD, Models
from tests.fakes import TableRunner

ROWS, CONTEXT = 4, 96
ROUNDING = 1e-4  # of log-probabilities
SHORT, BLOCK = 104, 8  # tokens of a cache that is short for four rows of about fifty, and of its blocks
# Tokens of the table: two special ones, what a JSON array of strings is written with, and letters.
LETTERS = '[]",' + string.ascii_lowercase[:18]
TEXTS = (
    "Once upon a time, in a village by the sea, there was a little girl. The girl had a little dog. The dog",
    "Lily went to the park. Lily went to the park. Lily went to the park. Lily went",
    "Tell me of caf\u00e9s \U0001f600 and of the sun, the moon, the sun, the moon and the sun and",
    "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return",
)


@dataclass(frozen=True)
class World:
    """A loaded target, its drafters, and the tokens that requests may use."""

    target: Runner
    drafters: Sequence[Drafter]
    tokenizer: PreTrainedTokenizerFast
    few: tuple[int, ...] = ()  # tokens of which requests make a target write little else
    answers: dict[str, Completion] = field(default_factory=dict)  # those to requests without drafts, by request

    def engine(
        self,
        specs: Sequence[PolicySpec],
        limits: EngineLimits,
        sinks: Sequence[Sink] = (),
        executor: ModelExecutor | None = None,
        target: Runner | None = None,
    ) -> EngineCore:
        """An engine of these policies, whose clock ticks evenly: they decide the same every time."""
        ticks = itertools.count()
        return assemble(
            target or self.target,
            self.drafters,
            self.tokenizer,
            specs=specs,
            costs=CostModel(COSTS),
            sinks=sinks,
            limits=limits,
            timer=lambda: 4e-4 * next(ticks),
            executor=executor,
        )

    def prompt(self, number: int, length: int) -> tuple[int, ...]:
        """Tokens that repeat themselves, so that lookups find something."""
        if len(self.tokenizer) > 1000:
            tokens = self.tokenizer.encode(TEXTS[number % len(TEXTS)], add_special_tokens=False)
            tokens = tokens[number % len(tokens) :] + tokens[: number % len(tokens)]
        else:
            tokens = np.random.default_rng(number).integers(4, min(self.target.info.vocab_size - 1, 80), 7).tolist()
        return tuple(itertools.islice(itertools.cycle(tokens), length))

    @property
    def rounding(self) -> float:
        """By how much log-probabilities may differ: not at all if passes were found equal at start."""
        return 0.0 if self.target.info.equal_passes else ROUNDING

    @property
    def is_empty(self) -> bool:
        """Whether no cache holds anything, and no state of a target waits to be read by a head."""
        runners = [self.target, *(one.runner for one in self.drafters if isinstance(one, ModelDrafter))]
        unread = any(runner._rows for runner in runners if isinstance(runner, HeadRunner))
        return all(runner.free_memory == 1.0 for runner in runners) and not unread


class Worlds:
    """Worlds by runtime, drafter and room, each loaded when a case first asks for it."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._loaded: dict[tuple[object, ...], World] = {}

    def of(self, runtime: str, drafter: str, *, short: bool = False, rows: int = ROWS) -> World:
        if runtime == "table":
            return table(drafter, capacity=SHORT if short else 10**9)
        kind = DRAFTERS[drafter]
        key = (runtime, kind.target, kind.draft, short, rows)
        if key not in self._loaded:
            if runtime == "ranks":
                self.close()  # a process runs one model on several devices at a time
            self._loaded[key] = self._load(runtime, drafter, short=short, rows=rows)
        return self._loaded[key]

    def close(self) -> None:
        """End the processes of ranks."""
        for key in [key for key in self._loaded if key[0] == "ranks"]:
            target = self._loaded.pop(key).target
            assert isinstance(target, GpuDecoder)
            target.group.close()

    def _load(self, runtime: str, drafter: str, *, short: bool, rows: int) -> World:
        kind, settings = DRAFTERS[drafter], dict(RUNTIMES[runtime].settings)
        if short:
            settings["cache_tokens"] = SHORT
        target, draft = (INSTEAD.get(runtime, {}).get(name, name) for name in (kind.target, kind.draft))
        config = EngineConfig(
            model=self._models.place(target),
            draft=self._models.place(draft),
            max_model_len=CONTEXT,
            max_num_seqs=rows,
            threads=1,
            counts=None,
            detect_tasks=False,
            **settings,
        )
        start = partial(start_ranks, operators=REFERENCE)
        built = build(
            config,
            costs=CostModel(COSTS),
            make=RUNTIMES[runtime].make,
            start_ranks=start,
            head_makers=RUNTIMES[runtime].head_makers,
        )
        few = self._models.vocabulary(draft) or [built.tokenizer.encode(letter)[0] for letter in "abcdef"]
        return World(built.target, built.drafters, built.tokenizer, tuple(few[:FEW]))


def table(drafter: str, capacity: int = 10**9) -> World:
    """Models of a few lines: a table each, of which the draft's is mostly the target's."""
    vocabulary = {"wider-vocabulary": (23, 24), "narrower-vocabulary": (24, 23)}.get(drafter, (24, 24))
    target = TableRunner(vocabulary[0], capacity=capacity, context=CONTEXT)
    blend = 1.0 if DRAFTERS[drafter].copies else 0.8
    draft = TableRunner(vocabulary[1], seed=1, blend=blend, capacity=capacity, context=CONTEXT)
    drafters: list[Drafter] = [
        DraftModelDrafter(draft, (1,)),
        LookupDrafter(vocabulary[0], (1,)),
        LookupDrafter(vocabulary[0], (1,), name="counts", histories=Histories()),
        LookaheadDrafter(),
    ]
    return World(target, drafters, TOKENIZER, tuple(range(4, 4 + FEW)))


def _letters() -> PreTrainedTokenizerFast:
    tokenizer = byte_level([b"<pad>", b"<end>", *(letter.encode() for letter in LETTERS)])
    tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<end>"})
    return tokenizer


TOKENIZER = _letters()


@dataclass(frozen=True)
class Runtime:
    """What runs models: settings of the engine, and what makes decoders in place of the usual."""

    settings: Mapping[str, Any]
    make: MakeDecoder | None = None
    head_makers: HeadMakers | None = None


def _in_blocks(make: MakeDecoder) -> MakeDecoder:
    """The same with a cache of blocks, several to a row."""

    def made(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
        return make(info, config, weights, replace(plan, block_size=BLOCK))

    return made


REFERENCE = "tests.gpu.reference"
_GROUP = RankGroup(operators=REFERENCE)
reference_decoder: MakeDecoder = partial(gpu_decoder, group=_GROUP)
REFERENCE_HEADS = gpu_heads(_GROUP)
_CPU = {"device": "cpu", "dtype": "float32"}
RUNTIMES: Mapping[str, Runtime] = {
    "lean": Runtime(_CPU),
    "bfloat16": Runtime({"device": "cpu", "dtype": "bfloat16" if has_products(torch.bfloat16) else "float32"}),
    "float16": Runtime({"device": "cpu", "dtype": "float16" if has_products(torch.float16) else "float32"}),
    "paged": Runtime(_CPU, _in_blocks(decoder)),
    "transformers": Runtime(_CPU),
    "llama.cpp": Runtime({"device": "cpu"}),
    # The code for GPUs with operators of torch: in bfloat16, where the last bit decides many ties.
    "gpu-on-cpu": Runtime({"device": "cpu", "dtype": "bfloat16"}, _in_blocks(reference_decoder), REFERENCE_HEADS),
    "ranks": Runtime({**_CPU, "tensor_parallel_size": 2}),
    "pretend": Runtime(
        {"device": "cuda", "dtype": "float32", "enforce_eager": True}, reference_decoder, REFERENCE_HEADS
    ),
    # Unless told, a cache takes most of what is free on a device, and each of these models has one of its own.
    "cuda": Runtime({"device": "cuda", "dtype": "bfloat16", "cache_tokens": 2 * ROWS * CONTEXT}),
}
