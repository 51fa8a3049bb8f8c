"""A real engine on tiny random models behind the app: for what a fake engine cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineLimits
from adaptspec.server.application import make_app
from adaptspec.telemetry.metrics import Metrics
from tests.engine.conftest import Dictated, make_core
from tests.models.packing import load_runner

POLICIES = ("mixed", "off", "deep")


@contextmanager
def live_app(target: Path, draft: Path, tokenizer: Any) -> Iterator[web.Application]:
    """The app, with policies that draft at changing depths by changing drafters ("mixed"), never, and deep."""
    ladder = [3, 0, 7, 1, 5]
    drafters = ("draft-model", "ngram")
    policies = {
        "mixed": (Dictated(drafters, lambda n, size: [ladder[(n + i) % 5] for i in range(size)]), "coupled"),
        "off": (Dictated(drafters, lambda n, size: [0] * size), "coupled"),
        "deep": (Dictated(drafters, lambda n, size: [7] * size), "coupled"),
    }
    limits = EngineLimits(max_rows=8, prefill_tokens=32, max_depth=7)
    runners = [load_runner(str(path), device="cpu", max_rows=8) for path in (target, draft)]
    models = [DraftModelDrafter(runners[1], (1,)), NgramDrafter(longest=3, shortest=1, ends=(1,))]
    engine = AsyncEngine(make_core(tokenizer, runners[0], models, policies, limits=limits), "tiny")  # type: ignore[arg-type]
    try:
        yield make_app(engine, tokenizer, Metrics())
    finally:
        engine.close()
