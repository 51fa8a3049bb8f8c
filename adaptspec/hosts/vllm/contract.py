"""What AdaptSpec takes for granted of vLLM, whose scheduler is no public interface: checked by name when it starts.

A scheduler that is driven wrongly verifies drafts that were never drawn, and says nothing. So what is not known here
is refused before the first request, by its name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from adaptspec.errors import ConfigError

VERSIONS = ("0.32", "0.33")  # 0.32 was run, of 0.33 the schedulers
SKIPPED = "adaptspec_skip_draft"  # set on a `SchedulerOutput`: the draft need not run in this step
EXTENSION = "adaptspec.hosts.vllm.skip_draft.SkipDraft"  # as workers are told it
ANY_VERSION = "ADAPTSPEC_ANY_VERSION"  # an environment variable: try another version, if its names are as expected

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_REQUEST = "vllm.v1.request:Request"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"

# What is overridden or called, with the parameters it is given.
_METHODS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    _SCHEDULER: {
        "__init__": ("vllm_config",),
        "_update_after_schedule": ("scheduler_output",),
        "update_draft_token_ids": ("draft_token_ids",),
        "update_from_output": ("scheduler_output", "model_runner_output"),
        "_free_request": ("request",),
        "shutdown": (),
    },
    _ASYNC: {"_update_after_schedule": ("scheduler_output",)},
}
# Which names these functions go by: attributes that they set or read, and methods that they call.
_NAMES: Mapping[str, tuple[str, ...]] = {
    # It asks us how deep to draft before it is done, and pads newcomers unless it has a table.
    f"{_SCHEDULER}.schedule": ("_update_after_schedule", "dynamic_sd_lookup", "spec_token_ids"),
    f"{_SCHEDULER}.__init__": ("requests", "num_spec_tokens", "dynamic_sd_lookup", "kv_cache_manager"),
    f"{_SCHEDULER}._update_after_schedule": ("num_computed_tokens", "num_output_placeholders", "is_prefill_chunk"),
    f"{_SCHEDULER}.update_draft_token_ids": ("spec_token_ids",),
    f"{_SCHEDULER}.update_from_output": ("req_id_to_index", "_free_request", "num_invalid_spec_tokens"),
    f"{_SCHEDULER}.finish_requests": ("_free_request",),
    # Placeholders of the next step's drafts, as many as this step is to draw: set after we were asked.
    f"{_ASYNC}._update_after_schedule": ("num_spec_tokens_to_schedule", "spec_token_ids"),
    f"{_REQUEST}.__init__": (
        "request_id",
        "sampling_params",
        "max_tokens",
        "num_prompt_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "spec_token_ids",
        "status",
    ),
    f"{_REQUEST}.num_tokens": (),
    f"{_REQUEST}.get_finished_reason": (),
}
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "num_spec_tokens_to_schedule",
        "num_invalid_spec_tokens",
    ),
    "vllm.v1.outputs:ModelRunnerOutput": ("req_id_to_index", "sampled_token_ids"),
    "vllm.v1.outputs:DraftTokenIds": ("req_ids", "draft_token_ids"),
    "vllm.config.speculative:SpeculativeConfig": (
        "method",
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
        "enable_adaptive_verification",
        "parallel_drafting",
        "draft_model_config",
    ),
    "vllm.config.scheduler:SchedulerConfig": ("max_num_seqs", "async_scheduling"),
    "vllm.config.parallel:ParallelConfig": ("data_parallel_size", "pipeline_parallel_size", "worker_extension_cls"),
    "vllm.sampling_params:SamplingParams": ("extra_args", "temperature"),
}

# Of the worker, where the draft is skipped.
_SKIPPING: Mapping[str, tuple[str, ...]] = {
    f"{_RUNNER}.execute_model": ("execute_model_state",),
    f"{_RUNNER}._input_fits_in_drafter": ("max_seq_len",),
    f"{_RUNNER}.sample_tokens": ("_input_fits_in_drafter", "execute_model_state"),
}


def check_version(version: str) -> None:
    """Raises ConfigError for a version that nobody has tried with this one, unless ADAPTSPEC_ANY_VERSION is set."""
    if not version.startswith(tuple(f"{known}." for known in VERSIONS)) and not os.environ.get(ANY_VERSION):
        raise ConfigError(
            f"vLLM {version} was never tried with this AdaptSpec, which knows {' and '.join(VERSIONS)}: install one of "
            f"these, or set {ANY_VERSION}=1 to start if all names it relies on are there"
        )


def check_names() -> None:
    """Raises ConfigError, which names all that vLLM has under another name, or with other parameters."""
    _refuse([said for place, methods in _METHODS.items() for said in _methods(place, methods)], _NAMES)


def check_runner() -> None:
    """The same, of workers that may skip the draft."""
    _refuse([], _SKIPPING)


def _refuse(missing: list[str], names: Mapping[str, tuple[str, ...]]) -> None:
    missing += [said for place, own in names.items() for said in _names(place, own)]
    missing += [said for place, own in _FIELDS.items() for said in _fields(place, own)]
    if missing:
        raise ConfigError(
            "this vLLM is not as AdaptSpec knows it, so it does not start: "
            f"{'; '.join(missing)}. Install vLLM {' or '.join(VERSIONS)}, or take --scheduler-cls away"
        )


# Whose drafters obey the depth of a step in 0.32: of others some assert that it is the one they were started with.
METHODS = ("draft_model", "eagle", "eagle3", "mtp", "ngram")


def check_config(config: Any) -> None:
    """Raises ConfigError for a `VllmConfig` that an adaptive scheduler cannot serve; says what to do."""
    speculative = config.speculative_config
    if speculative is None:
        raise ConfigError(
            "there is no drafter to decide about: give vLLM a --speculative-config, or no --scheduler-cls"
        )
    if config.parallel_config.data_parallel_size > 1:
        raise ConfigError(
            "ranks of one data-parallel engine must draft alike, or they wait for each other for ever: start one "
            "engine for each, behind a router, without --data-parallel-size"
        )
    if config.parallel_config.pipeline_parallel_size > 1:
        raise ConfigError(
            "with pipeline parallelism steps of several batches take turns, and what a step took is no one's: leave "
            "--pipeline-parallel-size out"
        )
    if speculative.method not in METHODS or speculative.parallel_drafting:
        raise ConfigError(
            f"drafters of the method {speculative.method} draft as deep as they like, or stop vLLM at any depth but "
            f"their own; these ask for it each step, if not in parallel: {', '.join(METHODS)}"
        )
    if speculative.enable_adaptive_verification:
        raise ConfigError("enable_adaptive_verification cuts drafts as well: leave it out, policies do that here")


def check_skipping(config: Any) -> None:
    """Raises ConfigError where skipping the draft at depth 0 would not be sound, or would not happen."""
    method, skip = config.speculative_config.method, "skip-draft"
    if method not in ("draft_model", "mtp") or config.use_v2_model_runner:
        raise ConfigError(
            f"{skip} is for draft models and MTP on vLLM's V1 runner: it was tried with no other. Leave it out"
        )
    if config.cache_config.enable_prefix_caching:
        raise ConfigError(
            f"{skip} leaves holes in the draft's cache, which prefix caching would hand on to other requests: add "
            f"--no-enable-prefix-caching, or leave {skip} out"
        )
    if config.parallel_config.worker_extension_cls != EXTENSION:
        raise ConfigError(f"{skip} is up to the workers as well: add --worker-extension-cls {EXTENSION}")


def _methods(place: str, methods: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for method, parameters in methods.items():
        found = _find(place, method)
        if found is None:
            yield f"{_said(place, method)} is missing"
            continue
        taken = list(inspect.signature(found).parameters)
        if tuple(taken[1 : 1 + len(parameters)]) != parameters:
            yield f"{_said(place, method)} takes ({', '.join(taken[1:])}), not ({', '.join(parameters)})"


def _names(place: str, names: tuple[str, ...]) -> Iterator[str]:
    owner, _, function = place.rpartition(".")
    found = _find(owner, function)
    if found is None:
        yield f"{_said(owner, function)} is missing"
        return
    known = set(found.__code__.co_names)
    yield from (f"{_said(owner, function)} does not use {name}" for name in names if name not in known)


def _fields(place: str, names: tuple[str, ...]) -> Iterator[str]:
    owner = _owner(place)
    if owner is None:
        yield f"{place.replace(':', '.')} is missing"
        return
    known = {field.name for field in fields(owner)} if is_dataclass(owner) else set(_annotated(owner))
    yield from (f"{_said(place, name)} is missing" for name in names if name not in known)


def _owner(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


def _find(place: str, name: str) -> Any:
    """A function of a class's own, since what it inherits is another one's. Decorators are looked through."""
    found = vars(_owner(place)).get(name) if _owner(place) is not None else None
    plain: Any = found.fget if isinstance(found, property) else found
    return None if plain is None else inspect.unwrap(plain)


def _annotated(owner: Any) -> Iterator[str]:
    for one in owner.__mro__:
        yield from vars(one).get("__annotations__", {})


def _said(place: str, name: str) -> str:
    return f"{place.rpartition(':')[2]}.{name}"
