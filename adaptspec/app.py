"""The composition root: puts a server together of engine, telemetry and HTTP, and runs it to its end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console

from adaptspec import __version__
from adaptspec.control.learned_state import StateStore
from adaptspec.control.tasks import TaskNames
from adaptspec.drafting.drafter import ModelDrafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built, build
from adaptspec.engine.checkpointer import Checkpointer, HistoryFile, tasks_in
from adaptspec.engine.engine_config import BUNDLED, EngineConfig
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.engine.policy_watch import PolicyWatch
from adaptspec.engine.watchdog import Watchdog
from adaptspec.errors import ConfigError
from adaptspec.journal import JournalHeader
from adaptspec.models.pass_range import exactness
from adaptspec.models.tokenization import fingerprint
from adaptspec.server.api.codec import Codec
from adaptspec.server.api.reasoning_formats import AUTO, FormatName
from adaptspec.server.application import make_app
from adaptspec.server.auth import Hosts, check_exposure, is_loopback, named_key
from adaptspec.server.cors import Origins
from adaptspec.server.limits import ServerLimits
from adaptspec.server.openapi import KEYED
from adaptspec.server.operations import Operations
from adaptspec.server.run import serve as serve_app
from adaptspec.server.served_names import ANY_NAME, ServedNames
from adaptspec.server.service import SERVICE, Service
from adaptspec.server.sse import Padding
from adaptspec.start_status import StartStatus, resident_bytes
from adaptspec.telemetry.earnings import Earnings
from adaptspec.telemetry.journal_writer import Journal
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metric_families import (
    earning_families,
    exactness_families,
    reload_families,
    thread_families,
)
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp_export import PushSettings, TraceSettings
from adaptspec.telemetry.otlp_metrics import MetricsPush
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.telemetry.tracing import tracing_of

_log = logging.getLogger(__name__)
HURRY_SECONDS = 1.0  # from a second signal to the end, come what may


@dataclass(frozen=True)
class ServeConfig:
    """What `adaptspec serve` was asked for. `served_model_name` empty: the directory's or repository's name;
    several: the first is in answers, and `*` stands for any.

    `state_dir` None: what is learned ends with the server. `keep_history`: what was served is kept there, too, as
    counts to draft from. `admin_key` None: no admin routes. Without `api_keys` everybody who reaches the server may use
    it; it then listens on this machine only, unless `insecure`, and answers to no names but its own and the
    `allowed_hosts`. Pages of `allowed_origins` may call it from a browser. `pad_stream` hides in streams what
    speculation did. `reasoning_format`: how the model marks its reasoning (see `api.reasoning`).
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    max_waiting: int = 1024
    drain_seconds: float = 30.0
    compat_vllm: bool = False
    state_dir: Path | None = None
    keep_history: bool = False
    journal: Path | None = None
    journal_bytes: int = 64 * 2**20  # of each of its files
    journal_files: int = 4
    admin_key: str | None = field(default=None, repr=False)
    watch_policies: bool = True
    traces: TraceSettings = TraceSettings()
    push: PushSettings = PushSettings()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    limits: ServerLimits = field(default_factory=ServerLimits)
    pad_stream: bool = False
    reasoning_format: FormatName = AUTO

    @property
    def name(self) -> str | None:
        """What answers call the model; None for its own name."""
        given = [name for name in self.served_model_name if name != ANY_NAME]
        return given[0] if given else BUNDLED if self.engine.model == BUNDLED else None

    @property
    def shown_name(self) -> str:
        """What telemetry calls it before it is loaded."""
        return self.name or Path(self.engine.model).name


