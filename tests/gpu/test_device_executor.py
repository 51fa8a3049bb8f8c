"""The whole engine on pretended CUDA gives the CPU's text, mixes no devices, reads and copies no more than it did."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adaptspec.engine import model_set
from adaptspec.engine.assembly import Built
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.gpu import ops
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan
from adaptspec.request import Grammar, SamplingParams
from adaptspec.types import FinishReason
from adaptspec.verification import METHODS
from tests.engine.padding import padded
from tests.engine.policies import static
from tests.exactness.harness import Case, answers
from tests.gpu.engines import (
    CHAINS,
    COMBS,
    DRAWN,
    GREEDY,
    PLAIN,
    RULED,
    TOP_P,
    core_of,
    on_both,
    requests,
    same,
    served,
)
from tests.gpu.engines import built as built_of
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole

LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


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
    return on_both(EngineConfig(policies=tuple(map(str, paths))))


def test_rounds_have_memory_beside_the_caches(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches take what is left by passes of the widest round and of a prompt, which is read in larger parts."""
    monkeypatch.setattr(model_set, "bytes_for_cache", lambda _: 2**28)
    beside: list[int] = []
    counted = model_set._beside_cache
    monkeypatch.setattr(model_set, "_beside_cache", lambda *given: beside.append(counted(*given)) or beside[-1])
    config = EngineConfig(device="cuda", dtype="float32", eager=True, context=256, limits=EngineLimits(max_rows=64))
    built = built_of(config)
    runners: list[Any] = [built.target, built.loaded.draft]
    pools = sum(pool.nbytes for runner in runners for pool in runner.cache.pool)
    assert min(beside) > 2048 * 4 * 4 * runners[1]._config.hidden
    assert 0.95 < (pools + sum(beside)) / 2**28 < 1.01  # each has a block of nobody's
    assert built.core.limits.prefill_tokens == 2048


def test_padding_of_a_vocabulary_is_never_drawn(cuda: PretendCuda, tmp_path: Path) -> None:
    """Neither from logits of the device nor where rules change them there; texts are the CPU's."""
    folder = padded(Path(model_place("bundled", "target")), tmp_path / "padded")
    config = EngineConfig(str(folder), model_place("bundled", "draft"), counts=None, policies=("static-3",))
    cpu, device = on_both(config)
    warm = replace(DRAWN, temperature=2.0, logprobs=2)
    params = [GREEDY, DRAWN, TOP_P, RULED, warm, replace(warm, seed=7)]
    mine, its = (served(built, ["static-3"], requests(built, *params))[0] for built in (cpu, device))
    same(mine, its)
    assert all(token < 4096 for one in its.values() for token in one.tokens)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(pair: tuple[Built, Built], method: str) -> None:
    for params in ((DRAWN, TOP_P, GREEDY), (DRAWN,)):
        asked = requests(pair[0], *params)
        (plain, _), (done, _) = (served(built, [method], asked) for built in pair)
        same(done, plain)


@pytest.mark.parametrize("eager", [pytest.param(True, marks=pytest.mark.whole), False])
def test_combs(pair: tuple[Built, Built], eager: bool) -> None:
    """Of rounds that the device runs whole, drawn and greedy, of rows that come and go, and of one alone."""
    core, notes = core_of(pair[1], Case(shape="comb", depths="4", nodes=31), eager=eager)
    short, moved = replace(DRAWN, max_tokens=5), 0
    for params in ((GREEDY, DRAWN, short, replace(DRAWN, seed=3), GREEDY), (DRAWN,)):
        asked = requests(pair[0], *params)
        same(answers(core, asked), answers(core_of(pair[0], PLAIN)[0], asked))
        for record in notes.records:
            if record.branches is not None:
                moved += (record.accepted > record.branches.straight).sum()
                assert (record.nodes <= 31).all()
                assert record.branches.tree.ranks.max() < 4
    assert moved > 2


