"""Heads behind a target on a device, which tells them its states, of graphs too: drafts and texts are a CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptspec.drafting.drafter import DraftJob
from adaptspec.engine import model_set
from adaptspec.engine.assembly import Built, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.models.draft import Draft
from adaptspec.models.heads.hearing import MOST_UNREAD, SHARED, HeadRunner
from adaptspec.types import FinishReason
from tests.conftest import MakeModel
from tests.exactness.harness import answers
from tests.gpu.engines import (
    CHAINS,
    COMBS,
    DRAWN,
    GREEDY,
    LIMITS,
    PLAIN,
    TOP_P,
    core_of,
    on_both,
    requests,
    same,
)
from tests.gpu.engines import built as built_of
from tests.gpu.pretend import PretendCuda
from tests.models.heads.golden import HEADS, medusa

SOME = ("eagle3.1", "eagle3-window", "dspark-rnn")
KINDS = [
    ("eagle3", False),
    ("dflash", True),
    *(pytest.param(kind, False, marks=pytest.mark.whole) for kind in (*SOME, "mtp", "peagle", "dflash", "medusa")),
]
SHORT = replace(GREEDY, max_tokens=10)
Pair = tuple[Built, Built]


@pytest.fixture(scope="module")
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.fixture(scope="module")
def pair_of(
    cuda: PretendCuda, make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    """A tiny target of four layers with a golden head, on the CPU and on the device."""
    target = str(make_model("llama", hidden_size=16, num_hidden_layers=4))
    made: dict[str, Pair] = {}

    def pair(kind: str) -> Pair:
        if kind not in made:
            folder: Path = HEADS / kind
            if kind == "medusa":
                folder = tmp_path_factory.mktemp(kind) / kind
                medusa(folder, own=True)
            made[kind] = on_both(EngineConfig(target, str(folder), ("static-3",)))
        return made[kind]

    return pair


Drafts = dict[tuple[tuple[int, ...], float], list[int]]


def drafted(patch: pytest.MonkeyPatch, built: Built) -> Drafts:
    """What its head drafts from now on, by the text that it drafts behind and the temperature."""
    found: Drafts = {}
    drafter: Any = built.drafters[0]
    propose = drafter.propose

    def noted(job: DraftJob) -> Draft:
        draft: Draft = propose(job)
        for i in np.flatnonzero(draft.counts):
            of = tuple(job.tokens[i]), float(job.sampling.temperatures[i])
            found[of] = draft.tokens[i, : draft.counts[i]].tolist()
        return draft

    patch.setattr(drafter, "propose", noted)
    return found


def head(built: Built) -> HeadRunner:
    assert isinstance(built.loaded.draft, HeadRunner)
    return built.loaded.draft


@pytest.mark.parametrize(("kind", "eager"), KINDS)
def test_drafts_and_texts_are_those_of_a_cpu(
    pair_of: Callable[[str], Pair], cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch, kind: str, eager: bool
) -> None:
    """Of rounds that the device runs whole, of rows that come and go, with prompts in chunks; then of one alone."""
    pair = pair_of(kind)
    assert str(head(pair[1]).device) == "cuda:0"
    told = [drafted(monkeypatch, built) for built in pair]
    drawn = replace(DRAWN, max_tokens=10)
    for params in ((SHORT, drawn, replace(DRAWN, max_tokens=4), replace(TOP_P, max_tokens=10), SHORT), (drawn,)):
        asked = requests(pair[0], *params)
        plain = answers(core_of(pair[0], PLAIN)[0], asked)
        for one in (*told, cuda.replays):
            one.clear()
        texts = [answers(core_of(built, eager=eager)[0], asked) for built in pair]
        same(texts[0], plain)
        same(texts[1], plain)
        assert bool(cuda.replays) != eager
        # A round that overlaps the next one drafts once more for a row that has ended.
        assert told[0].items() <= told[1].items()
        assert len(told[0]) > 4
    assert head(pair[1]).unread == 0
    assert head(pair[1]).free_memory == 1.0


def test_rows_that_do_not_draft_keep_few_states(
    pair_of: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be read is bounded on the device, too."""
    pair = pair_of("eagle3")
    monkeypatch.setattr("adaptspec.models.heads.hearing.MOST_UNREAD", 4)
    core, _ = core_of(pair[1], PLAIN)
    (asked,) = requests(pair[1], replace(GREEDY, max_tokens=40))
    core.add(asked)
    while not core.idle:
        core.step()
        assert head(pair[1]).unread <= 16 + 4 + 2
    assert head(pair[1]).unread == 0


