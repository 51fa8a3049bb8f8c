"""Builds an engine from names: models, drafters, policies, cost model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.control.language.loader import build_policy, load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.rollout import LIVE, Shares
from adaptspec.control.routing import check_file, routes_of, with_used
from adaptspec.control.task_detector import TaskDetector
from adaptspec.control.tasks import TaskNames
from adaptspec.drafters import available_drafters
from adaptspec.drafting.drafter import Drafter, Loaded, ModelDrafter, make_drafters
from adaptspec.drafting.ngram_index import CORPUS_FILE, CorpusTable, read_corpus_table
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.device_executor import DeviceExecutor
from adaptspec.engine.engine_config import AUTO, EngineConfig, model_path
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.model_set import load_models
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.engine.warm_up import warm_up
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.models.chat.chat_template import ChatTemplate, use_template
from adaptspec.models.compute_threads import ComputeThreads, all_threads, one_token_pass
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.llama_cpp import LlamaCppRunner
from adaptspec.models.loading import MakeDecoder
from adaptspec.models.model_files import CONFIG, read_json, weight_files
from adaptspec.models.pass_range import SECONDS, equal_passes
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import check_tokenizer, fingerprint, load_tokenizer
from adaptspec.rounds import Sink
from adaptspec.start_status import Progress, no_progress

_log = logging.getLogger(__name__)


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
    def spare(self) -> Callable[[], bool]:
        """Work for times without requests (see `AsyncEngine`)."""
        return self.threads.work

    @property
    def pair(self) -> str:
        """Identifies the loaded models: learned state is valid for them only."""
        drafts = [drafter.runner for drafter in self.drafters if isinstance(drafter, ModelDrafter)]
        return "+".join(model.info.fingerprint for model in (self.target, *drafts))


MakeExecutor = Callable[[Runner, Sequence[Drafter]], ModelExecutor]


def build(
    config: EngineConfig,
    sinks: Sequence[Sink] = (),
    costs: CostModel | None = None,
    task_names: TaskNames | None = None,
    progress: Progress = no_progress,
    *,
    make: MakeDecoder | None = None,
) -> Built:
    """Read the policies, load the models, and measure costs in synthetic rounds unless `costs` are given.

    `task_names` have the numbers of earlier task names; those of policies are added. `progress` is called with the next
    step, such as "reading weights" or "warming up", on another thread than the caller's. `make` makes the decoders of
    Llama-like models; None: those for their device.

    Raises:
        ModelError, PairError: a model cannot be used, or target and draft do not match.
        ConfigError, PolicyError: a setting or a policy cannot be used.
    """
    # Load in a thread that ends afterwards: a thread that has computed keeps its OpenMP workers. While those exist,
    # OpenMP counts more threads than cores and the engine's workers sleep at every barrier: rounds without drafts took
    # 8 ms instead of 1.3 ms. A first interrupt waits for the thread, a second one does not.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adaptspec-load") as pool:
        built = pool.submit(_build, config, sinks, costs, task_names or TaskNames(), progress, make).result()
    built.threads.apply()  # on the caller's thread, which may run the engine
    return built


def _build(  # noqa: PLR0917 - the parameters of `build`
    config: EngineConfig,
    sinks: Sequence[Sink],
    costs: CostModel | None,
    task_names: TaskNames,
    progress: Progress,
    make: MakeDecoder | None,
) -> Built:
    max_threads = all_threads()
    torch.set_num_threads(config.threads or max_threads)
    specs, files = _specs(config, task_names)
    detector = TaskDetector.load() if config.detect_tasks else None
    paths = [model_path(config.model, "target")]
    if config.draft_model is not None:
        paths.append(paths[0] if config.self_speculation else model_path(config.draft_model, "draft"))
    progress(f"reading weights of {config.model}")
    for path in paths[1:]:  # refuse a draft without weights before reading the target, which may take minutes
        found = find_model(path, gguf=True, pickles=config.allow_pickle)
        if is_gguf(found):
            read_header(found)
        else:
            weight_files(found, pickles=config.allow_pickle)
    template = _template(config, paths[0])  # an unusable template is also refused first
    tokenizer, describe = template.tokenizer, partial(_with_tokens, template)
    target, *drafts = load_models(config, paths, partial(_deepest, config, specs, task_names), describe, make)
    check_tokenizer(tokenizer, target.info)
    tokenizers = None
    for path, draft in zip(paths[1:], drafts, strict=True):
        if not isinstance(draft, HeadRunner):  # a head has no tokenizer of its own
            tokenizers = tokenizer, load_tokenizer(path)
            check_tokenizer(tokenizers[1], draft.info)
    counts = _counts(config.counts, find_model(paths[0], gguf=True), tokenizer, target.info.vocab_size)
    loaded = Loaded(target, drafts[0] if drafts else None, target.info.eos_token_ids, counts, tokenizers)
    drafters = make_drafters(loaded)
    one_process = target.device.type == "cpu" and config.tensor_parallel_size == 1
    choices = (max_threads, 1) if config.threads is None and one_process else (config.threads or max_threads,)
    runners = [target, *drafts]
    threads = ComputeThreads(choices, partial(one_token_pass, target), set_threads=partial(_set_threads, runners))
    if len(threads.choices) > 1:
        progress("comparing numbers of threads")
        threads.compare()
    progress("comparing passes of several sizes")
    sizes: list[int] = []
    for count in threads.choices:  # the number of threads may change while serving
        _set_threads(runners, count)
        sizes.append(equal_passes(target, seconds=SECONDS / len(threads.choices)))
    threads.apply()
    target.info = replace(target.info, equal_passes=min(sizes))
    deepest = _deepest(config, specs, task_names)
    limits = replace(config.limits.settled(cpu=target.device.type == "cpu"), max_depth=deepest)
    executor = make_executor(target, drafters, limits, eager=target.info.eager)
    if costs is None:
        progress("warming up")
        costs = warm_up(executor, InputProcessor(target.info, tokenizer), limits)
    core = assemble(
        target,
        drafters,
        tokenizer,
        specs=specs,
        costs=costs,
        sinks=sinks,
        limits=config.limits,
        detector=detector,
        task_names=task_names,
        make=lambda *_: executor,
    )
    _compare_threads_when_idle(threads, core, costs, target)
    return Built(core, executor, template, target, tuple(drafters), tuple(specs), costs, files, loaded, threads)


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


def _template(config: EngineConfig, path: str) -> ChatTemplate:
    """The chat template to use, with the tokenizer in `path`. Raises ModelError or ConfigError if it is unusable."""
    found = find_model(path, gguf=True)
    if not is_gguf(found):
        read_json(found / CONFIG)  # a folder without a model gets an error about that
    tokenizer = load_tokenizer(str(found))
    use_template(tokenizer, config.chat_template)
    template = ChatTemplate(tokenizer, config.chat_template_kwargs, sanitize=config.sanitize_control_tokens)
    template.check(config.chat_template)
    return template


def _set_threads(runners: Sequence[Runner], count: int) -> None:
    """Set the number of threads of torch and of libraries with their own threads."""
    torch.set_num_threads(count)
    for runner in runners:
        if isinstance(runner, LlamaCppRunner):
            runner.set_threads(count)


def _with_tokens(template: ChatTemplate, info: ModelInfo) -> ModelInfo:
    """Add what the tokenizer and its chat template define: further EOS tokens, and the number of ids with a token."""
    ids = template.tokenizer.get_vocab()
    further = (template.tokenizer.eos_token_id, ids.get(template.traits.end_of_turn or ""))
    valid = [token for token in further if token is not None and token < info.vocab_size]
    eos_token_ids = tuple(dict.fromkeys([*info.eos_token_ids, *valid]))
    known = min(max(ids.values(), default=-1) + 1, info.vocab_size)
    return replace(info, eos_token_ids=eos_token_ids, known_tokens=known)


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
    make: MakeExecutor | None = None,
) -> EngineCore:
    """Build an engine from loaded parts; the first live policy is the default.

    Rows have room for the deepest draft of any policy, at most `limits.max_depth`. `timer` returns seconds, by which
    rounds and decisions are timed. `make` makes the executor; None: the one for the target's device.

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
    deepest = max(policy.max_depth for policy in policies.values())
    limits = replace(limits.settled(cpu=target.device.type == "cpu"), max_depth=min(limits.max_depth, deepest))
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
        make(target, drafters) if make else make_executor(target, drafters, limits, eager=target.info.eager),
        controller,
        InputProcessor(target.info, tokenizer, detector),
        {spec.name: PolicySettings.of(spec) for spec in specs},
        sinks=sinks,
        limits=limits,
        timer=timer,
        costs=costs,
    )


