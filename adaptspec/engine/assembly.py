"""Putting an engine together from names: models, drafters, policies, cost model."""

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
from adaptspec.engine.engine_config import AUTO, EngineConfig, model_place
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
    """An engine ready to run, with the chat template and the tokenizer that speak for it."""

    core: EngineCore
    executor: ModelExecutor
    template: ChatTemplate
    target: Runner
    drafters: tuple[Drafter, ...]
    specs: tuple[PolicySpec, ...]
    costs: CostModel
    files: Mapping[str, Path]  # where each policy was read from, by its name
    loaded: Loaded  # what further drafters may be made from
    threads: ComputeThreads

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.template.tokenizer

    @property
    def spare(self) -> Callable[[], bool]:
        """What can be done while there are no requests (see `AsyncEngine`)."""
        return self.threads.work

    @property
    def pair(self) -> str:
        """Tells the loaded models apart from others: what is learned holds for them only."""
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
    """Read the policies, load the models, and run synthetic rounds that say what rounds take, unless `costs` do.

    `task_names` have the numbers of names from before; those of policies are added. `progress` is called with the next
    step, such as "reading weights" or "warming up", on another thread than the caller's. `make` makes
    the decoders of Llama-like models; None: those for their device.

    Raises:
        ModelError, PairError: a model cannot be used, or the two do not belong together.
        ConfigError, PolicyError: a setting or a policy cannot be used.
    """
    # In a thread that ends with loading: threads that have computed keep workers of their own. While those exist OpenMP
    # counts more threads than cores, and the engine's sleep at every barrier: plain rounds took 8 ms in place of 1.3.
    # An interrupt waits for it, a second one does not.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adaptspec-load") as alone:
        built = alone.submit(_build, config, sinks, costs, task_names or TaskNames(), progress, make).result()
    built.threads.apply()  # on the caller's thread, which may run the engine
    return built


def _build(  # noqa: PLR0917 - those of `build`
    config: EngineConfig,
    sinks: Sequence[Sink],
    costs: CostModel | None,
    task_names: TaskNames,
    progress: Progress,
    make: MakeDecoder | None,
) -> Built:
    most = all_threads()
    torch.set_num_threads(config.threads or most)
    specs, files = _specs(config, task_names)
    detector = TaskDetector.load() if config.detect_tasks else None
    places = [model_place(config.model, "target")]
    if config.draft_model is not None:
        places.append(places[0] if config.own_draft else model_place(config.draft_model, "draft"))
    progress(f"reading weights of {config.model}")
    for place in places[1:]:  # a draft without weights is refused before the target is read, which may take minutes
        found = find_model(place, gguf=True, pickles=config.allow_pickle)
        if is_gguf(found):
            read_header(found)
        else:
            weight_files(found, pickles=config.allow_pickle)
    template = _template(config, places[0])  # which is refused before the target is read, too
    tokenizer, described = template.tokenizer, partial(_with_tokens, template)
    target, *drafts = load_models(config, places, partial(_deepest, config, specs, task_names), described, make)
    check_tokenizer(tokenizer, target.info)
    tokenizers = None
    for place, draft in zip(places[1:], drafts, strict=True):
        if not isinstance(draft, HeadRunner):  # a head has no tokenizer of its own
            tokenizers = tokenizer, load_tokenizer(place)
            check_tokenizer(tokenizers[1], draft.info)
    counts = _counts(config.counts, find_model(places[0], gguf=True), tokenizer, target.info.vocab_size)
    loaded = Loaded(target, drafts[0] if drafts else None, target.info.eos_token_ids, counts, tokenizers)
    drafters = make_drafters(loaded)
    one_process = target.device.type == "cpu" and config.tensor_parallel_size == 1
    choices = (most, 1) if config.threads is None and one_process else (config.threads or most,)
    runners = [target, *drafts]
    threads = ComputeThreads(choices, partial(one_token_pass, target), set_threads=partial(_set_threads, runners))
    if len(threads.choices) > 1:
        progress("comparing numbers of threads")
        threads.compare()
    progress("comparing passes of several sizes")
    sizes: list[int] = []
    for count in threads.choices:  # which may change later
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
    _follow(threads, core, costs, target)
    return Built(core, executor, template, target, tuple(drafters), tuple(specs), costs, files, loaded, threads)


def _follow(threads: ComputeThreads, core: EngineCore, costs: CostModel, target: Runner) -> None:
    """Compare numbers of threads between requests, on an empty row."""
    prefixes = core.scheduler.prefixes

    def run_pass() -> None:
        with prefixes.spare_row() as row:
            one_token_pass(target, row)

    def changed() -> None:
        costs.inflate_variance()
        # Another number of threads may change the last bits: cached tokens would differ from tokens read anew.
        prefixes.clear()

    threads.follow(lambda: costs.resets, changed, run_pass)


def _template(config: EngineConfig, place: str) -> ChatTemplate:
    """The chat template to use, with the tokenizer in `place`. Raises ModelError or ConfigError: it cannot be used."""
    found = find_model(place, gguf=True)
    if not is_gguf(found):
        read_json(found / CONFIG)  # what is no model at all is refused as such
    tokenizer = load_tokenizer(str(found))
    use_template(tokenizer, config.chat_template)
    template = ChatTemplate(tokenizer, config.chat_template_kwargs, sanitize=config.sanitize_control_tokens)
    template.check(config.chat_template)
    return template


