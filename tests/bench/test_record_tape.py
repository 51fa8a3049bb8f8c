"""Recording: a tape replayed at any depth gives what the real engine does, round by round, from the same seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.bench.record_tape import RecordSettings, record
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.cli import main
from adaptspec.config import EngineConfig
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision, StopTable, TreeTable
from adaptspec.engine.build import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import load_machine
from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.simulation.simulator import SimulatorSettings, replay, static_spec
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_file import load_tape
from adaptspec.training.corpus import Prompt
from tests.conftest import MakeModel
from tests.engine.conftest import Notes

pytestmark = pytest.mark.whole

SETTINGS = RecordSettings(tokens=32, temperatures=(0.0, 0.9), seed=5)
TEXTS = ("one two one two one", "a b c d a b c", "the river, the river", "0 1 0 1 1 0")


@pytest.fixture(scope="module")
def folders(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A tiny target; as its draft a copy with disturbed weights, which agrees about every other time; and a cache."""
    target = make_model("llama", seed=0)
    draft = make_model("llama", seed=0, rope_theta=10000.5)
    weights = load_file(draft / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    noisy = {name: w + 0.03 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    save_file(noisy, draft / "model.safetensors", metadata={"format": "pt"})
    return target, draft, tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(folders: tuple[Path, Path, Path]) -> Built:
    target, draft, cache = folders
    config = EngineConfig(model=str(target), draft=str(draft), device="cpu", max_num_seqs=4, detect_tasks=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return build(config)


@pytest.fixture
def line(folders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that records drafts of these models."""
    target, draft, cache = folders
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    models = f"--model {target} --draft {draft} --device cpu --max-num-seqs 4 --no-detect-tasks"
    return ["bench", "record", *models.split()]


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return {"chat": [Prompt("chat", "tested", text) for text in TEXTS]}


@pytest.fixture(scope="module")
def tape(built: Built, workloads: Workloads) -> Tape:
    return record(built, workloads, SETTINGS, lambda: None)


Branch = Callable[[Decision], Decision]


def engine_records(
    built: Built, tape: Tape, prompts: list[Prompt], depth: int, drafter: str, *, branch: Branch | None = None
) -> list[RoundRecord]:
    """What the real engine does at a fixed depth with the requests of the tape."""
    notes = Notes()
    core = assemble(
        built.target,
        built.drafters,
        built.tokenizer,
        specs=[static_spec(depth, drafter)],
        costs=CostModel(built.costs.profile),
        sinks=[notes],
        limits=EngineLimits(max_rows=4, prefix_cache="off"),
    )
    for i, name in enumerate(tape.ids):
        ids = encode(built.template, prompts[i % len(prompts)], built.target.info.context - SETTINGS.tokens)
        sampling = SamplingParams(SETTINGS.tokens, float(tape.temperatures[i]), seed=int(tape.seeds[i]))
        core.add(Request(name, ids, sampling, SpeculationParams(task="chat")))
    if branch is not None:
        decide = core.controller.decide
        core.controller.decide = lambda signals: branch(decide(signals))
    while not core.idle:
        core.step()
    return notes.records


@pytest.mark.parametrize(
    ("depth", "drafter"), [(1, "draft-model"), (3, "draft-model"), (7, "draft-model"), (5, "ngram")]
)
def test_a_replayed_depth_does_what_the_engine_did(
    built: Built, workloads: Workloads, tape: Tape, depth: int, drafter: str
) -> None:
    """Greedy and sampled requests, four at a time, prompts read in between: every count of every round is the same."""
    real = engine_records(built, tape, workloads["chat"], depth, drafter)
    stream = Stream(tape, tuple(range(len(tape))), Schedule((4,)))
    settings = SimulatorSettings(prefill_tokens=512)
    spec = static_spec(depth, drafter)
    replayed = replay(spec, stream, load_machine("cpu-2-cores"), settings, keep=True).records
    # A simulated stream ends when there is no longer a full batch.
    assert len(replayed) > 0.5 * len(real)
    assert sum(int(r.accepted.sum()) for r in replayed) > 10, "a draft that is never right proves nothing"
    for ours, theirs in zip(replayed, real, strict=False):
        assert [name.partition("#")[0] for name in ours.request_ids] == list(theirs.request_ids)
        for count in ("rows", "depths", "drafted", "accepted", "emitted", "context"):
            assert getattr(ours, count).tolist() == getattr(theirs, count).tolist(), count
        for count in ("number", "prefill_tokens", "draft_steps", "caught_up", "target_tokens"):
            assert getattr(ours, count) == getattr(theirs, count), count


def branching(width: int, nodes: int, *, beam: bool) -> Branch:
    """Adds to a decision trees of fixed ranks: 0.6 that a first candidate is right, half as much for each next one."""

    def branch(decision: Decision) -> Decision:
        rows = len(decision.depths)
        if not rows or not decision.depths.any():
            return decision
        chances = np.broadcast_to(0.6 * 0.5 ** np.arange(4.0)[:, None], (rows, 4, 1))
        tree = TreeTable(np.full(rows, width), np.full(rows, nodes), np.full(rows, 0.05), chances)
        if not beam:
            return replace(decision, tree=tree)
        one = np.ones((rows, 1))
        stop = StopTable(survival=0.08 * one, calibration=0.6 * one, unstated=0.6 * one, worth=one, step=0.01 * one)
        return replace(decision, tree=tree, stop=stop)

    return branch


@pytest.mark.parametrize("size", [(1, 4, 8), (4, 2, 6), (5, 3, 64), (3, 8, 5)])
def test_a_replayed_comb_does_what_the_engine_did(
    built: Built, workloads: Workloads, tape: Tape, size: tuple[int, int, int]
) -> None:
    """At a depth, width and ceiling of nodes: nodes, paths, steps and what the draft model has read are the same."""
    depth, width, nodes = size
    real, replayed = both(built, workloads, tape, depth, branching(width, nodes, beam=False))
    branched = beside = 0
    for ours, theirs in zip(replayed, real, strict=False):
        for count in ("depths", "drafted", "accepted", "emitted", "context", "chain", "kept_on_chain"):
            assert getattr(ours, count).tolist() == getattr(theirs, count).tolist(), count
        for count in ("draft_steps", "caught_up", "target_tokens"):
            assert getattr(ours, count) == getattr(theirs, count), count
        assert (ours.branches is None) == (theirs.branches is None)
        if ours.branches is not None and theirs.branches is not None:
            assert ours.nodes.tolist() == theirs.nodes.tolist()
            assert ours.branches.path.tolist() == theirs.branches.path.tolist()
            branched += 1
            beside += int((ours.accepted > ours.kept_on_chain).sum())
    assert branched > 10
    assert beside > 3, "trees whose branches are never right prove nothing"


def test_a_replayed_beam_is_right_where_the_engines_was(built: Built, workloads: Workloads, tape: Tape) -> None:
    """What is accepted is the same; a tape does not know which wrong tokens end a text, so a few nodes more grow."""
    real, replayed = both(built, workloads, tape, 6, branching(3, 24, beam=True))
    for ours, theirs in zip(replayed, real, strict=False):
        for count in ("depths", "accepted", "emitted", "context", "kept_on_chain"):
            assert getattr(ours, count).tolist() == getattr(theirs, count).tolist(), count
    nodes = [sum(record.target_tokens for record in records[: len(replayed)]) for records in (real, replayed)]
    assert nodes[0] <= nodes[1] <= 1.05 * nodes[0]
    assert sum(int((record.accepted > record.kept_on_chain + 1).sum()) for record in replayed) > 3, "no side node grew"


def both(
    built: Built, workloads: Workloads, tape: Tape, depth: int, branch: Branch
) -> tuple[list[RoundRecord], list[RoundRecord]]:
    """The rounds of the engine, and of the simulator, with decisions made to branch."""
    real = engine_records(built, tape, workloads["chat"], depth, "draft-model", branch=branch)

    class Branching(Controller):
        def decide(self, signals: BatchSignals) -> Decision:
            return branch(super().decide(signals))

    stream = Stream(tape, tuple(range(len(tape))), Schedule((4,)))
    settings, costs = SimulatorSettings(prefill_tokens=512), load_machine("cpu-2-cores")
    tally = replay(static_spec(depth), stream, costs, settings, keep=True, controller=Branching)
    return real, tally.records


def test_confidence_on_the_tape_is_what_the_engine_saw(built: Built, workloads: Workloads, tape: Tape) -> None:
    """Where a draft follows the true text: the engine's confidence and entropy, up to rounding."""
    real = engine_records(built, tape, workloads["chat"], 3, "draft-model")
    stream = Stream(tape, tuple(range(len(tape))), Schedule((4,)))
    settings = SimulatorSettings(prefill_tokens=512)
    replayed = replay(static_spec(3), stream, load_machine("cpu-2-cores"), settings, keep=True).records
    compared = 0
    for ours, theirs in zip(replayed, real, strict=False):
        for row, accepted in enumerate(ours.accepted.tolist()):
            known = min(accepted + 1, int(ours.drafted[row]))
            np.testing.assert_allclose(ours.confidence[row, :known], theirs.confidence[row, :known], atol=1e-4)
            np.testing.assert_allclose(ours.entropy[row, :known], theirs.entropy[row, :known], atol=1e-3)
            compared += known
    assert compared > 50


def test_chances_are_those_of_rejection_sampling(tape: Tape) -> None:
    """Greedy requests: 1 where draft and target agree, else 0; sampled ones: near the agreement on average."""
    for at, exact in ((0.0, True), (0.9, False)):
        own = tape.at_temperature(at)
        view = own.views["draft-model"]
        if exact:
            assert view.rejection.tolist() == view.agreed.astype(float).tolist()
        else:
            assert ((view.rejection >= 0.0) & (view.rejection <= 1.0)).all()
            assert abs(view.rejection.mean() - view.agreed.mean()) < 0.2


def test_the_command_writes_a_tape_and_its_costs(
    line: list[str], built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bench record --json`: one object on standard output, a tape and a cost table that can be loaded."""
    out, costs = tmp_path / "tape.npz", tmp_path / "costs.json"
    more = f"--out {out} --costs-out {costs} --prompts 1 --tokens 8 --temperatures 0 --json"
    assert main([*line, *more.split()]) == 0
    printed = json.loads(capsys.readouterr().out)
    tape = load_tape(out)
    assert len(tape) == len(printed["recorded"]) == len(set(tape.tasks))
    assert tape.drafters == ("draft-model", "ngram", "counts")
    measured = load_machine(str(costs)).profile()
    assert measured.rows == built.costs.profile.rows
    assert measured.drafters["draft-model"].rows == built.costs.profile.drafters["draft-model"].rows
    assert json.loads(costs.read_text())["models"] == built.pair


@pytest.mark.parametrize("more", ["--tokens 1", "--tokens 100000", "--temperatures warm", "--temperatures -1"])
def test_settings_that_cannot_be_recorded_are_refused(more: str, line: list[str], tmp_path: Path) -> None:
    """With a message, before anything is written."""
    out = tmp_path / "tape.npz"
    assert main([*line, "--out", str(out), *more.split()]) == 2
    assert not out.exists()
