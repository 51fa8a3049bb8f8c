"""The whole engine on pretended CUDA gives the CPU's text, mixes no devices, reads and copies no more than it did."""

from __future__ import annotations

import itertools
import json
import math
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adaptspec.control.cost import CostTable
from adaptspec.control.language.library import shipped_policies
from adaptspec.drafting import other_tokenizer
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import Built, assemble, build, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.device_executor import DeviceExecutor
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.gpu import ops
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan
from adaptspec.request import Grammar, Request, SamplingParams, SpeculationParams
from adaptspec.types import Completion, FinishReason, TokenLogprob
from adaptspec.verification import METHODS
from tests.drafting.spellings import ALL, respelled_draft
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.engine.padding import padded
from tests.engine.policies import COSTS, static
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole

PROMPTS = (
    "Once upon a time, in a village by the sea,",
    "Lily went to the park. Lily went to the park. Lily went to",
    "The dog and the cat",
)
LIMITS = EngineLimits(max_rows=4, prefill_tokens=16)
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.8, seed=1)
TOP_P = replace(DRAWN, top_p=0.9, frequency_penalty=0.3, seed=2)
RULED = replace(DRAWN, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.2, logit_bias={5: -1.0})
LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.fixture(scope="module")
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.fixture(scope="module")
def pair(cuda: PretendCuda, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The bundled models on the CPU and on the device, with a policy for each method beside those that ship."""
    folder, paths = tmp_path_factory.mktemp("policies"), []
    for name, method in METHODS.items():
        lossy = ", lossy: true" if getattr(method, "lossy", False) else ""
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(static(name, 3, f"  verification: {{method: {name}{lossy}}}\n"))
    return on_both(cuda, EngineConfig(policies=tuple(map(str, paths))))


def on_both(cuda: PretendCuda, config: EngineConfig) -> tuple[Built, Built]:
    """The models of a configuration on the CPU and on the device."""
    config = replace(config, dtype="float32", context=256, limits=LIMITS, eager=True)
    loading = partial(ThreadPoolExecutor, initializer=cuda.enter_thread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "ThreadPoolExecutor", loading)
        cpu, device = (build(replace(config, device=one), costs=lambda *_: CostTable(COSTS)) for one in ("cpu", "cuda"))
    assert str(device.target.device) == "cuda:0"
    return cpu, device


def test_rounds_have_memory_beside_the_caches(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches take what is left by passes of the widest round and of a prompt, which is read in larger parts."""
    monkeypatch.setattr(assembly, "ThreadPoolExecutor", partial(ThreadPoolExecutor, initializer=cuda.enter_thread))
    monkeypatch.setattr(model_set, "bytes_for_cache", lambda _: 2**28)
    beside: list[int] = []
    counted = model_set._beside_cache
    monkeypatch.setattr(model_set, "_beside_cache", lambda *given: beside.append(counted(*given)) or beside[-1])
    config = EngineConfig(device="cuda", dtype="float32", eager=True, context=256, limits=EngineLimits(max_rows=64))
    built = build(config, costs=lambda *_: CostTable(COSTS))
    runners: list[Any] = [built.target, built.loaded.draft]
    pools = sum(pool.nbytes for runner in runners for pool in runner.cache.pool)
    assert min(beside) > 2048 * 4 * 4 * runners[1]._config.hidden
    assert 0.95 < (pools + sum(beside)) / 2**28 < 1.01  # each has a block of nobody's
    assert built.core.limits.prefill_tokens == 2048


def test_padding_of_a_vocabulary_is_never_drawn(cuda: PretendCuda, tmp_path: Path) -> None:
    """Neither from logits of the device nor where rules change them there; texts are the CPU's."""
    folder = padded(Path(model_place("bundled", "target")), tmp_path / "padded")
    config = EngineConfig(str(folder), model_place("bundled", "draft"), counts=None, policies=("static-3",))
    cpu, device = on_both(cuda, config)
    warm = replace(DRAWN, temperature=2.0, logprobs=2)
    params = [GREEDY, DRAWN, TOP_P, RULED, warm, replace(warm, seed=7)]
    mine, its = (served(built, ["static-3"], requests(built, *params))[0] for built in (cpu, device))
    same(mine, its)
    assert all(token < 4096 for one in its.values() for token in one.tokens)


def requests(built: Built, *params: SamplingParams, policies: Sequence[str | None] = (None,)) -> list[Request]:
    texts = [tuple(built.tokenizer.encode(prompt)) for prompt in PROMPTS]
    return [
        Request(f"r{i}", texts[i % len(texts)], one, SpeculationParams(policies[i % len(policies)]))
        for i, one in enumerate(params)
    ]


def served(built: Built, policies: Sequence[str], asked: Sequence[Request]) -> tuple[dict[str, Completion], Notes]:
    """By policies of the engine, whose clock ticks evenly: they decide the same on both devices."""
    notes, ticks = Notes(), itertools.count()
    core = assemble(
        built.target,
        built.drafters,
        built.tokenizer,
        specs=[spec for spec in built.specs if spec.name in policies],
        costs=CostTable(COSTS),
        sinks=[notes],
        limits=LIMITS,
        timer=lambda: 1e-3 * next(ticks),
    )
    return run(core, asked), notes


def dictated(
    built: Built, shape: Shape | None = None, depth: int = 3, *, eager: bool = True, beside: bool = True
) -> tuple[EngineCore, Notes]:
    """Of one depth, by the draft model; with a shape, n-grams draft as well unless nothing is `beside` it."""
    notes, drafters = Notes(), [one for one in built.drafters if one.name in ("draft-model", "ngram")]
    names = tuple(one.name for one in drafters)
    choose = lambda _, size: [depth] * size  # noqa: E731
    policy = Dictated(names[:1], choose) if shape is None else Branched(names[: 1 + beside], choose, shape)
    target: Any = built.target
    executor: Any = partial(make_executor, limits=replace(LIMITS, max_depth=8), eager=eager)
    policies = {"p": (policy, "coupled")}
    core = make_core(built.tokenizer, target, drafters, policies, sinks=[notes], limits=LIMITS, executor=executor)
    return core, notes


def same(mine: dict[str, Completion], its: dict[str, Completion]) -> None:
    """Texts, ends, and logarithms of probabilities but for rounding."""
    for name, one in mine.items():
        other = its[name]
        assert (one.error, one.tokens, one.text, one.finish) == (None, other.tokens, other.text, other.finish)
        told: list[tuple[TokenLogprob, TokenLogprob]] = [*zip(one.logprobs, other.logprobs, strict=True)]
        told += zip(one.prompt_logprobs, other.prompt_logprobs, strict=True)
        for here, there in told:
            assert here.token == there.token
            assert here.logprob == pytest.approx(there.logprob, abs=1e-4)


# Of the shipped policies those that ask for what others do not: the rest take longer than they tell.
FEW = ("off", "goodput", "goodput-trees", "draft-temperature")


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(path.stem, marks=() if path.stem in FEW else pytest.mark.whole, id=path.stem)
        for path in shipped_policies()
    ],
)
def test_every_shipped_policy(pair: tuple[Built, Built], policy: str) -> None:
    """Three rows of their own ways to draw, then one alone."""
    records = []
    for params in ((DRAWN, GREEDY, TOP_P), (DRAWN,)):
        asked = requests(pair[0], *params)
        (plain, _), (done, notes) = (served(built, [policy], asked) for built in pair)
        same(done, plain)
        records += notes.records
    assert any(record.drafted.any() for record in records) == (policy != "off")