async def serve(config: ServeConfig, console: Console, status: StartStatus | None = None) -> None:
    """Load the models, listen, and serve until a signal ends it. `status` shows the start, from its own beginning on.

    Raises:
        AdaptSpecError: a model, policy, file or address cannot be used; the message says what to do.
    """
    if config.keep_history and config.state_dir is None:
        raise ConfigError("--keep-history needs a directory to keep it in: give --state-dir DIR")
    ServedNames.of(config.served_model_name, "")  # before minutes of loading
    check_exposure(config.host, keyed=bool(config.api_keys), insecure=config.insecure)
    origins = Origins(config.allowed_origins) if config.allowed_origins else None
    status = status or StartStatus(console, "starting")
    async with AsyncExitStack() as closing:
        closing.callback(status.close)
        store = RequestStore()
        metrics = Metrics(store, compat_vllm=config.compat_vllm, model_name=config.shown_name)
        earnings = Earnings(store)
        live = LiveFeed(store, earnings.snapshot)
        journal = _journal(config, store, metrics)
        traced = tracing_of(config.traces, store, metrics, config.shown_name)
        for writer in (journal, traced):
            if writer is not None:
                closing.push_async_callback(asyncio.to_thread, writer.close)
        closing.push_async_callback(asyncio.to_thread, store.close)
        task_names = TaskNames()
        if config.state_dir is not None:  # what was learned of tasks is by number: those of before stay
            task_names.restore(tasks_in(config.state_dir))
        # Loading takes seconds of pure computation; the loop must stay free for Ctrl-C.
        built = await asyncio.to_thread(build, config.engine, [store], task_names=task_names, progress=status)
        engine = AsyncEngine(
            built.core, config.name, config.max_waiting, on_idle=built.on_idle, on_start=built.threads.apply
        )
        closing.push_async_callback(asyncio.to_thread, engine.close)
        await asyncio.to_thread(built.core.inputs.prepare_grammars)
        limits = built.core.limits
        # The longest forward pass on this machine: every row decodes, next to a full share of prompt tokens.
        longest = built.costs.verify_seconds(limits.max_rows, limits.max_rows + limits.prefill_tokens)
        watchdog = Watchdog(engine, config.limits.hang_seconds, expected=longest)
        _watching(watchdog.run(), "the engine is", closing)
        drafters = [drafter.name for drafter in built.drafters]
        earnings.begin(built.costs, drafters, limits.max_rows, built.core.controller.task_names.size)
        manager = PolicyManager(
            engine, built.core, built.costs, built.specs, built.files, max_policies=config.limits.policies
        )
        if traced is not None:
            manager.listen(traced.reloaded)
        _check_key_names(config, built)
        if journal is not None:
            journal.begin(_header(built, engine))
        store.start(limits.max_rows, drafters)
        keeper: Checkpointer | None = None
        if config.state_dir is not None:
            keeper = await _keep_state(StateStore(config.state_dir, built.pair), manager, metrics, closing)
            if config.keep_history:
                await _keep_history(built, engine, config.state_dir, closing)
        _watch(manager, config, closing)
        _watch_figures(metrics, engine, earnings, manager, built)
        _push(config, metrics, closing)
        # A quarter of a million objects stand to the end: looking through them for garbage would stop all requests
        # for 0.15 s at a time.
        gc.collect()
        gc.freeze()
        app = make_app(
            engine,
            built.tokenizer,
            metrics,
            policies=manager,
            traces=traced,
            admin_key=config.admin_key,
            live=live,
            facts=_facts(built, config),
            journal=config.journal,
            template=built.template,
            reasoning=config.reasoning_format,
            names=ServedNames.of(config.served_model_name, engine.target.name),
            api_keys=config.api_keys,
            # With keys, or open to the network on purpose, any name will do.
            hosts=None if config.api_keys or not is_loopback(config.host) else Hosts(config.allowed_hosts),
            origins=origins,
            limits=config.limits,
            padding=Padding() if config.pad_stream else None,
            operations=Operations(keeper, store, drafters),
        )
        await serve_app(
            app,
            config.host,
            config.port,
            drain_seconds=config.drain_seconds,
            on_listening=lambda url: _announce(
                console, url, app, built, status, bundled=config.engine.model == BUNDLED
            ),
            on_hurry=_exit_soon,
        )


def _watch_figures(
    metrics: Metrics, engine: AsyncEngine, earnings: Earnings, manager: PolicyManager, built: Built
) -> None:
    """Have `/metrics` show what its parts can be asked for."""
    metrics.watch_load(engine.stats)
    metrics.watch(lambda: thread_families(built.threads.count))
    metrics.watch(lambda: exactness_families(engine.target.equal_passes or 0))
    metrics.watch(lambda: earning_families(earnings.snapshot()))
    metrics.watch(lambda: reload_families(manager.reloads))


