"""What to serve a model with on this machine: data types, runners and drafts, measured under the policy to be written.

Every candidate answers the same prompts in turn with plain decoding. A heavier candidate is preferred only where it is
faster outside noise, so repeated runs give the same advice. The answer may be not to speculate.
"""

from __future__ import annotations

import gc
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from adaptspec.analysis.intervals import Ratio
from adaptspec.bench.contenders import EngineContender, policy_engine
from adaptspec.bench.core import CompareSettings, Result, compare, groups_of
from adaptspec.bench.setup import described, processor
from adaptspec.bench.workloads import Workloads
from adaptspec.config import AUTO, Dtype, EngineConfig, model_path
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.drafters import Kind, default_drafters, kind_of
from adaptspec.drafting.drafter import ModelDrafter
from adaptspec.engine.build import Built, build
from adaptspec.errors import AdaptSpecError, ConfigError
from adaptspec.models.gguf import is_gguf, parts, read_header
from adaptspec.models.layers import has_products
from adaptspec.models.llama_cpp import LlamaCppRunner
from adaptspec.models.loading import DTYPES
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.pass_range import exactness
from adaptspec.models.runner import Runner
from adaptspec.models.self_speculation import FIRST_LAYERS, MTP, QUANTIZED
from adaptspec.models.source import find_model
from adaptspec.quantity import quantity
from adaptspec.request import SamplingParams
from adaptspec.start_status import Progress, no_progress
from adaptspec.tables import Table

PLAIN = "plain"
# Speculation is advised from this gain on.
_WORTH = 1.03
# Fewer prompts have no interval that means anything.
_LEAST_PROMPTS = 4
_ALL = "all"
# Of an answer, however little time there is: lookups find nothing in less.
_LEAST_TOKENS = 32
# Answers take longer than their plain passes (prompts are read, and a policy tries what does not pay), and a load may
# take longer than the one before.
_SLOWER = 1.5
# Parameters of a GGUF file that torch loads within seconds.
_SMALL = 5e8
# What would help is estimated for drafts right so often; a draft model has this share of the target's parameters.
_RIGHT, _SHARE, _DEPTHS = 0.7, 0.1, range(1, 13)
_NO_TIME = "there was no time left; give more --seconds"


@dataclass(frozen=True)
class DoctorSettings:
    """`tokens` per answer at most; `seconds` that all of it may take, where loading the model once fits."""

    tokens: int = 128
    seconds: float = 90.0


@dataclass(frozen=True)
class Candidate:
    """A way to serve the model, and what was measured of it; without `drafters` it is plain decoding."""

    config: EngineConfig
    setup: Mapping[str, Any]
    drafters: tuple[str, ...]
    memory: int  # bytes of a draft's weights in addition to the target's, estimated
    result: Result  # next to plain decoding of the same configuration

    @property
    def draft(self) -> str | None:
        return self.config.draft if any(kind_of(name) is not Kind.MODEL_FREE for name in self.drafters) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "setup": dict(self.setup),
            "draft": self.draft,
            "drafters": list(self.drafters),
            "memory": self.memory,
            **self.result.to_json(),
        }


@dataclass(frozen=True)
class Trial:
    """A configuration that was loaded: its candidates, plain decoding first."""

    candidates: Sequence[Candidate]
    costs: CostModel
    parameters: int
    exactness: str
    tokens: int  # per answer at most
    loading: float = 0.0  # seconds until the first prompt

    def sentence(self) -> str:
        """What was measured, in a line."""
        plain, *others = self.candidates
        setup = plain.setup
        draft = f" with {plain.config.draft}" if plain.config.draft else ""
        speeds = "; ".join(f"{' + '.join(one.drafters)}: {one.result.over_first} x" for one in others)
        return f"{_named(setup)}{draft}: plain {plain.result.tokens_per_second:.1f} tokens/s; {speeds}"


def preferred(candidates: Sequence[Candidate]) -> Candidate:
    """The first candidate that no later one is faster than outside noise: they are given from light to heavy.

    A candidate that speculates must gain `_WORTH` over its own plain decoding, too.
    """
    best = candidates[0]
    for one in candidates[1:]:
        known = len(one.result.by_group.keys() & best.result.by_group.keys()) >= _LEAST_PROMPTS
        worth = not one.drafters or one.result.over_first.mean >= _WORTH
        if known and worth and (over := one.result.over(best.result)).differs and over.mean > 1.0:
            best = one
    return best


