"""The composition root: the only module that knows all the others, and puts a server together."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from adaptspec.engine.build import BUNDLED, Built, EngineConfig, build
from adaptspec.engine.front import AsyncEngine
from adaptspec.server.application import make_app
from adaptspec.server.run import serve as serve_app
from adaptspec.telemetry.metrics import Metrics


@dataclass(frozen=True)
class ServeConfig:
    """What `adaptspec serve` was asked for. `served_model_name` None: the directory's or repository's name."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    max_waiting: int = 1024
    drain_seconds: float = 30.0
    compat_vllm: bool = False

    @property
    def name(self) -> str | None:
        """What clients call the model; None for the model's own name."""
        return self.served_model_name or (BUNDLED if self.engine.model == BUNDLED else None)


async def serve(config: ServeConfig, console: Console) -> None:
    """Load the models, listen, and serve until a signal ends it.

    Raises:
        AdaptSpecError: a model, policy or address cannot be used; the message says what to do.
    """
    with console.status(f"loading {config.engine.model}"):
        metrics = Metrics(compat_vllm=config.compat_vllm, model_name=config.name or Path(config.engine.model).name)
        # Loading takes seconds of pure computation; the loop must stay free for Ctrl-C.
        built = await asyncio.to_thread(build, config.engine, (metrics,))
    engine = AsyncEngine(built.core, config.name, config.max_waiting)
    metrics.watch(engine.stats)
    app = make_app(engine, built.tokenizer, metrics)
    try:
        await serve_app(
            app,
            config.host,
            config.port,
            drain_seconds=config.drain_seconds,
            on_listening=lambda url: _announce(console, url, engine, built),
        )
    finally:
        await asyncio.to_thread(engine.close)


def _announce(console: Console, url: str, engine: AsyncEngine, built: Built) -> None:
    info = engine.target
    console.print(f"[bold]AdaptSpec listens on {url}[/bold]")
    console.print(f"  target   {info.name} ({info.parameters / 1e6:.1f} M parameters, context {info.context})")
    console.print(f"  drafters {', '.join(drafter.name for drafter in built.drafters)}")
    console.print(f"  policy   {engine.default_policy} (also served: {', '.join(engine.policies[1:])})")
    body = {"model": info.name, "messages": [{"role": "user", "content": "Tell me a story about a small fox."}]}
    console.print("Try it:")
    console.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'",
        soft_wrap=True,
        highlight=False,
    )