async def _keep_state(
    store: StateStore, manager: PolicyManager, metrics: Metrics, closing: AsyncExitStack
) -> Checkpointer:
    """Go on from what was learned before, and keep what is learned from now on."""
    bad = "Files of learned state that could not be trusted and were put aside"
    metrics.watch_count("adaptspec_state_quarantined_files", bad, lambda: store.quarantined)
    failed = "Times that learned state could not be written"
    metrics.watch_count("adaptspec_state_failed_saves", failed, lambda: store.failed_saves)
    keeper = Checkpointer(manager, store)
    await asyncio.to_thread(keeper.start)
    closing.push_async_callback(asyncio.to_thread, keeper.close)
    return keeper


async def _keep_history(built: Built, engine: AsyncEngine, folder: Path, closing: AsyncExitStack) -> None:
    """Draft from what was served before the start, too, and keep it at the end."""
    info = built.target.info
    for drafter in built.drafters:
        if isinstance(drafter, LookupDrafter) and drafter.histories is not None:
            file = HistoryFile(
                folder, drafter.histories, tokenizer=fingerprint(built.tokenizer), vocab_size=info.vocab_size
            )
            await asyncio.to_thread(file.load)
            closing.push_async_callback(asyncio.to_thread, file.save, engine)


def _check_key_names(config: ServeConfig, built: Built) -> None:
    """Say where a policy waits for an API key that nobody has."""
    known = {name for _, name in map(named_key, config.api_keys)}
    asked = [name for spec in built.specs for when in spec.spec.when for name in when.keys]
    missing = [name for name in dict.fromkeys(asked) if name not in known]
    if missing:
        _log.warning(
            "policies ask for API keys called %s, and no key is: name one in --api-key-file, as in KEY # %s",
            ", ".join(missing),
            missing[0],
        )


def _watch(manager: PolicyManager, config: ServeConfig, closing: AsyncExitStack) -> None:
    """Reload policies on SIGHUP, and when their files change."""
    watch, loop = PolicyWatch(manager), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, watch.reload))
    closing.callback(loop.remove_signal_handler, signal.SIGHUP)
    if config.watch_policies:
        _watching(watch.run(), "policy files are", closing)