def doctor_drafts(config: EngineConfig, given: Sequence[str]) -> list[str]:
    """The draft models to try: those given ("none": lookup alone, "all": whatever needs no folder), or else the bundled
    one and the model in 8 bits. None for a GGUF file, which drafts nothing of itself.
    """
    bundled = [config.draft_model] if config.draft_model is not None else []
    names: list[str] = []
    for name in given or [*bundled, *self_speculations(config.model)[:1]]:
        names += [*bundled, *self_speculations(config.model)] if name == _ALL else [name]
    return [name for name in dict.fromkeys(names) if name != "none"]


def self_speculations(model: str) -> list[str]:
    """All kinds of self-speculation that a model may support, as `--draft` names them."""
    found = find_model(model_path(model, "target"), gguf=True)
    if is_gguf(found):
        return []  # llama.cpp runs it whole, as it is
    layers = read_json(found / CONFIG).get("num_hidden_layers")
    half = [f"{FIRST_LAYERS}{layers // 2}"] if isinstance(layers, int) and layers > 1 else []
    return [f"{QUANTIZED}int8", f"{QUANTIZED}int4", *half, MTP]


def doctor_configs(config: EngineConfig) -> list[EngineConfig]:
    """The ways to run the model on this machine that flags leave open.

    Of a GGUF file llama.cpp and torch in its usual data type; of others, and with --runner torch, each data type for
    which this CPU has fast products. Torch takes minutes to load a large GGUF file, which is then for llama.cpp alone.
    """
    found = find_model(config.target_path, gguf=True)
    if config.dtype != AUTO or config.device not in (AUTO, "cpu") or torch.cuda.is_available():
        return [config]
    if is_gguf(found) and config.runner != "torch":
        small = config.runner == AUTO and read_header(found).parameters < _SMALL
        return [config, replace(config, runner="torch")] if small else [config]
    return [replace(config, dtype=name) for name in get_args(Dtype) if name != AUTO and has_products(DTYPES[name])]


def try_config(
    config: EngineConfig,
    workloads: Workloads,
    settings: DoctorSettings,
    *,
    tokens: int | None,
    ends: float,
    share: float,
    progress: Progress,
) -> Trial:
    """Load a configuration and measure plain decoding and its drafters, at least on one prompt.

    Measuring takes this share of the time that is left, once it is loaded, until `ends` (monotonic seconds). Answers
    have `tokens` tokens at most; None: as many as fit for each task, up to the settings' number.

    Raises:
        AdaptSpecError: the configuration cannot be used, or has no time.
    """
    began = time.monotonic()
    built = build(config, progress=progress)
    loading = time.monotonic() - began
    seconds = share * (ends - time.monotonic())
    if seconds < 0.0:
        raise ConfigError(_NO_TIME)
    groups, choices = groups_of(workloads, 1), _choices(built)
    if tokens is None:
        each = seconds / (min(len(groups), len(workloads)) * (1 + len(choices)))
        tokens = int(min(settings.tokens, max(_LEAST_TOKENS, each / (_SLOWER * built.costs.verify_seconds(1, 1)))))
    sampling = SamplingParams(tokens, 0.0)
    contenders = [
        EngineContender(_name(drafters), policy_engine(built, config, _spec(drafters), 1), built, sampling)
        for drafters in [(), *choices]
    ]
    progress(f"answering prompts: {_named(described(built, config))}")
    found = compare(contenders, groups, CompareSettings(seconds=seconds), lambda: None)
    memory = sum(_memory(config.draft, one.runner) for one in built.drafters if isinstance(one, ModelDrafter))
    setup, info = described(built, config), built.target.info
    candidates = [
        Candidate(config, setup, drafters, memory if drafters else 0, result)
        for drafters, result in zip([(), *choices], found.results, strict=True)
    ]
    return Trial(candidates, built.costs, info.parameters, exactness(info), tokens, loading)


