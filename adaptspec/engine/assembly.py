"""Putting an engine together from names: models, drafters, policies, cost table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostProfile, CostTable
from adaptspec.control.language.build import build_policy, load_policy_spec
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.rollout import LIVE, Shares
from adaptspec.control.tasks import Labels, TaskDetector
from adaptspec.drafters import available_drafters
from adaptspec.drafting.corpus_counts import FILE as COUNTS
from adaptspec.drafting.corpus_counts import CorpusCounts, read_corpus_counts
from adaptspec.drafting.drafter import Drafter, Loaded, ModelDrafter, make_drafters
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.device_executor import DeviceExecutor
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.profiler import profiled_costs, warm_up
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import BUCKETS, DeviceDecoder, beside_cache, device_decoder
from adaptspec.gpu.follower import lead
from adaptspec.gpu.ranks import ALONE, Group
from adaptspec.models.config import WHOLE, DecoderConfig
from adaptspec.models.kv_cache import CacheLimits, CachePlan, bytes_for_cache
from adaptspec.models.loading import (
    DTYPES,
    LoadedModel,
    MakeDecoder,
    check_parts,
    device_of,
    load_model,
    plain_decoder,
)
from adaptspec.models.model_files import resolve_model
from adaptspec.models.quantized import PREFIX
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.tokenization import check_pair, check_tokenizer, fingerprint, load_tokenizer
from adaptspec.models.weights import DecoderWeights
from adaptspec.types import Sink

BUNDLED = "bundled"
AUTO = "auto"


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and how. `model` and `draft` are directories, hub ids, or "bundled".

    `draft` "quantized:int8" or "quantized:int4" is the model itself in fewer bits; "auto" is the bundled draft for the
    bundled model and none for any other. `policies` are names of shipped policies or paths of YAML files; the first is
    the default for requests that name none (left empty: `goodput`, or `goodput-ngram` without a draft model), and every
    shipped policy whose drafters are at hand can be asked for by name. `counts` is a file of a corpus's counts for the
    counts drafter; "auto" is that in the model's folder, if there is one. `detect_tasks`: the task of a request
    that names none is read off its prompt. `eager`: no CUDA graphs are captured. `draft_device`: where
    the draft model is, if not with the target. `tensor_parallel_size`: devices that share the target, from this one on.
    `exact`: on CUDA, "depths" keeps texts the same whatever is drafted, "strict" whatever else is in the batch, too.
    """

    model: str = BUNDLED
    draft: str | None = AUTO
    policies: tuple[str, ...] = ()
    device: str = AUTO
    dtype: str = AUTO
    context: int | None = None
    cache_tokens: int | None = None
    limits: EngineLimits = EngineLimits()
    detect_tasks: bool = True
    counts: str | None = AUTO
    eager: bool = False
    draft_device: str | None = None
    tensor_parallel_size: int = 1
    exact: Literal["depths", "strict"] = "depths"

    @property
    def draft_model(self) -> str | None:
        if self.draft == AUTO:
            return BUNDLED if self.model == BUNDLED else None
        return self.draft

    @property
    def quantized(self) -> str | None:
        """In which kind of weights the model drafts for itself, if it does."""
        name = self.draft_model or ""
        return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None

    @property
    def policy_names(self) -> tuple[str, ...]:
        return self.policies or (self.default_policy,)

    @property
    def default_policy(self) -> str:
        """What serves requests that name no policy, if no live one is asked for."""
        return "goodput" if self.draft_model is not None else "goodput-ngram"


@dataclass(frozen=True)
class Built:
    """An engine ready to run, with the tokenizer that speaks for it."""

    core: EngineCore
    tokenizer: PreTrainedTokenizerFast
    target: Runner
    drafters: tuple[Drafter, ...]
    specs: tuple[PolicySpec, ...]
    costs: CostTable
    files: Mapping[str, Path]  # where each policy was read from, by its name
    loaded: Loaded  # what further drafters may be made from

    @property
    def pair(self) -> str:
        """Tells the loaded models apart from others: what is learned holds for them only."""
        drafts = [drafter.runner for drafter in self.drafters if isinstance(drafter, ModelDrafter)]
        return "+".join(model.info.fingerprint for model in (self.target, *drafts))


