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
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console

from adaptspec import __version__
from adaptspec.banner import announce
from adaptspec.config import BUNDLED, ServeConfig
from adaptspec.control.learned_state import StateStore
from adaptspec.control.tasks import TaskNames
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built, build
from adaptspec.engine.checkpointer import Checkpointer, HistoryFile, tasks_in
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.engine.policy_watch import PolicyWatch
from adaptspec.engine.watchdog import Watchdog
from adaptspec.errors import ConfigError
from adaptspec.journal import JournalHeader
from adaptspec.models.tokenization import fingerprint
from adaptspec.server import limits
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access, named_key
from adaptspec.server.listener import serve_app
from adaptspec.server.served_names import ServedNames
from adaptspec.start_status import StartStatus
from adaptspec.telemetry.metric_families import exactness_families, reload_families, thread_families
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp import TraceLevel, TraceSettings
from adaptspec.telemetry.telemetry import Telemetry, open_telemetry

_log = logging.getLogger(__name__)
FORCED_EXIT_SECONDS = 1.0  # from the second signal to os._exit


async def serve(config: ServeConfig, console: Console, status: StartStatus | None = None) -> None:
    """Load the models, listen, and serve until a signal ends it. `status` shows the start, from its own beginning on.

    Raises:
        AdaptSpecError: a model, policy, file or address cannot be used; the message says what to do.
    """
    _check_config(config)
    access = _access(config)
    status = status or StartStatus(console, "starting")
    async with AsyncExitStack() as closing:  # leaves in reverse: state, engine, telemetry
        closing.callback(status.close)
        telemetry = _open_telemetry(config, closing)
        # Learned arrays are indexed by the numbers of task names, so these are restored before policies are built.
        task_names = _restored_task_names(config)
        # Loading is seconds of computation: in a thread, so that Ctrl-C works.
        built = await asyncio.to_thread(build, config, [telemetry.stream], task_names=task_names, progress=status)
        engine = AsyncEngine(
            built.core, config.name, config.max_waiting, on_idle=built.on_idle, on_start=built.threads.apply
        )
        closing.push_async_callback(asyncio.to_thread, engine.close)
        await asyncio.to_thread(built.core.inputs.prepare_grammars)
        policies = PolicyManager(
            engine, built.core, built.costs, built.specs, built.files, max_policies=limits.POLICIES
        )
        _run_in_background(watchdog_of(engine, built).run(), "the engine is", closing)
        _start_telemetry(telemetry, engine, built, policies)
        _check_key_names(config, built)
        await _restore_state(config, telemetry.metrics, built, policies, closing)
        await _restore_history(config, engine, built, closing)
        _reload_policies(policies, closing)
        # Loading leaves 250,000 objects that stay: a garbage collection that visits them stops requests for 0.15 s.
        gc.collect()
        gc.freeze()
        app = make_app(
            engine,
            built.tokenizer,
            telemetry.metrics,
            access=access,
            policies=policies,
            traces=telemetry.tracer,
            live=telemetry.live,
            facts=_facts(config, built),
            template=built.template,
            reasoning=config.reasoning_format,
            names=_served_names(config, engine, built),
        )
        await serve_app(
            app,
            config.host,
            config.port,
            drain_seconds=config.shutdown_timeout,
            on_listening=lambda url: announce(console, url, app, built, status),
            on_second_signal=_exit_soon,
        )


def _check_config(config: ServeConfig) -> None:
    """Raise ConfigError, before models are loaded, for settings that exclude each other."""
    if config.keep_history and config.state_dir is None:
        raise ConfigError("--keep-history needs a directory to keep it in: give --state-dir DIR")
    ServedNames.of(config.served_model_name, "")


def _access(config: ServeConfig) -> Access:
    """Who may use the server. Raises ConfigError."""
    return Access.on_address(
        config.host,
        api_keys=config.api_key,
        admin_key=config.admin_key,
        insecure=config.insecure,
        allowed_hosts=config.allowed_hosts,
        allowed_origins=config.allowed_origins,
    )


def _open_telemetry(config: ServeConfig, closing: AsyncExitStack) -> Telemetry:
    """Open files and exporters before models are loaded, so that errors come at once."""
    traces = TraceSettings(
        TraceLevel(config.trace_level),
        config.otlp_traces_endpoint,
        config.trace_slow_seconds,
        content=config.trace_content,
    )
    telemetry = open_telemetry(config.name or os.path.basename(config.model), journal=config.journal, traces=traces)
    closing.push_async_callback(asyncio.to_thread, telemetry.close)
    return telemetry


def _restored_task_names(config: ServeConfig) -> TaskNames:
    task_names = TaskNames()
    if config.state_dir is not None:
        task_names.restore(tasks_in(config.state_dir))
    return task_names


def watchdog_of(engine: AsyncEngine, built: Built) -> Watchdog:
    """The watchdog of a built engine.

    It expects the longest pass of this machine: every row decodes, next to a full share of prompt tokens.
    """
    rows = built.core.limits.max_rows
    longest = built.costs.verify_seconds(rows, rows + built.core.limits.prefill_tokens)
    return Watchdog(engine, limits.HANG_SECONDS, expected=longest)


