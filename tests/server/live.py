"""A real engine on tiny random models behind the app: for what a fake engine cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import build
from adaptspec.server.app import make_app
from adaptspec.telemetry.metrics import Metrics
from tests.control.helpers import QUIET

# What drafts at changing depths by changing drafters, what never drafts, and what always drafts as deep.
POLICIES = ("exp3", "off", "static-3")


@contextmanager
def live_app(target: Path, draft: Path) -> Iterator[web.Application]:
    """The app, with costs that are given and not measured."""
    config = EngineConfig(
        model=str(target),
        draft=str(draft),
        policy=POLICIES,
        max_num_seqs=8,
        prefill_tokens=32,
        detect_tasks=False,
        threads=1,
    )
    built = build(config, costs=CostModel(QUIET.profile()))
    engine = AsyncEngine(built.core, "tiny")
    try:
        metrics = Metrics()
        metrics.watch_load(engine.stats)
        yield make_app(engine, built.tokenizer, metrics)
    finally:
        engine.close()
