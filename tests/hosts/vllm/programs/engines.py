"""What the programs share: engines inside vLLM on the bundled pair, and pilots that decide by chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import LLM

import adaptspec
from adaptspec.hosts.rounds import Plan
from adaptspec.hosts.vllm import SCHEDULER

PACKAGE = Path(adaptspec.__file__).parent
MODELS = PACKAGE / "models" / "bundled"
DEEPEST = 5


def make(rows: int, *, deepest: int = DEEPEST, adaptive: dict[str, Any] | None = None, **arguments: Any) -> LLM:
    """vLLM with the bundled target; `deepest` 0: without a draft. `adaptive` are the settings of our scheduler."""
    if deepest:
        draft = {"method": "draft_model", "model": str(MODELS / "draft"), "num_speculative_tokens": deepest}
        arguments = {"speculative_config": draft, **arguments}
    if adaptive is not None:
        arguments |= {"scheduler_cls": SCHEDULER, "additional_config": {"adaptspec": adaptive}}
    usual = {"max_model_len": 512, "enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": rows}
    usual |= {"gpu_memory_utilization": 0.2}  # of the memory; other programs have some of it
    return LLM(**({"model": str(MODELS / "target")} | usual | arguments))


def scheduler_of(llm: LLM) -> Any:
    """The scheduler of an engine that runs in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def prompts(count: int, chance: random.Random) -> list[str]:
    """Pieces of our own source text, of many lengths."""
    files = sorted((PACKAGE / "control").rglob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    starts = [chance.randrange(len(text) - 400) for _ in range(count)]
    return [text[start : start + chance.randint(4, 400)] for start in starts]


class RandomPilot:
    """Any depth for any request, at every step; of some requests it says nothing. In some steps nobody drafts."""

    def __init__(self, seed: int) -> None:
        self.chance, self.errors = random.Random(seed), 0
        self.here: set[str] = set()
        self.told: Counter[str] = Counter()

    def enter(self, id_: str, *_: Any, **__: Any) -> None:
        assert id_ not in self.here
        self.here.add(id_)

    def leave(self, id_: str, finish: str) -> None:
        self.here.remove(id_)
        self.told[finish] += 1

    def decide(self, ids: list[str], prefill: int, *, room: bool) -> Plan:
        assert prefill >= 0
        if not room:
            return Plan(0, 0)
        if self.chance.random() < 0.1:
            return Plan(0, 0, skip=self.chance.random() < 0.5)
        depths = {id_: self.chance.randint(0, DEEPEST) for id_ in ids if self.chance.random() < 0.9}
        return Plan(0, max(depths.values(), default=self.chance.randint(0, DEEPEST)), depths)

    def learn(self, plan: Plan, ids: list[str], drafted: list[int], accepted: list[int], emitted: list[int]) -> None:
        for id_, drafts, kept, got in zip(ids, drafted, accepted, emitted, strict=True):
            assert id_ in self.here
            assert 0 <= kept <= drafts <= DEEPEST
            assert 1 <= got <= kept + 1
            self.told["drafted"] += drafts
            self.told["kept"] += kept
            self.told["emitted"] += got

    @contextmanager
    def fence(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - as a pilot's
            self.errors += 1

    def close(self) -> None:
        """Nothing is kept."""
