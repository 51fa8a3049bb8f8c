"""Heads that draft from the target's states keep them only while a policy asks for drafts."""

from __future__ import annotations

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.build import build
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.conftest import MakeModel
from tests.engine.policies import COSTS
from tests.exactness.harness import assert_same, plain
from tests.exactness.worlds import World
from tests.models.heads.golden import HEADS

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def test_a_head_that_no_policy_asks_for_keeps_no_states(make_model: MakeModel) -> None:
    """Until one does: then its rows draft, also next to rows that do not, and those that began before."""
    model = make_model("llama", hidden_size=16, num_hidden_layers=4)
    config = EngineConfig(model=str(model), draft=str(HEADS / "eagle3"), policy=("off", "static-3"), max_num_seqs=4)
    built = build(config, costs=CostModel(COSTS))
    head, core, world = built.loaded.draft, built.core, World(built.target, built.drafters, built.tokenizer)
    assert isinstance(head, HeadRunner)
    asked = {
        name: Request(name, tuple(range(first, first + 12)), GREEDY, SpeculationParams(policy=name))
        for name, first in (("off", 40), ("static-3", 60))
    }
    core.add(asked["off"])
    for _ in range(4):
        core.step()
    assert not head.reserve(0, 16)  # it was passed no states of the row
    assert head.free_memory == 1.0
    core.add(asked["static-3"])
    done = {}
    while not core.idle:
        done |= {delta.request_id: delta.completion for delta in core.step() if delta.completion is not None}
    for name, request in asked.items():
        assert_same(done[name], plain(world, request))
        assert bool(done[name].stats.drafted) == (name != "off")
    core.scheduler.prefixes.clear()
    assert head.free_memory == 1.0
    assert [head.length(row) for row in range(config.max_num_seqs)] == [0] * 4
