"""Whether one GPU is right, in ten minutes: kernels at real shapes, bits of products, texts, and a minute of requests.

`pytest -m gpu tests/gpu` runs it with the kernels of small shapes; with `-m gpu tests` the exactness matrix runs, too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built, build, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.gpu.decoder import GpuDecoder
from adaptspec.gpu.passes import TILE, products_of_equal_rows
from adaptspec.models.attention import Heads
from adaptspec.models.loading import MakeDecoder
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.results import Completion
from tests.conftest import MakeModel
from tests.engine.policies import COSTS
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers, assert_same
from tests.exactness.worlds import ROUNDING, World
from tests.gpu import reference
from tests.gpu.passes import Row, made
from tests.models.packing import feed, random_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
_log = logging.getLogger(__name__)
DEVICE = "cuda"
MAKE: MakeDecoder | None = None  # the usual one
SECONDS = 60.0  # of random requests
DTYPE = torch.bfloat16
ONCE = 1.6e-2  # error of numbers of about 1 that are rounded to 8 bits once
SHAPES = {"8B": (Heads(32, 8, 128), 4096, 14_336), "0.5B": (Heads(14, 2, 64), 896, 4864)}  # hidden, mlp
CONTEXT, ROWS = 512, 16
LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")
GREEDY = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
ASKED = (
    GREEDY,
    replace(GREEDY, temperature=0.8, seed=1),
    replace(GREEDY, temperature=0.9, top_p=0.9, frequency_penalty=0.3, seed=2),
    replace(GREEDY, temperature=0.8, top_k=50, min_p=0.01, repetition_penalty=1.2, logit_bias={5: -1.0}, seed=3),
)


# -- kernels and products ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_at_real_shapes(shape: str, window: int | None) -> None:
    """Near that of torch; with the same bits however its work is shared, and whatever else is in the pass."""
    from adaptspec.gpu import kernels

    rows = (Row(1500, 8), Row(1), Row(513, 1), Row(1024, 8), Row(900, 40), Row(600, 1, (-1, 0, 1, -1, 3)))
    heads = SHAPES[shape][0]
    one = made(heads, rows, window=window, context=1536, dtype=DTYPE, device=DEVICE)
    found = kernels.attend(one.queries, one.pool, one.plan)
    torch.testing.assert_close(found, reference.attend(one.queries, one.pool, one.plan), atol=ONCE, rtol=ONCE)
    for programs in (1, 7, 300):
        assert torch.equal(kernels.attend(one.queries, one.pool, one.shared(programs)), found)
    alone = kernels.attend(one.queries[7:8], one.pool, one.only(0, [7]))
    assert torch.equal(alone, found[7:8])


@pytest.mark.parametrize("shape", SHAPES)
def test_other_kernels_at_real_shapes(shape: str) -> None:
    from adaptspec.gpu import kernels

    heads, hidden, mlp = SHAPES[shape]
    close = partial(torch.testing.assert_close, atol=ONCE, rtol=ONCE)
    x, residual, weight = (
        torch.randn(size, dtype=DTYPE, device=DEVICE) for size in ((64, hidden), (64, hidden), hidden)
    )
    sums = [residual.clone(), residual.clone()]
    close(kernels.add_norm(x, sums[0], weight, 1e-5), reference.add_norm(x, sums[1], weight, 1e-5))
    assert torch.equal(*sums)
    gate_up = torch.randn(64, 2 * mlp, dtype=DTYPE, device=DEVICE)
    close(kernels.silu_mul(gate_up), reference.silu_mul(gate_up))
    qkv = torch.randn(64, (heads.query + 2 * heads.kv) * heads.dim, dtype=DTYPE, device=DEVICE)
    angles = torch.rand(2, 2048, heads.dim // 2, device=DEVICE) * 2 - 1
    positions = torch.randint(0, 2048, (64,), dtype=torch.int32, device=DEVICE)
    slots = torch.randperm(128, device=DEVICE)[:64]
    results = []
    for operators in (kernels, reference):
        pool = torch.zeros(128, 2 * heads.kv * heads.dim, dtype=DTYPE, device=DEVICE)
        results.append((operators.rope_store(qkv.clone(), *angles, positions, slots, pool, None).clone(), pool))
    for own, its in zip(*results, strict=True):
        close(own, its)


def test_choices_are_those_of_the_cpu() -> None:
    """Token for token, at the vocabulary of a large model."""
    from adaptspec.gpu import kernels

    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(64, 128_256, generator=generator)
    keys = torch.randint(-(2**62), 2**62, (64,), generator=generator)
    arguments = logits, torch.linspace(0.0, 2.0, 64), keys, reference.token_keys(128_256)
    own, its = kernels.choose(*(part.to(DEVICE) for part in arguments), 4), reference.choose(*arguments, 4)
    assert torch.equal(own.token.cpu(), its.token)
    torch.testing.assert_close(own.confidence.cpu(), its.confidence, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(own.entropy.cpu(), its.entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_a_product_has_the_same_bits_at_any_place(shape: str) -> None:
    """Next to any rows, in products of one size. It is logged which other sizes have the same bits."""
    heads, hidden, mlp = SHAPES[shape]
    width = heads.query * heads.dim
    matrices = {
        "qkv": (hidden, width + 2 * heads.kv * heads.dim),
        "output": (width, hidden),
        "gate_up": (hidden, 2 * mlp),
        "down": (mlp, hidden),
    }
    with products_of_equal_rows(torch.device(DEVICE)):
        for name, (inputs, outputs) in matrices.items():
            weight = torch.randn(inputs, outputs, device=DEVICE).mul_(inputs**-0.5).to(DTYPE)
            row = torch.randn(1, inputs, device=DEVICE).to(DTYPE)

            def bits(tokens: int, at: int, weight: torch.Tensor = weight, row: torch.Tensor = row) -> torch.Tensor:
                x = torch.randn(tokens, len(weight), device=DEVICE).to(DTYPE)
                x[at] = row
                return (x @ weight)[at]

            expected = bits(TILE, 0)
            for at in (0, 1, TILE // 2 - 1, TILE // 2, TILE - 1):
                assert torch.equal(bits(TILE, at), expected), (name, at)
            others = [size for size in (1, 2, 8, 16, 64, 256, 1024, 4096) if not torch.equal(bits(size, 0), expected)]
            _log.info("%s %s: products of %s tokens have other bits", shape, name, others or "no")


# -- texts ------------------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """Models on the device, and how they are asked."""

    built: Built
    limits: EngineLimits

    def core(self, case: Case, *, eager: bool = False, prefixes: str = "off") -> tuple[EngineCore, Notes]:
        notes, limits = Notes(), replace(self.limits, prefix_cache=prefixes)  # type: ignore[arg-type]
        drafters = [one for one in self.built.drafters if one.name in ("draft-model", "ngram")]
        executor = make_executor(self.built.target, drafters, limits, eager=eager)
        world = World(self.built.target, drafters, self.built.tokenizer)
        return world.engine([dictated.policy(case.policy)], limits, [notes], executor), notes

    def requests(self, count: int) -> list[Request]:
        """Prompts of several lengths, some of which begin alike."""
        start = random_tokens(70, seed=99, vocab=self.built.target.info.drawn_tokens)
        asked = []
        for i in range(count):
            text = random_tokens(5 + 11 * (i % 12), seed=i, vocab=self.built.target.info.drawn_tokens)
            params = replace(ASKED[i % len(ASKED)], seed=i)
            asked.append(Request(f"r{i}", tuple(start + text if i % 3 == 2 else text), params))
        return asked


def served(dtype: str, device: str = DEVICE, make: MakeDecoder | None = MAKE, **models: str) -> Served:
    """The bundled models, or others."""
    limits = EngineLimits(max_rows=ROWS, prefill_tokens=128, max_depth=8)
    tokens = 2 * ROWS * CONTEXT
    config = EngineConfig(
        policy=("static-3",),
        device=device,
        dtype=dtype,
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        prefill_tokens=limits.prefill_tokens,
        cache_tokens=tokens,
        enforce_eager=True,
    )
    return Served(build(replace(config, **models), costs=CostModel(COSTS), make=make), limits)


@pytest.fixture(scope="module")
def short() -> Served:
    """The bundled models in bfloat16, whose last bits decide many ties."""
    return served("bfloat16")


@pytest.fixture(scope="module")
def plain(short: Served) -> Mapping[str, Completion]:
    """The texts of requests that are served one by one, without drafts and graphs."""
    core, _ = short.core(Case(depths="0"), eager=True)
    assert isinstance(short.built.target, GpuDecoder)
    _log.info("rows of products are invariant: %s", short.built.target.is_row_invariant)
    done: dict[str, Completion] = {}
    for request in short.requests(3 * ROWS):
        done |= answers(core, [request])
    return done


# The first two run before graphs are captured.
WAYS: Mapping[str, tuple[Case, Mapping[str, object]]] = {
    "call by call, without drafts": (Case(depths="0"), {"eager": True}),
    "call by call, chains of 3": (Case(depths="3"), {"eager": True}),
    "without drafts": (Case(depths="0"), {}),
    "chains of 3": (Case(depths="3"), {}),
    "chains of 7": (Case(depths="7"), {}),
    "chains of any depth": (Case(depths="any"), {}),
    "comb": (Case(shape="comb", depths="any"), {}),
    "beam": (Case(shape="beam", depths="any"), {}),
    "union": (Case(shape="union", depths="any"), {}),
    "with cached prefixes": (Case(depths="any"), {"prefixes": "key"}),
}


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("way", WAYS)
def test_texts_are_those_of_plain_decoding(short: Served, plain: Mapping[str, Completion], way: str, rows: int) -> None:
    """At every depth, alone and in batches, replayed from graphs, with branches, and behind cached prefixes."""
    case, more = WAYS[way]
    core, notes = short.core(case, **more)  # type: ignore[arg-type]
    asked, done = short.requests(3 * ROWS), dict[str, Completion]()
    together = 1 if rows == 1 else len(asked)
    for start in (*range(0, len(asked), together), 0):  # the first ones again, whose prompts may be cached then
        done |= answers(core, asked[start : start + together])
    core.scheduler.prefixes.clear()
    assert [name for name, one in done.items() if one.error or one.text != plain[name].text] == []
    drafted, accepted = (sum(getattr(one.stats, name) for one in done.values()) for name in ("drafted", "accepted"))
    assert case.depths == "0" or 0 < accepted < drafted
    assert way != "with cached prefixes" or any(one.cached_tokens for one in done.values())
    assert short.built.target.free_memory == 1.0
    assert max(len(record.rows) for record in notes.records) == rows


def test_texts_in_float32_are_those_of_a_cpu(make_model: MakeModel) -> None:
    """Of random models, up to rounding of log-probabilities."""
    models = {"model": str(make_model("qwen3")), "draft": str(make_model("llama", seed=1, num_hidden_layers=1))}
    models = {name: str(path) for name, path in models.items()}
    device, cpu = served("float32", **models), served("float32", "cpu", None, **models)
    asked = [replace(one, sampling=replace(one.sampling, logprobs=2)) for one in device.requests(ROWS)]
    expected = answers(cpu.core(Case(depths="0"))[0], asked)
    for case in (Case(depths="0"), Case(depths="3"), Case(shape="comb", depths="3")):
        done = answers(device.core(case)[0], asked)
        for name, one in done.items():
            assert_same(one, expected[name], 10 * ROUNDING)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_logits_do_not_depend_on_how_a_text_is_read(make_model: MakeModel, family: str) -> None:
    """At once, in chunks, token by token, and next to another row: to the last bit, in bfloat16."""
    more = {"sliding_window": 40} if family == "mistral" else {}
    target = served("bfloat16", model=str(make_model(family, **more))).built.target
    text, other = random_tokens(200), random_tokens(100, seed=1)
    whole = feed(target, 0, text)[-20:].clone()
    for sizes in ([180, 20], [64, 64, 64, 8], [180, *[1] * 20], [50, 130, 16, 4]):
        target.free(0)
        feed(target, 1, other)
        ends = list(itertools.accumulate(sizes))
        parts = [feed(target, 0, text[end - size : end]).clone() for size, end in zip(sizes, ends, strict=True)]
        assert torch.equal(torch.cat(parts)[-20:], whole)
        target.free(1)


# -- a minute of requests ---------------------------------------------------------------------------------------------


def test_a_minute_of_random_requests(short: Served) -> None:
    """Some are aborted. None fails, all memory is free afterwards, and the process holds no more than early on."""
    core, _ = short.core(Case(shape="union", depths="any"), prefixes="key")
    numbers, held = np.random.default_rng(0), list[int]()
    done: list[Completion] = []
    vocabulary, until = short.built.target.info.drawn_tokens, time.monotonic() + SECONDS

    def asked(number: int) -> Request:
        length = int(math.exp(numbers.uniform(math.log(8), math.log(CONTEXT - 8))))
        kinds: Sequence[SamplingParams] = (*ASKED, replace(ASKED[1], grammar=LETTERS, ignore_eos=False))
        params = replace(kinds[number % len(kinds)], max_tokens=int(numbers.integers(1, 65)), seed=number)
        return Request(f"s{number}", tuple(random_tokens(length, seed=number % 7, vocab=vocabulary)), params)

    async def client(engine: AsyncEngine, counter: itertools.count[int]) -> None:
        while time.monotonic() < until:
            limit = int(numbers.integers(1, 20)) if numbers.random() < 0.15 else 10**9
            async with aclosing(engine.stream(asked(next(counter)))) as pieces:
                read = 0
                async for delta in pieces:
                    read += len(delta.tokens)
                    if delta.completion is not None:
                        done.append(delta.completion)
                    elif read >= limit:
                        break

    async def watch() -> None:
        while time.monotonic() < until:
            held.append(torch.cuda.memory_reserved())
            await asyncio.sleep(2.0)

    async def main() -> None:
        engine, counter = AsyncEngine(core), itertools.count()
        try:
            await asyncio.gather(watch(), *(client(engine, counter) for _ in range(ROWS + ROWS // 2)))
            await engine.drain(10.0)
        finally:
            engine.close()

    asyncio.run(main())
    core.scheduler.prefixes.clear()
    assert done
    assert [one.error for one in done if one.error] == []
    assert short.built.target.free_memory == 1.0
    assert held[-1] <= 1.02 * max(held[: max(len(held) // 3, 1)])
    _log.info("%d requests, %d bytes held", len(done), held[-1])