def _watching(watch: Coroutine[Any, Any, None], what: str, closing: AsyncExitStack) -> None:
    """Have a watch run to the end of the server; one that stops before says so."""

    def stopped(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            _log.error("%s no longer watched; restart the server to have it so again", what, exc_info=task.exception())

    task = asyncio.create_task(watch)
    task.add_done_callback(stopped)
    closing.callback(task.cancel)


def _journal(config: ServeConfig, store: RequestStore, metrics: Metrics) -> Journal | None:
    if config.journal is None:
        return None
    journal = Journal(store, config.journal, max_bytes=config.journal_bytes, files=config.journal_files)
    lost = "Lines of the journal that were not written"
    metrics.watch_count("adaptspec_journal_dropped_lines", lost, lambda: journal.dropped)
    return journal


def _push(config: ServeConfig, metrics: Metrics, closing: AsyncExitStack) -> None:
    """Send metrics, if that is wanted."""
    if config.push.enabled:
        push = MetricsPush(metrics.families, config.push.exporter())
        failed = "Times that metrics could not be sent"
        metrics.watch_count("adaptspec_metrics_failed_pushes", failed, lambda: push.failed)
        push.start()
        closing.push_async_callback(asyncio.to_thread, push.close)


def _exit_soon() -> None:
    """Whoever asks twice does not want to wait for what hangs: files are always written whole or not at all."""
    timer = threading.Timer(HURRY_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _header(built: Built, engine: AsyncEngine) -> JournalHeader:
    info = built.target.info
    return JournalHeader(
        adaptspec=__version__,
        target={"name": engine.target.name, "fingerprint": info.fingerprint, "dtype": info.dtype},
        pair=built.pair,
        drafters=[drafter.name for drafter in built.drafters],
        policies=[spec.name for spec in built.specs],
        default=engine.default_policy,
        tasks=list(built.core.controller.task_names),
        costs=json.loads(built.costs.profile.to_json()),
        clock=time.time() - time.monotonic(),
    )


def _facts(built: Built, config: ServeConfig) -> dict[str, Any]:
    """What the live feed says of the server itself."""
    return {
        "drafters": [drafter.name for drafter in built.drafters],
        "tasks": list(built.core.controller.task_names),
        "rows": config.engine.limits.max_rows,
        "admin": config.admin_key is not None,
        "journal": config.journal is not None,
    }


def _ends(built: Built) -> str:
    """The tokens that end a text, with their ids."""
    ids = built.target.info.eos_token_ids
    named = [f"{built.tokenizer.convert_ids_to_tokens(token)} ({token})" for token in ids]
    return ", ".join(named) or "none: answers end at max_tokens or with the context"


def _template(codec: Codec) -> str:
    """How conversations are written."""
    traits = codec.template.traits
    if codec.template.source is None:
        return "none: /v1/completions only"
    systems = "" if traits.system else "; system text goes before the user's"
    parts = "; content as parts" if traits.parts else ""
    turns = "" if traits.earlier_turns else "; only the latest messages"
    form = "tools described in the prompt" if codec.tool_form.in_words else "tools in the template's own form"
    return f"{form}{systems}{parts}{turns}"


def _announce(
    console: Console, url: str, app: web.Application, built: Built, status: StartStatus, *, bundled: bool
) -> None:
    status.close()
    console.print(f"[bold]AdaptSpec listens on {url}[/bold]")
    for label, text in _start_facts(app[SERVICE], built, status):
        console.print(f"  {label:<10} {text}", soft_wrap=True, markup=False, highlight=False)
    if bundled:
        console.print(
            "These small models are for a first look; `adaptspec serve --model smollm2` serves one that answers."
        )
    console.print("Try it:")
    console.print(_first_request(url, app[SERVICE], keyed=app[KEYED]), soft_wrap=True, highlight=False)


def _start_facts(service: Service, built: Built, status: StartStatus) -> Iterator[tuple[str, str]]:
    """What was loaded and how it will run: labels and texts."""
    engine, info, marks = service.engine, service.engine.target, service.marks
    yield "target", f"{info.name} ({info.parameters / 1e6:.1f} M parameters, context {info.context})"
    yield "weights", info.dtype
    yield "exactness", exactness(info)
    yield "end tokens", _ends(built)
    yield "template", _template(service.codec)
    if marks is not None:
        yield "reasoning", f"{marks.open} ... {marks.close} as reasoning_content"
    yield "drafters", ", ".join(drafter.name for drafter in built.drafters)
    for drafter in built.drafters:
        if isinstance(drafter, ModelDrafter):
            draft = drafter.runner.info
            short = f", up to its own context of {draft.context} tokens" if draft.context < info.context else ""
            yield "draft", f"{draft.name}, {drafter.description}{short}"
    yield "threads", str(built.threads)
    resident = resident_bytes()
    if resident is not None:
        yield "memory", f"{resident / 1e9:.2f} GB resident"
    one, four = (built.costs.verify_seconds(1, tokens) for tokens in (1, 4))
    yield "costs", f"a pass of 1 token takes {one * 1e3:.3g} ms, one of 4 tokens {four * 1e3:.3g} ms"
    others = [name for name in engine.policies if name != engine.default_policy]
    yield "policy", f"{engine.default_policy} (also served: {', '.join(others)})"
    yield "ready", f"in {status.seconds:.0f} s"


def _first_request(url: str, service: Service, *, keyed: bool) -> str:
    """A command that asks this server something."""
    text = "Tell me a story about a small fox."
    body: dict[str, Any] = {"model": service.names.names[0]}
    if service.codec.template.source is None:
        path, body = "completions", {**body, "prompt": text, "max_tokens": 64}
    else:
        path, body = "chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    return f"  curl {url}/v1/{path} -H 'Content-Type: application/json'{key} \\\n    -d '{json.dumps(body)}'"