def diagnose(
    configs: Sequence[EngineConfig],
    drafts: Sequence[str],
    workloads: Workloads,
    settings: DoctorSettings,
    done: Callable[[str], None],
    *,
    progress: Progress = no_progress,
    attempt: Callable[..., Trial] = try_config,
) -> dict[str, Any]:
    """Try the configurations by `attempt`, without a draft model, and then the drafts in the fastest of them.

    `done` gets a line on each when it is measured, `progress` a word while models load. What cannot be used, or what
    there is no time for, is left out, with the reason.

    Raises:
        AdaptSpecError: the model cannot be used at all.
    """
    ends = time.monotonic() + settings.seconds
    trials: list[Trial] = []
    unusable: dict[str, str] = {}
    loading = 0.0
    bare = [replace(config, draft=None, policy=(), max_num_seqs=1) for config in configs]
    waiting: list[tuple[str, EngineConfig | str]] = [(_dtype_or_runner(config), config) for config in bare]
    waiting += [(f"draft {draft}", draft) for draft in drafts]
    for number, (name, what) in enumerate(waiting):
        fastest = preferred([one for trial in trials for one in trial.candidates]).config if trials else bare[0]
        config = replace(fastest, draft=what) if isinstance(what, str) else what
        if trials and ends - time.monotonic() < _SLOWER * loading:
            unusable[name] = _NO_TIME
            continue
        share = 1.0 / (len(waiting) - number)
        tokens = trials[0].tokens if trials else None
        try:
            trial = attempt(config, workloads, settings, tokens=tokens, ends=ends, share=share, progress=progress)
        except AdaptSpecError as error:
            if len(waiting) == 1:
                raise
            unusable[name] = str(error)
        else:
            trials.append(trial)
            loading = max(loading, trial.loading)
            done(trial.sentence())
        gc.collect()  # weights of one configuration are gone before the next one loads
    if not trials:
        raise ConfigError("\n".join(f"{name}: {reason}" for name, reason in unusable.items()))
    return _diagnosis(trials, unusable)


def _diagnosis(trials: Sequence[Trial], unusable: Mapping[str, str]) -> dict[str, Any]:
    candidates = [one for trial in trials for one in trial.candidates]
    best = preferred(candidates)
    trial = next(trial for trial in trials if best in trial.candidates)
    plain = trial.candidates[0]
    return {
        "machine": {"processor": processor(), "threads": torch.get_num_threads()},
        "model": best.config.model,
        "file": str(find_model(best.config.target_path, gguf=True)),
        "setup": dict(best.setup),
        "dtype": best.config.dtype,
        "runner": best.config.runner,
        "exactness": trial.exactness,
        "worth": bool(best.drafters),
        "tokens": trial.tokens,
        "prompts": len(best.result.by_group),
        "best": best.to_json(),
        "plain_tokens_per_second": plain.result.tokens_per_second,
        "candidates": [one.to_json() for one in candidates],
        "unusable": dict(unusable),
        "four_tokens_over_one": trial.costs.verify_seconds(1, 4) / trial.costs.verify_seconds(1, 1),
        "would_help": would_help(trial.costs, trial.parameters, best.config.model),
        "policy": policy_text(best.drafters),
    }


def would_help(costs: CostModel, parameters: int, model: str) -> list[dict[str, Any]]:
    """What drafts could earn here by the cost of passes: the best depth's expected tokens per second over plain's."""
    one = costs.verify_seconds(1, 1)
    size = f"{parameters * _SHARE / 1e6:.3g} M parameters"
    cases = [
        (f"a draft model of {size}", "draft", "DIR", _SHARE),
        ("a head", "eagle", "DIR", _SHARE / 3),
        ("counts of texts like yours", "counts", "counts.npz", 0.0),
    ]
    found = []
    for what, kind, out, share in cases:
        command = shlex.join(["adaptspec", "train", kind, "--model", model, "--corpus", "FILE", "--out", out])
        ratios = [
            (1.0 - _RIGHT ** (depth + 1))
            / (1.0 - _RIGHT)
            * one
            / (costs.verify_seconds(1, 1 + depth) + depth * share * one)
            for depth in _DEPTHS
        ]
        found.append({"what": f"{what}, right {_RIGHT:.0%} of the time", "command": command, "over_plain": max(ratios)})
    return sorted(found, key=lambda row: -row["over_plain"])


def policy_text(drafters: Sequence[str]) -> str:
    """The policy for these drafters, in YAML; without any it is plain decoding."""
    head = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: doctor}\nspec:\n"
    if not drafters:
        return f"{head}  choose: {{algorithm: static, depth: 0}}\n"
    model = any(kind_of(name) is not Kind.MODEL_FREE for name in drafters)
    return (
        f"{head}  max-depth: {12 if model else 7}\n"
        f"  drafters: [{', '.join(drafters)}]\n"
        "  choose: goodput\n"
        f"  stop: {'marginal-goodput' if model else 'none'}\n"
    )