def _set_threads(runners: Sequence[Runner], count: int) -> None:
    """Have torch, and libraries with threads of their own, compute with so many."""
    torch.set_num_threads(count)
    for runner in runners:
        if isinstance(runner, LlamaCppRunner):
            runner.set_threads(count)


def _with_tokens(template: ChatTemplate, info: ModelInfo) -> ModelInfo:
    """What a tokenizer and its chat template say of a model: more tokens that end a text, and which ids are padding."""
    ids = template.tokenizer.get_vocab()
    more = (template.tokenizer.eos_token_id, ids.get(template.traits.end_of_turn or ""))
    ends = dict.fromkeys([*info.eos_token_ids, *(one for one in more if one is not None and one < info.vocab_size)])
    known = min(max(ids.values(), default=-1) + 1, info.vocab_size)
    return replace(info, eos_token_ids=tuple(ends), known_tokens=known)


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
    """An engine from parts that are already loaded; the first policy that is live is the default.

    Rows get room for the deepest draft that any policy may ask for, at most `limits.max_depth`. `timer` gives the
    seconds that rounds and decisions are timed by. `make` makes the executor; None: the one for the target's device.

    Raises:
        ConfigError: two policies have one name, none is live, or one needs a drafter that is not there or that its
            method cannot judge.
    """
    task_names = task_names or TaskNames()
    names = [drafter.name for drafter in drafters]
    twice = next((spec.name for i, spec in enumerate(specs) if any(spec.name == s.name for s in specs[:i])), None)
    if twice is not None:
        raise ConfigError(f"two policies are called {twice}; rename one of them")
    specs = with_used([spec.with_drafters(names) for spec in specs])
    policies = {spec.name: build_policy(spec, costs, limits.max_rows, task_names) for spec in specs}
    deepest = max(policy.max_depth for policy in policies.values())
    limits = replace(limits.settled(cpu=target.device.type == "cpu"), max_depth=min(limits.max_depth, deepest))
    live = [spec for spec in specs if spec.rollout == LIVE]
    if not live:
        raise ConfigError("no policy is live: requests that name none need one; give a policy without rollout")
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
    """The one for the device that the target is on; on CUDA its rounds are captured, unless `eager`."""
    if not isinstance(target, DeviceDecoder):
        return ModelExecutor(target, drafters)
    executor = DeviceExecutor(target, drafters, limits.max_rows, limits.max_depth)
    if target.device.type == "cuda" and not eager:
        executor.capture()
    return executor


def _counts(
    wanted: str | None, folder: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int
) -> CorpusTable | None:
    """Those asked for, or that lie in the target's folder."""
    folder = folder.parent if is_gguf(folder) else folder
    if wanted is None or (wanted == AUTO and not (folder / CORPUS_FILE).is_file()):
        return None
    path = folder / CORPUS_FILE if wanted == AUTO else Path(wanted)
    return read_corpus_table(path, fingerprint(tokenizer), vocab_size)


def _deepest(config: EngineConfig, specs: Sequence[PolicySpec], task_names: TaskNames) -> int:
    """The deepest draft that any of them may ask for."""
    policies = [build_policy(spec, _any_costs(), config.limits.max_rows, task_names.copy()) for spec in specs]
    return min(config.limits.max_depth, max(policy.max_depth for policy in policies))


def _any_costs() -> CostModel:
    """For policies that are built only to be checked."""
    return CostModel(CostProfile((1,), (1,), ((1.0,),)))


def _specs(config: EngineConfig, task_names: TaskNames) -> tuple[list[PolicySpec], dict[str, Path]]:
    """The policies asked for, those that they use, then every shipped one that the drafters to come can run; and the
    file of each.
    """
    available = available_drafters(draft=config.draft_model is not None)
    wanted: dict[str, Path] = {}
    specs = []
    trial = task_names.copy()
    asked = _asked(config, trial, available)
    used = {other.path.resolve(): other for _, spec in asked for other in spec.used.values()}
    for path, _ in asked:
        used.pop(path.resolve(), None)
    default = next(spec for _, spec in asked if spec.rollout == LIVE)
    for path, spec in [*asked, *((other.path, other) for other in used.values())]:
        check_file(spec.name, path, wanted.setdefault(spec.name, path))
        specs.append(spec)
        for note in spec.notes(default=spec is default):
            _log.warning("%s", note)
        build_policy(spec, _any_costs(), config.limits.max_rows, trial)
    Shares({spec.name: spec.rollout for spec in specs})  # refuses canaries that want more than there is
    for path in shipped_policies():
        spec = load_policy_spec(path)
        if spec.name not in wanted and set(available).issuperset(spec.needed):
            specs.append(spec.with_drafters(available))
            wanted[spec.name] = path
    return specs, wanted


def _asked(config: EngineConfig, task_names: TaskNames, available: Sequence[str]) -> list[tuple[Path, PolicySpec]]:
    """The policies asked for, each file once. Canaries alone leave the default what it is without them."""
    paths = {path.resolve(): path for path in map(find_policy, config.policy_names)}
    asked = [(path, load_policy_spec(path, task_names, available)) for path in paths.values()]
    if not any(spec.rollout == LIVE for _, spec in asked):
        default = find_policy(config.default_policy)
        others = [(path, spec) for path, spec in asked if path.resolve() != default.resolve()]
        asked = [(default, load_policy_spec(default, available=available)), *others]
    return asked
