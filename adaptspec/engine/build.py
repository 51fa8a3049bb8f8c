"""Builds an engine from names: models, drafters, policies, cost model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.config import AUTO, EngineConfig
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import build_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.start_policies import read_start_policies
from adaptspec.control.rollout import LIVE
from adaptspec.control.routing import routes_of, with_used
from adaptspec.control.task_detector import SHIPPED, TaskDetector
from adaptspec.control.tasks import TaskNames
from adaptspec.drafters import available_drafters
from adaptspec.drafting.cross_tokenizer import SharedVocabulary
from adaptspec.drafting.drafter import Drafter, Loaded, ModelDrafter, make_drafters
from adaptspec.drafting.ngram_index import CORPUS_FILE, CorpusTable, read_corpus_table
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.load_models import StartRanks, load_models
from adaptspec.engine.load_template import load_template, with_tokens
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.engine.warm_up import warm_up
from adaptspec.errors import ConfigError
from adaptspec.gpu.decoder import GpuDecoder
from adaptspec.gpu.heads import GpuRecurrentHead
from adaptspec.gpu.tensor_parallel import start_ranks
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.compute_threads import ComputeThreads, all_threads, one_token_pass
from adaptspec.models.gguf import is_gguf
from adaptspec.models.heads.head_checkpoint import HeadMakers
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.llama_cpp import LlamaCppRunner
from adaptspec.models.loading import MakeDecoder
from adaptspec.models.pass_range import SECONDS, equal_passes
from adaptspec.models.runner import Runner
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import check_tokenizer, fingerprint, load_tokenizer
from adaptspec.rounds import Sink
from adaptspec.start_status import Progress, no_progress


@dataclass(frozen=True)
class Built:
    """An engine ready to run, with its chat template and the loaded parts."""

    core: EngineCore
    executor: ModelExecutor
    template: ChatTemplate
    target: Runner
    drafters: tuple[Drafter, ...]
    specs: tuple[PolicySpec, ...]
    costs: CostModel
    files: Mapping[str, Path]  # the file of each policy, by its name
    loaded: Loaded  # parts for making further drafters
    threads: ComputeThreads

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.template.tokenizer

    @property
    def on_idle(self) -> Callable[[], bool]:
        """Work for times without requests (see `AsyncEngine`)."""
        return self.threads.work

    @property
    def pair(self) -> str:
        """Identifies the loaded models: learned state is valid for them only."""
        drafts = [drafter.runner for drafter in self.drafters if isinstance(drafter, ModelDrafter)]
        return "+".join(model.info.fingerprint for model in (self.target, *drafts))


def build(
    config: EngineConfig,
    sinks: Sequence[Sink] = (),
    costs: CostModel | None = None,
    task_names: TaskNames | None = None,
    progress: Progress = no_progress,
    *,
    make: MakeDecoder | None = None,
    start_ranks: StartRanks = start_ranks,
    head_makers: HeadMakers | None = None,
) -> Built:
    """Read the policies, load the models, and measure costs in synthetic rounds unless `costs` are given.

    `task_names` have the numbers of earlier task names; those of policies are added. `progress` is called with the next
    step, such as "reading weights" or "warming up", on another thread than the caller's. `make` makes the decoders of
    Llama-like models; `start_ranks` starts the processes of tensor parallelism, `head_makers` makes heads; None: those
    for their device.

    Raises:
        ModelError, PairError: a model cannot be used, or target and draft do not match.
        ConfigError, PolicyError: a setting or a policy cannot be used.
    """
    # Load in a thread that ends afterwards: a thread that has computed keeps its OpenMP workers. While those exist,
    # OpenMP counts more threads than cores and the engine's workers sleep at every barrier: rounds without drafts took
    # 8 ms instead of 1.3 ms. A first interrupt waits for the thread, a second one does not.
    load = partial(load_models, make=make, start_ranks=start_ranks, head_makers=head_makers)
    work = partial(_build, config, sinks, costs, task_names=task_names or TaskNames(), progress=progress, load=load)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adaptspec-load") as pool:
        built = pool.submit(work).result()
    built.threads.apply()  # on the caller's thread, which may run the engine
    return built


def _build(
    config: EngineConfig,
    sinks: Sequence[Sink],
    costs: CostModel | None,
    *,
    task_names: TaskNames,
    progress: Progress,
    load: Callable[..., tuple[Runner, Runner | None]],
) -> Built:
    max_threads = all_threads()  # cached here, before set_num_threads changes it
    torch.set_num_threads(config.threads or max_threads)
    # Read policies first: they can be refused at once, and loading the target may take minutes.
    available = available_drafters(draft=config.draft_model is not None)
    limits = EngineLimits.from_config(config)
    detector = load_task_detector(config, task_names)
    policies = read_start_policies(config.policy_names, config.default_policy, available, limits.max_rows, task_names)
    max_depth = min(limits.max_depth, policies.max_depth)
    progress(f"reading weights of {config.model}")
    template = load_template(config)
    target, draft = load(config, max_depth, partial(with_tokens, template=template))
    loaded = _loaded_parts(config, target, draft, template.tokenizer)
    drafters = make_drafters(loaded)

    threads = _compute_threads(config, target, draft)
    if len(threads.choices) > 1:
        progress("comparing numbers of threads")
        threads.compare()
    progress("comparing passes of several sizes")
    # The number of threads may change while serving, so passes must be equal with each of them.
    sizes = threads.measure_each(partial(equal_passes, target, seconds=SECONDS / len(threads.choices)))
    target.info = replace(target.info, equal_passes=min(sizes))

    limits = replace(limits.settled(cpu=target.device.type == "cpu"), max_depth=max_depth)
    executor = make_executor(target, drafters, limits, eager=config.enforce_eager)
    if costs is None:
        progress("warming up")
        costs = warm_up(executor, InputProcessor(target.info, template.tokenizer), limits)
    core = assemble(
        target,
        drafters,
        template.tokenizer,
        specs=policies.specs,
        costs=costs,
        sinks=sinks,
        limits=limits,
        detector=detector,
        task_names=task_names,
        executor=executor,
    )
    _compare_threads_when_idle(threads, core, costs, target)
    return Built(
        core,
        executor,
        template,
        target,
        tuple(drafters),
        policies.specs,
        costs,
        files=policies.files,
        loaded=loaded,
        threads=threads,
    )


def assemble(
    target: Runner,
    drafters: Sequence[Drafter],
    tokenizer: PreTrainedTokenizerFast,
    *,
    specs: Sequence[PolicySpec],
    costs: CostModel,
    sinks: Sequence[Sink] = (),
    limits: EngineLimits = EngineLimits(),
    detector: TaskDetector | None = None,
    task_names: TaskNames | None = None,
    timer: Callable[[], float] = time.perf_counter,
    executor: ModelExecutor | None = None,
) -> EngineCore:
    """Build an engine from loaded parts; the first live policy is the default.

    Rows have room for the deepest draft of any policy, at most `limits.max_depth`. `timer` returns seconds, by which
    rounds and decisions are timed. `executor` runs the target and the drafters; None: the one for the target's device.

    Raises:
        ConfigError: two policies have the same name, none is live, or one needs a drafter that was not loaded or that
            its method cannot verify.
    """
    task_names = task_names or TaskNames()
    names = [drafter.name for drafter in drafters]
    duplicate = next((spec.name for i, spec in enumerate(specs) if any(spec.name == s.name for s in specs[:i])), None)
    if duplicate is not None:
        raise ConfigError(f"two policies are called {duplicate}; rename one of them")
    specs = with_used([spec.with_drafters(names) for spec in specs])
    policies = {spec.name: build_policy(spec, costs, limits.max_rows, task_names) for spec in specs}
    max_depth = min(limits.max_depth, max(policy.max_depth for policy in policies.values()))
    limits = replace(limits.settled(cpu=target.device.type == "cpu"), max_depth=max_depth)
    live = [spec for spec in specs if spec.rollout == LIVE]
    if not live:
        raise ConfigError("no policy is live, but requests that name no policy need one; add a policy without rollout")
    controller = Controller(
        policies,
        live[0].name,
        names,
        limits.max_rows,
        cost=costs,
        task_names=task_names,
        rollouts={spec.name: spec.rollout for spec in specs},
        routes=routes_of(live[0]),
        timer=timer,
    )
    return EngineCore(
        executor or make_executor(target, drafters, limits, eager=False),
        controller,
        InputProcessor(target.info, tokenizer, detector),
        {spec.name: PolicySettings.of(spec) for spec in specs},
        sinks=sinks,
        limits=limits,
        timer=timer,
        costs=costs,
    )


def make_executor(target: Runner, drafters: Sequence[Drafter], limits: EngineLimits, *, eager: bool) -> ModelExecutor:
    """Make the executor. Models on a GPU capture CUDA graphs of their rounds, unless `eager`."""
    if not eager:
        # A draft model reads one or two tokens per row in a pass, a head the states of all accepted tokens.
        most = {target: limits.max_depth + 1}
        for drafter in drafters:
            if isinstance(drafter, ModelDrafter):
                runner = drafter.runner
                inner = runner.inner if isinstance(runner, SharedVocabulary) else runner
                most[inner] = limits.max_depth + 1 if isinstance(inner, HeadRunner) else 2
        for runner, tokens in most.items():
            if isinstance(runner, (GpuDecoder, GpuRecurrentHead)):
                runner.capture(limits.max_rows * tokens)
    return ModelExecutor(target, drafters, limits.max_rows)


def load_task_detector(config: EngineConfig, task_names: TaskNames) -> TaskDetector | None:
    """The configured task detector; its tasks get numbers. Raises ConfigError: its file cannot be read."""
    if not config.detect_tasks:
        return None
    detector = TaskDetector.load(config.task_detector or SHIPPED)
    for task in detector.tasks:
        task_names.add(task)
    return detector


def _loaded_parts(
    config: EngineConfig, target: Runner, draft: Runner | None, tokenizer: PreTrainedTokenizerFast
) -> Loaded:
    """The parts that drafters are made from. Raises ModelError if a model lacks tokens of its tokenizer."""
    check_tokenizer(tokenizer, target.info)
    tokenizers = None
    if draft is not None and not isinstance(draft, HeadRunner):  # a head has no tokenizer of its own
        tokenizers = tokenizer, load_tokenizer(str(config.draft_path))
        check_tokenizer(tokenizers[1], draft.info)
    counts = _corpus_counts(config, tokenizer, target.info.vocab_size)
    return Loaded(target, draft, target.info.eos_token_ids, counts, tokenizers)


def _corpus_counts(config: EngineConfig, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> CorpusTable | None:
    """The configured table, or the one in the target's folder, if there is one."""
    found = find_model(config.target_path, gguf=True)
    target_table = (found.parent if is_gguf(found) else found) / CORPUS_FILE
    if config.counts is None or (config.counts == AUTO and not target_table.is_file()):
        return None
    path = target_table if config.counts == AUTO else Path(config.counts)
    return read_corpus_table(path, fingerprint(tokenizer), vocab_size)


def _compute_threads(config: EngineConfig, target: Runner, draft: Runner | None) -> ComputeThreads:
    """The configured number of threads; on a CPU without one, a choice between one and all threads."""
    one_process = target.device.type == "cpu" and config.tensor_parallel_size == 1
    choices = (all_threads(), 1) if config.threads is None and one_process else (config.threads or all_threads(),)

    def set_threads(count: int) -> None:
        torch.set_num_threads(count)
        for runner in (target, draft):
            if isinstance(runner, LlamaCppRunner):  # the library has threads of its own
                runner.set_threads(count)

    return ComputeThreads(choices, partial(one_token_pass, target), set_threads=set_threads)


def _compare_threads_when_idle(threads: ComputeThreads, core: EngineCore, costs: CostModel, target: Runner) -> None:
    """Have numbers of threads compared while there are no requests, by passes in an empty row."""
    prefixes = core.scheduler.prefixes

    def run_pass() -> None:
        with prefixes.spare_row() as row:
            one_token_pass(target, row)

    def changed() -> None:
        costs.inflate_variance()
        # The number of threads may change the last bits, so cached tokens would differ from tokens that are read again.
        prefixes.clear()

    threads.follow(lambda: costs.resets, changed, run_pass)