Costs = Callable[[Runner, Sequence[Drafter], int], CostTable]


def build(
    config: EngineConfig, sinks: Sequence[Sink] = (), costs: Costs = profiled_costs, labels: Labels | None = None
) -> Built:
    """Read the policies, load the models, and have their `costs`: of this machine's cache, or measured now.

    `labels` have the numbers of names from before; those of policies are added.

    Raises:
        ModelError, PairError: a model cannot be used, or the two do not belong together.
        ConfigError, PolicyError: a setting or a policy cannot be used.
    """
    # In a thread that ends with loading: threads that have computed keep workers of their own. While those exist OpenMP
    # counts more threads than cores, and the engine's sleep at every barrier: plain rounds took 8 ms in place of 1.3.
    # An interrupt waits for it, a second one does not.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adaptspec-load") as alone:
        return alone.submit(_build, config, sinks, costs, labels or Labels()).result()


def _build(config: EngineConfig, sinks: Sequence[Sink], costs: Costs, labels: Labels) -> Built:
    specs, files = _specs(config, labels)
    detector = TaskDetector.load() if config.detect_tasks else None
    places = [model_place(config.model, "target")]
    if config.draft_model is not None:
        places.append(places[0] if config.quantized else model_place(config.draft_model, "draft"))
    group = _ranks(config, places)
    try:
        target, *drafts = _load(config, places, group, partial(_deepest, config, specs, labels))
    except BaseException:
        group.close()
        raise
    if config.exact == "strict" and not isinstance(target, DeviceDecoder):
        raise ConfigError(
            "--exact strict shapes the passes of Llama-like models on CUDA; leave it out here (on a CPU in float32 no "
            "batch has been seen to change a text, but products of other sizes may round in other ways)"
        )
    tokenizer = load_tokenizer(places[0])
    check_tokenizer(tokenizer, target.info)
    for place, draft in zip(places[1:], drafts, strict=True):
        check_pair(tokenizer, load_tokenizer(place), target.info, draft.info)
    counts = _counts(config.counts, resolve_model(places[0]), tokenizer, target.info.vocab_size)
    loaded = Loaded(target, drafts[0] if drafts else None, target.info.eos_token_ids, counts)
    drafters = make_drafters(loaded)
    table = costs(target, drafters, config.limits.max_rows)
    warm_up(target, drafters)
    core = assemble(
        target,
        drafters,
        tokenizer,
        specs=specs,
        costs=table,
        sinks=sinks,
        limits=config.limits,
        detector=detector,
        labels=labels,
        eager=config.eager,
    )
    return Built(core, tokenizer, target, tuple(drafters), tuple(specs), table, files, loaded)


def assemble(
    target: Runner,
    drafters: Sequence[Drafter],
    tokenizer: PreTrainedTokenizerFast,
    *,
    specs: Sequence[PolicySpec],
    costs: CostTable,
    sinks: Sequence[Sink] = (),
    limits: EngineLimits = EngineLimits(),
    detector: TaskDetector | None = None,
    labels: Labels | None = None,
    timer: Callable[[], float] = time.perf_counter,
    eager: bool = False,
) -> EngineCore:
    """An engine from parts that are already loaded; the first policy that is live is the default.

    Rows get room for the deepest draft that any policy may ask for, at most `limits.max_depth`. `timer` gives the
    seconds that rounds are timed by.

    Raises:
        ConfigError: two policies have one name, none is live, or one needs a drafter that is not there or that its
            method cannot judge.
    """
    labels = labels or Labels()
    policies = {spec.name: build_policy(spec, costs, limits.max_rows, labels) for spec in specs}
    if len(policies) < len(specs):
        twice = next(spec.name for i, spec in enumerate(specs) if any(spec.name == s.name for s in specs[:i]))
        raise ConfigError(f"two policies are called {twice}; rename one of them")
    deepest = max(policy.max_depth for policy in policies.values())
    limits = replace(limits.settled(cpu=target.device.type == "cpu"), max_depth=min(limits.max_depth, deepest))
    names = [drafter.name for drafter in drafters]
    live = [spec.name for spec in specs if spec.rollout == LIVE]
    if not live:
        raise ConfigError("no policy is live: requests that name none need one; give a policy without rollout")
    rollouts = {spec.name: spec.rollout for spec in specs}
    controller = Controller(policies, live[0], names, limits.max_rows, cost=costs, labels=labels, rollouts=rollouts)
    return EngineCore(
        make_executor(target, drafters, limits, eager=eager),
        controller,
        InputProcessor(target.info, tokenizer, detector),
        {spec.name: TaskMethods.of(spec) for spec in specs},
        sinks=sinks,
        limits=limits,
        timer=timer,
    )