def test_rounds_replayed_from_graphs(pair: tuple[Built, Built], cuda: PretendCuda) -> None:
    """The same texts as call by call, of rows that come and go; and no round runs by calls."""
    core, _ = core_of(pair[1], eager=False)
    written = replace(RULED, ignore_eos=False, grammar=LETTERS)
    for params in ((GREEDY, DRAWN, replace(DRAWN, max_tokens=5), GREEDY), (DRAWN,), (RULED, written, GREEDY)):
        asked = requests(pair[0], *params)
        plain = answers(core_of(pair[0])[0], asked)
        cuda.clear()
        same(answers(core, asked), plain)
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
    core_of(pair[1], eager=False)
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
    core, notes = core_of(pair[1], eager=False)
    assert looked == [0]
    answers(core, requests(pair[1], RULED, GREEDY, DRAWN))
    ruled = np.concatenate([record.drafted[record.rows == 0] for record in notes.records])
    # Each is drafted, and judged; so is the token after each draft, and the first one.
    assert ruled.sum() > 10
    assert sum(looked) == (2 * ruled + 1).sum() + 1


def test_graphs_go_before_the_group_that_ranks_meet_in(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its end waits for them; what is asked for later is computed as it stands."""
    core, _ = core_of(pair[1], eager=False)
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
    same(answers(core, asked), answers(core_of(pair[0])[0], asked))


@pytest.mark.parametrize("breaks", ["scores", "pass"])
def test_a_draft_model_that_fails_rests(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """Scores that are no numbers, or a pass over what it missed: nothing is drafted until it has rested."""
    asked = requests(pair[0], GREEDY, DRAWN, GREEDY)
    plain = answers(core_of(pair[0])[0], asked)
    core, notes = core_of(pair[1])
    executor: Any = core.executor
    drafter, time = executor._drafters[0], [0.0]
    runner = drafter.inner.runner
    logits = runner.logits
    drafter._clock = lambda: time[0]
    with monkeypatch.context() as patch:
        nothing = lambda states: math.nan * logits(states)  # noqa: E731
        name, answer = {"scores": ("logits", nothing), "pass": ("forward", None)}[breaks]
        patch.setattr(runner, name, answer)
        same(answers(core, asked), plain)
    broken = [record for record in notes.records if record.depths.any()]
    assert sum(record.draft_steps > 0 for record in broken) == (breaks == "scores")
    assert not any(record.drafted.any() for record in broken)
    assert len(broken) > 5
    time[0] = 1.0
    same(answers(core, asked), plain)
    assert sum(record.accepted.sum() for record in notes.records) > 5


# What a round costs now, at most: times that the host waits, copies to the device, and back; one row, and three.
# Whoever lowers them writes it down here. (A copy that blocks makes the host wait, too, and is not counted twice.)
Cost = tuple[float, float, float]
PER_ROUND: dict[str, tuple[Case, SamplingParams, Cost, Cost]] = {
    "plain": (PLAIN, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3": (CHAINS, GREEDY, (1, 1, 1), (1, 1, 1)),
    "depth 3, drawn": (CHAINS, DRAWN, (1, 1, 1), (1, 1, 1)),
    "depth 3, with rules": (CHAINS, RULED, (1, 1, 1), (1, 1, 1)),
    "logprobs": (CHAINS, replace(RULED, logprobs=2), (1, 1, 2), (1, 1, 2)),
    # Masks of the next tokens go with the plan, those behind drafted ones when these are known.
    "grammar": (CHAINS, replace(DRAWN, ignore_eos=False, grammar=LETTERS), (2, 3, 2), (2, 3, 2)),
    "comb": (COMBS, GREEDY, (1, 1, 1), (1, 1, 1)),
    "comb with rules": (COMBS, RULED, (1, 1, 1), (1, 1, 1)),
}
ROUNDS = 4


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", PER_ROUND)
def test_reads_and_copies_per_round(pair: tuple[Built, Built], cuda: PretendCuda, name: str, rows: int) -> None:
    case, params, alone, together = PER_ROUND[name]
    core, _ = core_of(pair[1], case)
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