def make_executor(target: Runner, drafters: Sequence[Drafter], limits: EngineLimits, *, eager: bool) -> ModelExecutor:
    """Make the executor for the target's device; on CUDA its rounds are captured as graphs, unless `eager`."""
    if not isinstance(target, DeviceDecoder):
        return ModelExecutor(target, drafters)
    executor = DeviceExecutor(target, drafters, limits.max_rows, limits.max_depth)
    if target.device.type == "cuda" and not eager:
        executor.capture()
    return executor


def _counts(name: str | None, folder: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> CorpusTable | None:
    """The configured table, or the one in the target's folder, if there is one."""
    folder = folder.parent if is_gguf(folder) else folder
    if name is None or (name == AUTO and not (folder / CORPUS_FILE).is_file()):
        return None
    path = folder / CORPUS_FILE if name == AUTO else Path(name)
    return read_corpus_table(path, fingerprint(tokenizer), vocab_size)


def _deepest(config: EngineConfig, specs: Sequence[PolicySpec], task_names: TaskNames) -> int:
    """Maximum draft depth of all policies."""
    policies = [build_policy(spec, _any_costs(), config.limits.max_rows, task_names.copy()) for spec in specs]
    return min(config.limits.max_depth, max(policy.max_depth for policy in policies))


def _any_costs() -> CostModel:
    """Arbitrary costs, for policies that are built only to be checked."""
    return CostModel(CostProfile((1,), (1,), ((1.0,),)))


def _specs(config: EngineConfig, task_names: TaskNames) -> tuple[list[PolicySpec], dict[str, Path]]:
    """The configured policies, the ones they use, and every shipped one that the drafters can run; the file of each."""
    available = available_drafters(draft=config.draft_model is not None)
    files: dict[str, Path] = {}
    specs = []
    trial = task_names.copy()
    configured = _configured(config, trial, available)
    used = {other.path.resolve(): other for _, spec in configured for other in spec.used.values()}
    for path, _ in configured:
        used.pop(path.resolve(), None)
    default = next(spec for _, spec in configured if spec.rollout == LIVE)
    for path, spec in [*configured, *((other.path, other) for other in used.values())]:
        check_file(spec.name, path, files.setdefault(spec.name, path))
        specs.append(spec)
        for note in spec.notes(default=spec is default):
            _log.warning("%s", note)
        build_policy(spec, _any_costs(), config.limits.max_rows, trial)
    Shares({spec.name: spec.rollout for spec in specs})  # raises if shares of canaries exceed the traffic
    for path in shipped_policies():
        spec = load_policy_spec(path)
        if spec.name not in files and set(available).issuperset(spec.needed):
            specs.append(spec.with_drafters(available))
            files[spec.name] = path
    return specs, files


def _configured(config: EngineConfig, task_names: TaskNames, available: Sequence[str]) -> list[tuple[Path, PolicySpec]]:
    """The configured policies, each file once. If all of them are canaries, the default policy is added."""
    paths = {path.resolve(): path for path in map(find_policy, config.policy_names)}
    configured = [(path, load_policy_spec(path, task_names, available)) for path in paths.values()]
    if not any(spec.rollout == LIVE for _, spec in configured):
        default = find_policy(config.default_policy)
        others = [(path, spec) for path, spec in configured if path.resolve() != default.resolve()]
        configured = [(default, load_policy_spec(default, available=available)), *others]
    return configured
