"""An engine over fake models whose policies are real files, at a desk that can change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from adaptspec.control.cost import CostProfile, CostTable, DrafterCost
from adaptspec.control.language.build import load_policy_spec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.assembly import assemble
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import Sink
from tests.fakes import TableRunner

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: %s, description: %s}\nspec:\n"
COSTS = CostProfile(
    (1, 4),
    (1, 8),
    ((1e-3, 1.2e-3), (1.1e-3, 1.5e-3)),
    {"draft-model": DrafterCost((1, 4), (1e-4, 1e-4), 1e-6), "ngram": DrafterCost()},
    overhead=1e-4,
)
LONG = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


def static(name: str, depth: int, more: str = "") -> str:
    """A policy of one depth; `more` are further lines of its spec."""
    return HEAD % (name, f"depth {depth}") + f"  choose: {{algorithm: static, depth: {depth}}}\n{more}"


def goodput(name: str, more: str = "") -> str:
    """A policy that learns."""
    return HEAD % (name, "learns") + f"  choose: {{algorithm: goodput}}\n{more}"


@dataclass
class Desk:
    """What a test needs of an engine."""

    core: EngineCore
    front: AsyncEngine
    desk: PolicyManager
    files: dict[str, Path]
    target: TableRunner

    async def served(self, request: Request) -> str:
        """The policy that served a request, whose text must be plain decoding's."""
        done = await self.front.generate(request)
        assert done.error is None
        tokens = list(request.prompt)
        for _ in range(request.sampling.max_tokens):
            tokens.append(int(self.target.logits(tokens).argmax()))
        assert [*request.prompt, *done.tokens] == tokens
        return done.stats.policy


@asynccontextmanager
async def desk_of(
    tokenizer: PreTrainedTokenizerFast, folder: Path, texts: Sequence[str], sinks: Sequence[Sink] = ()
) -> AsyncIterator[Desk]:
    """An engine that serves these policies, each from a file in `folder`."""
    files: dict[str, Path] = {}
    specs = []
    for i, text in enumerate(texts):
        path = folder / f"{i}.yaml"
        path.write_text(text)
        specs.append(load_policy_spec(path))
        files[specs[-1].name] = path
    target = TableRunner(context=512)
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8, context=512)), NgramDrafter()]
    costs = CostTable(COSTS)
    core = assemble(target, drafters, tokenizer, specs=specs, costs=costs, sinks=sinks, limits=EngineLimits(max_rows=4))
    front = AsyncEngine(core, max_waiting=64)
    try:
        yield Desk(core, front, PolicyManager(front, core, costs, specs, files), files, target)
    finally:
        await asyncio.to_thread(front.close)


def asking(number: int, policy: str | None = None) -> Request:
    """A request of its own prompt."""
    return Request(f"r{number}", (5, 6, 2 + number % 20), LONG, SpeculationParams(policy))