def _start_telemetry(telemetry: Telemetry, engine: AsyncEngine, built: Built, policies: PolicyManager) -> None:
    """Record rounds from here on: drafters, costs and policies are known."""
    policies.listen(telemetry.policy_reloaded)
    telemetry.start(built.costs, _drafter_names(built), _header(built, engine))
    metrics = telemetry.metrics
    metrics.watch_load(engine.stats)
    metrics.watch(lambda: thread_families(built.threads.count))
    metrics.watch(lambda: exactness_families(engine.target.equal_passes or 0))
    metrics.watch(lambda: reload_families(policies.reloads))


async def _restore_state(
    config: ServeConfig,
    metrics: Metrics,
    built: Built,
    policies: PolicyManager,
    closing: AsyncExitStack,
) -> None:
    """Restore what was learned before, and save it while the server runs and at its end."""
    if config.state_dir is None:
        return
    store = StateStore(config.state_dir, built.pair)
    bad = "Learned-state files that were unusable and renamed"
    metrics.watch_count("adaptspec_state_quarantined_files", bad, lambda: store.quarantined)
    failed = "Saves of learned state that failed"
    metrics.watch_count("adaptspec_state_failed_saves", failed, lambda: store.failed_saves)
    keeper = Checkpointer(policies, store)
    await asyncio.to_thread(keeper.start)
    closing.push_async_callback(asyncio.to_thread, keeper.close)


async def _restore_history(config: ServeConfig, engine: AsyncEngine, built: Built, closing: AsyncExitStack) -> None:
    """Draft from what was served before, too, and save it at the end."""
    if config.state_dir is None or not config.keep_history:
        return
    for drafter in built.drafters:
        if isinstance(drafter, LookupDrafter) and drafter.histories is not None:
            tokenizer, vocab_size = fingerprint(built.tokenizer), built.target.info.vocab_size
            file = HistoryFile(config.state_dir, drafter.histories, tokenizer=tokenizer, vocab_size=vocab_size)
            await asyncio.to_thread(file.load)
            closing.push_async_callback(asyncio.to_thread, file.save, engine)


def _check_key_names(config: ServeConfig, built: Built) -> None:
    """Warn of a policy that is for API keys which have other names."""
    known = {name for _, name in map(named_key, config.api_key)}
    asked = [name for spec in built.specs for when in spec.spec.when for name in when.keys]
    missing = [name for name in dict.fromkeys(asked) if name not in known]
    if missing:
        _log.warning(
            "policies select API keys named %s, but no key has that name; append ' # %s' to its line in --api-key-file",
            ", ".join(missing),
            missing[0],
        )


def _reload_policies(policies: PolicyManager, closing: AsyncExitStack) -> None:
    """Reload policies on SIGHUP, and when their files change."""
    watch, loop = PolicyWatch(policies), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, watch.reload))
    closing.callback(loop.remove_signal_handler, signal.SIGHUP)
    _run_in_background(watch.run(), "policy files are", closing)


def _run_in_background(work: Coroutine[Any, Any, None], what: str, closing: AsyncExitStack) -> None:
    """Run a watch over something until the server ends; log an error if it ends before."""

    def stopped(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            _log.error("%s no longer watched; restart the server", what, exc_info=task.exception())

    task = asyncio.create_task(work)
    task.add_done_callback(stopped)
    closing.callback(task.cancel)


def _served_names(config: ServeConfig, engine: AsyncEngine, built: Built) -> ServedNames:
    """The configured names; without any, the model as it was asked for and the name of its file or folder."""
    if config.served_model_name or config.model == BUNDLED:
        return ServedNames.of(config.served_model_name, engine.target.name)
    return ServedNames.of((engine.target.name, built.target.info.name), engine.target.name)


def _drafter_names(built: Built) -> list[str]:
    return [drafter.name for drafter in built.drafters]


def _header(built: Built, engine: AsyncEngine) -> JournalHeader:
    info = built.target.info
    return JournalHeader(
        adaptspec=__version__,
        target={"name": engine.target.name, "fingerprint": info.fingerprint, "dtype": info.dtype},
        pair=built.pair,
        drafters=_drafter_names(built),
        policies=[spec.name for spec in built.specs],
        default=engine.default_policy,
        tasks=list(built.core.controller.task_names),
        costs=json.loads(built.costs.profile.to_json()),
        clock=time.time() - time.monotonic(),
    )


def _facts(config: ServeConfig, built: Built) -> dict[str, Any]:
    """Facts about the server for the live feed."""
    return {
        "drafters": _drafter_names(built),
        "tasks": list(built.core.controller.task_names),
        "rows": config.max_num_seqs,
        "admin": config.admin_key is not None,
    }


def _exit_soon() -> None:
    """End the process after a second signal, whatever hangs: files are always written whole or not at all."""
    timer = threading.Timer(FORCED_EXIT_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
