"""What an engine refuses to put together, since the text would no longer be the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import ConfigError
from tests.engine.policies import COSTS, static
from tests.exactness import dictated
from tests.exactness.harness import Case
from tests.exactness.worlds import TOKENIZER, World
from tests.fakes import TableRunner


class Choosy(DraftModelDrafter):
    """Declares that it drops tokens by what they are, once they were drawn. Of a fair coin that would make 0.69."""

    non_anticipating = False


WORLD = World(TableRunner(), [Choosy(TableRunner(seed=1))], TOKENIZER)


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_methods_that_weigh_refuse_a_drafter_that_drops_what_it_drew(tmp_path: Path, method: str) -> None:
    """When the engine is built and when a policy comes later; `coupled`, and a policy that never drafts, take it."""
    message = f"policy .*: spec.*verification: {method} .* draft-model .* use coupled"
    with pytest.raises(ConfigError, match=message):
        WORLD.engine([dictated.policy(Case(method=method, depths="1").policy)], EngineLimits(max_rows=2))
    file = tmp_path / "first.yaml"
    file.write_text(static("first", 1))
    spec = load_policy_spec(file)
    core = WORLD.engine([spec], EngineLimits(max_rows=2))
    assert WORLD.engine([dictated.policy(Case(method=method, depths="0").policy)], EngineLimits(max_rows=2))
    front = AsyncEngine(core)
    try:
        manager = PolicyManager(front, core, CostModel(COSTS), [spec], {spec.name: file})
        more = f"  drafters: [draft-model]\n  verification: {{method: {method}}}\n"
        with pytest.raises(ConfigError, match=r"spec\.verification"):
            manager.apply(static("later", 1, more))
        assert front.policies == ("first",)
    finally:
        front.close()