def make_executor(target: Runner, drafters: Sequence[Drafter], limits: EngineLimits, *, eager: bool) -> ModelExecutor:
    """The one for the device that the target is on; on CUDA its rounds are captured, unless `eager`."""
    if not isinstance(target, DeviceDecoder):
        return ModelExecutor(target, drafters)
    executor = DeviceExecutor(target, drafters, limits.max_rows, limits.max_depth)
    if target.device.type == "cuda" and not eager:
        executor.capture()
    return executor


def model_place(name: str, role: str) -> str:
    """The directory of the bundled `role` ("target" or "draft") for "bundled", any other name as it is."""
    return str(Path(__file__).parents[1] / "models" / "bundled" / role) if name == BUNDLED else name


def _counts(
    wanted: str | None, folder: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int
) -> CorpusCounts | None:
    """Those asked for, or that lie in the target's folder."""
    if wanted is None or (wanted == AUTO and not (folder / COUNTS).is_file()):
        return None
    path = folder / COUNTS if wanted == AUTO else Path(wanted)
    return read_corpus_counts(path, fingerprint(tokenizer), vocab_size)


def _ranks(config: EngineConfig, places: Sequence[str]) -> Group:
    """Those that share the target; what cannot be shared is refused before they start."""
    if config.quantized and (config.tensor_parallel_size > 1 or config.draft_device):
        raise ConfigError(
            f"--draft {config.draft} is made of the model that is here, whole: it goes neither with "
            "--tensor-parallel-size nor with --draft-device; leave those out, or give a draft model"
        )
    if config.tensor_parallel_size == 1:
        return ALONE
    check_parts(places[0], config.tensor_parallel_size)
    return lead(config.tensor_parallel_size, device_of(config.device))


def _load(config: EngineConfig, places: Sequence[str], group: Group, deepest: Callable[[], int]) -> list[Runner]:
    """The target and, if there is a second place, its draft. All weights are loaded before any cache is sized."""
    group.tell("load", places[0], config.dtype)
    makes: list[MakeDecoder] = (
        [decoder] * 2 if group is ALONE else [partial(device_decoder, group=group), device_decoder]
    )
    parts, where = (group.part, WHOLE), (config.device, config.draft_device or config.device)
    own = places[:1] if config.quantized else places
    models = [
        load_model(place, device=device, dtype=config.dtype, make=make, part=part)
        for place, device, make, part in zip(own, where, makes, parts, strict=False)
    ]
    if config.quantized:
        models.append(_quantized(models[0], config.quantized))
    models[0] = replace(models[0], info=replace(models[0].info, strict=config.exact == "strict"))
    answers, tokens = group.answers(), {}
    for device in dict.fromkeys(model.device for model in models):
        # What memory is left on it, its models share so that each holds as many tokens, on all ranks the same.
        mine = [model for model in models if model.device == device]
        left = min([bytes_for_cache(device), *(answers if device == models[0].device else ())])
        left -= sum(_beside_cache(model, config, deepest) for model in mine)
        tokens[device] = max(0, left) // sum(model.bytes_per_token for model in mine)
    limits = CacheLimits(config.limits.max_rows, config.cache_tokens, config.context)
    runners: list[Runner] = []
    for model in models:
        runners.append(model.runner(replace(limits, room=tokens[model.device] * model.bytes_per_token)))
        # A draft of a shorter context drafts as far as it reaches; a longer one than the target's is of no use.
        limits = replace(limits, context=runners[0].info.context, context_is_ceiling=True)
    return runners


