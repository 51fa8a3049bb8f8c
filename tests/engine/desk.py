"""An engine over models of a few lines whose policies are real files, with a manager that can change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.engine.policies import COSTS
from tests.exactness.harness import assert_same, plain
from tests.exactness.worlds import World, table

LONG = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


@dataclass
class Desk:
    """What a test needs of an engine."""

    reference: World  # other models of the same weights, for plain decoding beside the engine
    core: EngineCore
    front: AsyncEngine
    desk: PolicyManager
    files: dict[str, Path]

    async def served(self, request: Request) -> str:
        """The policy that served a request, whose answer must be that of plain decoding."""
        done = await self.front.generate(request)
        assert_same(done, plain(self.reference, request))
        return done.stats.policy


@asynccontextmanager
async def desk_of(folder: Path, texts: Sequence[str]) -> AsyncIterator[Desk]:
    """An engine that serves these policies, each from a file in `folder`."""
    files: dict[str, Path] = {}
    specs = []
    for i, text in enumerate(texts):
        path = folder / f"{i}.yaml"
        path.write_text(text)
        specs.append(load_policy_spec(path))
        files[specs[-1].name] = path
    world = table("draft-model")
    world = replace(world, drafters=world.drafters[:2])
    core = world.engine(specs, EngineLimits(max_rows=4))
    front = AsyncEngine(core, max_waiting=64)
    try:
        yield Desk(table("draft-model"), core, front, PolicyManager(front, core, CostModel(COSTS), specs, files), files)
    finally:
        await asyncio.to_thread(front.close)


def asking(number: int, policy: str | None = None) -> Request:
    """A request of its own prompt."""
    return Request(f"r{number}", (5, 6, 2 + number % 20), LONG, SpeculationParams(policy))