@pytest.mark.parametrize("method", METHODS)
def test_every_method(pair: tuple[Built, Built], method: str) -> None:
    for params in ((DRAWN, TOP_P, GREEDY), (DRAWN,)):
        asked = requests(pair[0], *params)
        (plain, _), (done, _) = (served(built, [method], asked) for built in pair)
        same(done, plain)


def test_methods_and_drafters_side_by_side(pair: tuple[Built, Built]) -> None:
    policies = ("rejection", "coupled", "lookahead", "goodput-counts", "block")
    asked = requests(pair[0], DRAWN, TOP_P, DRAWN, GREEDY, DRAWN, policies=policies)
    (plain, _), (done, _) = (served(built, policies, asked) for built in pair)
    same(done, plain)


@pytest.mark.parametrize(
    "shape", [Shape(8, 32), Shape(8, 32, beam=True), Shape(8, 32, beam=True, union=True)], ids=["comb", "beam", "union"]
)
def test_trees(pair: tuple[Built, Built], shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rounds that run part by part."""
    monkeypatch.setattr(DeviceExecutor, "_fits", lambda *_: False)
    for params in ((GREEDY, DRAWN, TOP_P), (DRAWN,)):
        asked, records = requests(pair[0], *params), []
        texts = []
        for built in pair:
            core, notes = dictated(built, shape, 4)
            texts.append(run(core, asked))
            records = notes.records
        same(*texts)
        assert any(r.branches is not None and r.branches.nodes.max(initial=0) > 8 for r in records)


@pytest.mark.parametrize("eager", [pytest.param(True, marks=pytest.mark.whole), False])
def test_combs(pair: tuple[Built, Built], eager: bool) -> None:
    """Of rounds that the device runs whole, drawn and greedy, of rows that come and go, and of one alone."""
    core, notes = dictated(pair[1], Shape(4, 31, 0.001), 4, eager=eager)
    short, moved = replace(DRAWN, max_tokens=5), 0
    for params in ((GREEDY, DRAWN, short, replace(DRAWN, seed=3), GREEDY), (DRAWN,)):
        asked = requests(pair[0], *params)
        same(run(core, asked), run(dictated(pair[0], depth=0)[0], asked))
        for record in notes.records:
            if record.branches is not None:
                moved += (record.accepted > record.branches.straight).sum()
                assert (record.nodes <= 31).all()
                assert record.branches.tree.ranks.max() < 4
    assert moved > 2


ASKED: dict[str, dict[str, Any]] = {
    "schema": {"grammar": Grammar(SCHEMA), "ignore_eos": False},
    "lark": {"grammar": Grammar('start: /(ab|ba){2,12}/ ("!" | "?")', "lark"), "ignore_eos": False},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {300: 4.0, 17: -100.0}, "min_tokens": 8, "ignore_eos": False},
    "top-k": {"top_k": 5, "min_p": 0.05},
    "top-p of all": {"top_p": 0.999, "temperature": 1.5},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
    "stop": {"stop": (" the", "."), "stop_token_ids": (40,)},
}


@pytest.mark.parametrize("rows", [tuple(ASKED)[:4], tuple(ASKED)[4:]])
@pytest.mark.parametrize("base", [pytest.param(GREEDY, marks=pytest.mark.whole), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("shape", [None, pytest.param(Shape(4, 16), marks=pytest.mark.whole)], ids=["chains", "trees"])
def test_all_that_requests_ask_for(
    pair: tuple[Built, Built], rows: Sequence[str], base: SamplingParams, shape: Shape | None
) -> None:
    """Four rows at once and the first alone."""
    params = [replace(base, **ASKED[name]) for name in rows]
    if base is GREEDY:
        params = [replace(one, temperature=0.0) for one in params]
    for some in (params, params[:1]):
        asked = requests(pair[0], *some)
        plain, done = (run(dictated(built, shape)[0], asked) for built in pair)
        same(done, plain)


@pytest.mark.whole
@pytest.mark.parametrize("alike", [0.0, ALL], ids=["shared", "text"])
def test_a_draft_model_of_another_tokenizer(
    cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alike: float
) -> None:
    """Its drafts are made part by part, chains and trees; texts are those of the CPU, and so is what was accepted."""
    monkeypatch.setattr(other_tokenizer, "_ALIKE", alike)
    pair = on_both(cuda, EngineConfig(draft=str(respelled_draft(tmp_path / "draft", lost=0.1))))
    assert str(pair[1].drafters[0].runner.device) == "cuda:0"  # type: ignore[attr-defined]
    for params, shape in itertools.product(((GREEDY, DRAWN, TOP_P), (DRAWN,)), (None, Shape(4, 16))):
        asked = requests(pair[0], *params)
        plain = run(dictated(pair[0], depth=0)[0], asked)
        accepted = []
        for built in pair:
            core, notes = dictated(built, shape)
            same(run(core, asked), plain)
            accepted.append(sum(int(record.accepted.sum()) for record in notes.records))
        assert accepted[0] == accepted[1] > 2


def test_predicted_texts(pair: tuple[Built, Built]) -> None:
    """What is predicted is drafted, right and wrong."""
    asked = requests(pair[0], GREEDY, DRAWN, DRAWN, policies=("goodput-ngram", "goodput-counts"))
    plain, _ = served(pair[0], ["goodput-ngram", "goodput-counts"], asked)
    foretold = [replace(one, prediction=(*plain[one.id].tokens[:7], 5, *plain[one.id].tokens[7:])) for one in asked]
    done, notes = served(pair[1], ["goodput-ngram", "goodput-counts"], foretold)
    same(done, {name: replace(one, logprobs=()) for name, one in plain.items()})
    assert sum(record.accepted.sum() for record in notes.records) > 10


def test_rounds_replayed_from_graphs(pair: tuple[Built, Built], cuda: PretendCuda) -> None:
    """The same texts as call by call, of rows that come and go; and no round runs by calls."""
    core, _ = dictated(pair[1], eager=False)
    written = replace(RULED, ignore_eos=False, grammar=LETTERS)
    for params in ((GREEDY, DRAWN, replace(DRAWN, max_tokens=5), GREEDY), (DRAWN,), (RULED, written, GREEDY)):
        asked = requests(pair[0], *params)
        plain = run(dictated(pair[0])[0], asked)
        cuda.clear()
        same(run(core, asked), plain)
        assert cuda.replays.total() > 20


def test_rounds_report_the_work_that_ran(pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and tokens that were planned ran, also where a stop rule ended drafts before: costs are learned by them."""
    planned: list[tuple[int, int]] = []
    launch = DeviceRounds.launch

    def launched(self: DeviceRounds, plan: RoundPlan, **how: bool) -> None:
        drafts = np.maximum(plan.nodes, plan.counts)
        planned.append((int(plan.depths.max(initial=0)), int(drafts.sum()) + plan.decoding))
        launch(self, plan, **how)

    monkeypatch.setattr(DeviceRounds, "launch", launched)
    asked = requests(pair[1], GREEDY, DRAWN, GREEDY, policies=("entropy-gate", "static-3"))
    _, notes = served(pair[1], ["entropy-gate", "static-3"], asked)
    ran = [(one.draft_steps, one.verify_tokens - one.prefill_tokens) for one in notes.records]
    assert ran == planned
    stopped = [one for one in notes.records if one.drafted.max(initial=0) < one.draft_steps]
    assert stopped


def test_graphs_are_captured_on_a_stream_of_their_device(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, torch takes a stream of whichever device captured first: another's draft is not captured."""
    streams: list[Any] = []
    graph = torch.cuda.graph

    def captured(*given: Any, **more: Any) -> Any:
        streams.append(more.get("stream"))
        return graph(*given, **more)

    monkeypatch.setattr(torch.cuda, "graph", captured)
    dictated(pair[1], eager=False)
    assert streams
    assert all(stream is not None for stream in streams)


def test_rules_are_for_tokens_that_are_there(pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for padding, nor for rows without rules; what they take has run before the first request comes."""
    looked: list[int] = []
    apply = ops.apply_rules

    def count(logits: torch.Tensor, at: ops.RuledPositions, rows: ops.RuledRows, tables: ops.RuleTables) -> None:
        looked.append(int(((at.rows >= 0) & (rows.lines[at.rows] >= 0)).sum()))
        apply(logits, at, rows, tables)

    monkeypatch.setattr(ops, "apply_rules", count)
    core, notes = dictated(pair[1], eager=False)
    assert looked == [0]
    run(core, requests(pair[1], RULED, GREEDY, DRAWN))
    ruled = np.concatenate([record.drafted[record.rows == 0] for record in notes.records])
    # Each is drafted, and judged; so is the token after each draft, and the first one.
    assert ruled.sum() > 10
    assert sum(looked) == (2 * ruled + 1).sum() + 1


def test_graphs_go_before_the_group_that_ranks_meet_in(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its end waits for them; what is asked for later is computed as it stands."""
    core, _ = dictated(pair[1], eager=False)
    target: Any = pair[1].target
    graphs = [weakref.ref(graph) for parts in target.group.graphs for graph in parts._graphs.values()]
    assert len(graphs) > 20
    left: list[int] = []
    monkeypatch.setattr(
        dist, "destroy_process_group", lambda: left.append(sum(graph() is not None for graph in graphs))
    )
    target.group.leave()
    assert left == [0]
    asked = requests(pair[0], GREEDY, DRAWN)
    same(run(core, asked), run(dictated(pair[0])[0], asked))


@pytest.mark.parametrize("breaks", ["scores", "pass"])
def test_a_draft_model_that_fails_rests(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """Scores that are no numbers, or a pass over what it missed: nothing is drafted until it has rested."""
    asked = requests(pair[0], GREEDY, DRAWN, GREEDY)
    plain = run(dictated(pair[0])[0], asked)
    core, notes = dictated(pair[1])
    executor: Any = core.executor
    drafter, time = executor._drafters[0], [0.0]
    runner = drafter.inner.runner
    logits = runner.logits
    drafter._clock = lambda: time[0]
    with monkeypatch.context() as patch:
        nothing = lambda states: math.nan * logits(states)  # noqa: E731
        name, answer = {"scores": ("logits", nothing), "pass": ("forward", None)}[breaks]
        patch.setattr(runner, name, answer)
        same(run(core, asked), plain)
    broken = [record for record in notes.records if record.depths.any()]
    assert sum(record.draft_steps > 0 for record in broken) == (breaks == "scores")
    assert not any(record.drafted.any() for record in broken)
    assert len(broken) > 5
    time[0] = 1.0
    same(run(core, asked), plain)
    assert sum(record.accepted.sum() for record in notes.records) > 5


# What a round costs now, at most: times that the host waits, copies to the device, and back; one row, and three.
# Whoever lowers them writes it down here. (A copy that blocks makes the host wait, too, and is not counted twice.)
Cost = tuple[float, float, float]
PER_ROUND: dict[str, tuple[int, Shape | None, SamplingParams, Cost, Cost]] = {
    "plain": (0, None, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3": (3, None, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3, drawn": (3, None, DRAWN, (1, 1, 1), (1, 1, 1)),
    "depth 3, with rules": (3, None, RULED, (1, 1, 1), (1, 1, 1)),
    "logprobs": (3, None, replace(RULED, logprobs=2), (1, 1, 2), (1, 1, 2)),
    # Masks of the next tokens go with the plan, those behind drafted ones when these are known.
    "grammar": (3, None, replace(DRAWN, ignore_eos=False, grammar=LETTERS), (2, 3, 2), (2, 3, 2)),
    "comb": (3, Shape(4, 16, 0.001), GREEDY, (1, 1, 1), (1, 1, 1)),
    "comb with rules": (3, Shape(4, 16, 0.001), RULED, (1, 1, 1), (1, 1, 1)),
}
ROUNDS = 4


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", PER_ROUND)
def test_reads_and_copies_per_round(pair: tuple[Built, Built], cuda: PretendCuda, name: str, rows: int) -> None:
    depth, shape, params, alone, together = PER_ROUND[name]
    core, _ = dictated(pair[1], shape, depth, beside=not name.startswith("comb"))
    for request in requests(pair[1], *[replace(params, max_tokens=64)] * rows):
        core.add(request)
    for _ in range(5):  # prompts are read
        core.step()
    cuda.clear()
    for _ in range(ROUNDS):
        core.step()
    found = tuple(count.total() / ROUNDS for count in (cuda.syncs, cuda.uploads, cuda.downloads))
    core.abort_all(FinishReason.ABORT, "counted")
    most = alone if rows == 1 else together
    assert all(now <= then for now, then in zip(found, most, strict=True)), (found, cuda.syncs, cuda.uploads)