def _quantized(model: LoadedModel, kind: str) -> LoadedModel:
    if model.quantized is None:
        raise ConfigError(f"{model.folder}: only Llama-like models can draft for themselves; use a draft model")
    return model.quantized(kind)


def _beside_cache(model: LoadedModel, config: EngineConfig, deepest: Callable[[], int]) -> int:
    """Bytes that rounds take on a device; where memory is the system's, nobody counts."""
    if model.config is None or model.device.type == "cpu":
        return 0
    limits, places = config.limits.settled(cpu=False), min(config.context or model.info.context, model.info.context)
    least = BUCKETS[-1] if model.info.strict else 1
    verified, asked = max(limits.max_rows * (deepest() + 1), least), max(limits.max_rows, least)
    passes = (verified, verified), (max(limits.prefill_tokens, least), asked)
    return beside_cache(model.config, DTYPES[model.info.dtype], places, passes)


def _deepest(config: EngineConfig, specs: Sequence[PolicySpec], labels: Labels) -> int:
    """The deepest draft that any of them may ask for."""
    policies = [build_policy(spec, _any_costs(), config.limits.max_rows, labels.copy()) for spec in specs]
    return min(config.limits.max_depth, max(policy.max_depth for policy in policies))


def _any_costs() -> CostTable:
    """For policies that only tell of themselves."""
    return CostTable(CostProfile((1,), (1,), ((1.0,),)))


def decoder(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
    """The decoder for the device that the weights are on."""
    make = plain_decoder if weights.embedding.device.type == "cpu" else device_decoder
    return make(info, config, weights, plan)


def _specs(config: EngineConfig, labels: Labels) -> tuple[list[PolicySpec], dict[str, Path]]:
    """The policies asked for, then every shipped one that the drafters to come can run; and the file of each."""
    here = available_drafters(draft=config.draft_model is not None)
    wanted: dict[str, Path] = {}
    specs = []
    trial = labels.copy()
    for path, spec in _asked(config, trial, here):
        if spec.name in wanted:
            raise ConfigError(
                f"{wanted[spec.name]} and {path} both hold a policy called {spec.name}; rename one (metadata.name)"
            )
        wanted[spec.name] = path
        specs.append(spec)
        policy = build_policy(spec, _any_costs(), config.limits.max_rows, trial)
        missing = [name for name in policy.drafters if policy.max_depth and name not in here]
        if missing:
            raise ConfigError(
                f"{path}: a policy that it uses drafts with {missing[0]}, which is not here (--draft DIR)"
            )
    Shares({spec.name: spec.rollout for spec in specs})  # refuses canaries that want more than there is
    for path in shipped_policies():
        spec = load_policy_spec(path)
        if spec.name not in wanted and set(here).issuperset(spec.needed):
            specs.append(spec)
            wanted[spec.name] = path
    return specs, wanted


def _asked(config: EngineConfig, labels: Labels, here: Sequence[str]) -> list[tuple[Path, PolicySpec]]:
    """The policies asked for, each file once. Canaries and shadows alone leave the default what it is without them."""
    paths = {path.resolve(): path for path in map(find_policy, config.policy_names)}
    asked = [(path, load_policy_spec(path, labels, here)) for path in paths.values()]
    if not any(spec.rollout == LIVE for _, spec in asked):
        default = find_policy(config.default_policy)
        others = [(path, spec) for path, spec in asked if path.resolve() != default.resolve()]
        asked = [(default, load_policy_spec(default)), *others]
    return asked