def doctor_report(result: Mapping[str, Any], serve: str) -> list[Table | str]:
    """The result for people; `serve` is the command that serves what was found best."""
    rows = result["candidates"]
    table = Table("configuration", "drafters", "draft weights", "tokens/s", "over plain", title="measured here")
    for row in rows:
        memory = f"{row['memory'] / 1e6:.0f} MB" if row["memory"] else ""
        ratio = str(Ratio(**row["over_first"])) if row["drafters"] else "1.00"
        speed = f"{row['tokens_per_second']:.1f}"
        table.add_row(_named(row["setup"]), _drafters(row), memory, speed, ratio)
    return [
        *_verdict(result),
        table,
        *(f"left out: {name}: {reason}" for name, reason in result["unusable"].items()),
        _cost_of_checking(result["four_tokens_over_one"]),
        f"Exactness: {result['exactness']}.",
        _helps(result["would_help"]),
        f"To serve it: {serve}",
    ]


def _verdict(result: Mapping[str, Any]) -> Iterator[str]:
    best, setup = result["best"], result["setup"]
    ratio = Ratio(**best["over_first"])
    if not result["worth"]:
        yield f"Do not speculate: nothing that was tried makes {result['model']} faster here outside noise."
    else:
        yield (
            f"Speculate with {_drafters(best)}: {result['model']} runs {ratio} x as fast here as plain decoding, one "
            f"request at a time."
        )
    answered = f"{quantity(result['prompts'], 'prompt')}, answers of at most {result['tokens']} tokens"
    yield (
        f"Fastest here: {result['file']} in {_named(setup)}: {best['tokens_per_second']:.1f} tokens per second, "
        f"{result['plain_tokens_per_second']:.1f} without speculation ({answered})."
    )
    if result["prompts"] < _LEAST_PROMPTS:
        yield "These prompts are too few to compare candidates: give more --seconds, or more --prompts."


def _helps(rows: Sequence[Mapping[str, Any]]) -> str:
    worth = [row for row in rows if row["over_plain"] >= _WORTH]
    if not worth:
        return f"No draft that is right {_RIGHT:.0%} of the time would help: checking its tokens takes too long here."
    helps = (f"{row['what']}: {row['over_plain']:.2f} x (`{row['command']}`)" for row in worth)
    return f"What would help, by the cost of passes here: {'; '.join(helps)}."


def _cost_of_checking(ratio: float) -> str:
    """What three drafted tokens add to a pass, and how often they must be accepted for that."""
    share = max(0.0, ratio - 1.0) / 3
    pays = f"drafts pay where more than {share:.0%} of them are accepted" if share < 1.0 else "no draft pays here"
    return (
        f"A pass of 4 tokens takes {ratio:.2f} x as long as one of a single token: each drafted token adds {share:.0%} "
        f"of a pass, so {pays} (not counting the time to draft them)."
    )


def _choices(built: Built) -> list[tuple[str, ...]]:
    """Drafters of the policies to try, from light to heavy: each model-free one alone, or a draft model with lookup."""
    here = default_drafters([one.name for one in built.drafters if not one.learns_from_choices])
    free = [name for name in here if kind_of(name) is Kind.MODEL_FREE]
    models = [name for name in here if name not in free]
    return [(name, *free[:1]) for name in models] or [(name,) for name in free]


def _spec(drafters: Sequence[str]) -> Any:
    return parse_policy_spec(policy_text(drafters), "doctor")


def _name(drafters: Sequence[str]) -> str:
    return " + ".join(drafters) or PLAIN


def _drafters(row: Mapping[str, Any]) -> str:
    return _name(row["drafters"]) + (f" ({row['draft']})" if row["draft"] else "")


def _named(setup: Mapping[str, Any]) -> str:
    return f"{setup['dtype']} on {setup['runner']}, {quantity(setup['threads'], 'thread')}"


def _dtype_or_runner(config: EngineConfig) -> str:
    """A short label of a configuration among those of `doctor_configs`."""
    return config.dtype if config.dtype != AUTO else "torch" if config.runner == "torch" else "the model as it is"


def _memory(draft: str | None, runner: Runner) -> int:
    """Bytes of a draft's weights, estimated from above: embeddings that a quantized draft shares are counted, too."""
    if draft is not None and draft.startswith(FIRST_LAYERS):
        return 0
    if draft is not None and isinstance(runner, LlamaCppRunner):  # it maps the file as it is
        return sum(part.stat().st_size for part in parts(find_model(model_path(draft, "draft"), gguf=True)))
    bits = torch.finfo(getattr(torch, runner.info.dtype)).bits
    if draft is not None and draft.startswith(QUANTIZED):
        bits = int(draft.removeprefix(f"{QUANTIZED}int"))
    return runner.info.parameters * bits // 8