def test_a_head_adds_nothing_to_rounds_without_drafts(pair_of: Callable[[str], Pair], cuda: PretendCuda) -> None:
    """One wait, one copy each way."""
    core, _ = core_of(pair_of("eagle3")[1], PLAIN, eager=False)
    for request in requests(pair_of("eagle3")[1], *[replace(GREEDY, max_tokens=64)] * 3):
        core.add(request)
    for _ in range(8):  # prompts are read
        core.step()
    cuda.clear()
    for _ in range(4):
        core.step()
    found = cuda.syncs.total() / 4, cuda.uploads.total() / 4, cuda.downloads.total() / 4
    core.abort_all(FinishReason.ABORT, "counted")
    assert found == (1, 1, 1), (cuda.syncs, cuda.uploads)


def test_what_a_head_takes_is_drafting(pair_of: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device's clock, which is started before; n-grams take nothing there."""
    built, seen = pair_of("eagle3")[1], list[str]()
    for what, of, name in (
        ("begin", DeviceRounds, "begin"),
        ("head", built.drafters[0], "propose"),
        ("n-grams", next(one for one in built.drafters if one.name == "ngram"), "propose"),
    ):
        works = getattr(of, name)
        noted = lambda *given, what=what, works=works: (seen.append(what), works(*given))[1]  # noqa: E731
        monkeypatch.setattr(of, name, noted)
    launch = DeviceRounds.launch
    monkeypatch.setattr(
        DeviceRounds,
        "launch",
        lambda rounds, plan, begun: (seen.append(f"launch {begun}"), launch(rounds, plan, begun=begun)),
    )
    repeated = replace(requests(built, SHORT)[0], prompt=(5, 6, 7, 8) * 6)
    both = "{choose: {algorithm: dictated, depths: [3]}, drafters: [draft-model, ngram]}"
    core, notes = core_of(built, policy=both)
    answers(core, [repeated])
    told = " ".join(seen)
    records = [one for one in notes.records if one.drafted.any() and not one.drafter.any()]
    assert records
    assert all(np.isfinite(one.entropy[one.drafted > 0, 0]).all() for one in records)
    assert "begin head launch True" in told
    assert "n-grams launch False" in told
    assert "begin n-grams" not in told


@pytest.mark.whole
def test_a_head_hears_whole_states_where_ranks_share_the_target(make_model: MakeModel) -> None:
    """Two processes, each with half of the target; rank 0 has the head."""
    target, threads = str(make_model("llama", hidden_size=16, num_hidden_layers=4)), torch.get_num_threads()
    torch.set_num_threads(1)  # both processes of this test run here
    config = EngineConfig(
        target, str(HEADS / "eagle3"), ("static-3",), device="cpu", dtype="float32", context=256, limits=LIMITS
    )
    alone, shared = (built_of(replace(config, tensor_parallel_size=size)) for size in (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        told = [drafted(patch, one) for one in (alone, shared)]
        for case in (CHAINS, COMBS):
            asked = requests(alone, SHORT, DRAWN, TOP_P, SHORT)
            texts = [answers(core_of(one, case)[0], asked) for one in (alone, shared)]
            same(*texts)
    assert told[0].items() <= told[1].items()
    assert len(told[0]) > 10
    assert isinstance(shared.target, DeviceDecoder)
    shared.target.group.close()
    torch.set_num_threads(threads)


def test_what_a_head_keeps_has_memory_beside_the_caches(
    cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch, make_model: MakeModel
) -> None:
    """States that wait of all rows, and those of the widest round and of a prompt on their way."""
    monkeypatch.setattr(model_set, "bytes_for_cache", lambda _: 11_000_000)
    beside: list[int] = []
    counted = model_set._beside_cache
    monkeypatch.setattr(model_set, "_beside_cache", lambda *given: beside.append(counted(*given)) or beside[-1])
    target = str(make_model("llama", hidden_size=16, num_hidden_layers=4))
    config = EngineConfig(target, str(HEADS / "eagle3"), ("static-3",), eager=True, context=64)
    built = built_of(replace(config, device="cuda", limits=EngineLimits(max_rows=32)))
    mine: Any = built.target
    pools = sum(pool.nbytes for pool in (*mine.cache.pool, *head(built)._cache.pool))
    states = 4 * 16 * len(head(built).layers)
    assert beside[1] > states * (SHARED * 32 * MOST_UNREAD + 4 * (32 * 4 + 2048))
    assert 0.9 < (pools + sum(beside)) / 11_000_000 < 1.05  # each has a block of nobody's


def test_a_head_is_where_its_target_is() -> None:
    with pytest.raises(ConfigError, match="leave --draft-device out"):
        build(EngineConfig("bundled", str(HEADS / "eagle3"), device="cpu", draft_device="cpu"))
