"""What AdaptSpec takes for granted of vLLM: its scheduler's names, and how it is set up."""

from __future__ import annotations

from typing import Any

from adaptspec.errors import ConfigError
from adaptspec.hosts.engine_contract import Contract, broken, strange_version

VERSIONS = ("0.29", "0.32", "0.33")  # 0.29 (which Ray asks for) and 0.32 were run, of 0.33 the schedulers
SKIPPED = "adaptspec_skip_draft"  # set on a `SchedulerOutput`: the draft need not run in this step
EXTENSION = "adaptspec.hosts.vllm.skip_draft.SkipDraft"  # as workers are told it

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REQUEST = "vllm.v1.request:Request"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"

SCHEDULING: Contract = {
    # It asks us how deep to draft before it is done, and pads newcomers unless it has a table.
    f"{_SCHEDULER}.schedule": ("self ...", "_update_after_schedule dynamic_sd_lookup spec_token_ids"),
    f"{_SCHEDULER}.__init__": (
        "self vllm_config ...",
        "requests num_spec_tokens dynamic_sd_lookup kv_cache_manager scheduler_config",
    ),
    f"{_SCHEDULER}._update_after_schedule": (
        "self scheduler_output ...",
        "num_computed_tokens num_output_placeholders is_prefill_chunk",
    ),
    f"{_SCHEDULER}.update_draft_token_ids": ("self draft_token_ids ...", "spec_token_ids"),
    f"{_SCHEDULER}.update_from_output": (
        "self scheduler_output model_runner_output ...",
        "req_id_to_index _free_request num_invalid_spec_tokens",
    ),
    f"{_SCHEDULER}._free_request": ("self request ...", ""),
    f"{_SCHEDULER}.finish_requests": ("self ...", "_free_request"),
    f"{_SCHEDULER}.shutdown": ("self ...", ""),
    # Placeholders of the next step's drafts, as many as this step is to draw: set after we were asked.
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule": (
        "self scheduler_output ...",
        "num_spec_tokens_to_schedule spec_token_ids",
    ),
    f"{_REQUEST}.__init__": (
        "self ...",
        "request_id sampling_params max_tokens num_prompt_tokens num_computed_tokens num_output_placeholders "
        "spec_token_ids status",
    ),
    f"{_REQUEST}.num_tokens": ("self", ""),
    f"{_REQUEST}.get_finished_reason": ("self", ""),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "",
        "num_scheduled_tokens total_num_scheduled_tokens scheduled_spec_decode_tokens num_spec_tokens_to_schedule "
        "num_invalid_spec_tokens",
    ),
    "vllm.v1.outputs:ModelRunnerOutput": ("", "req_id_to_index sampled_token_ids"),
    "vllm.v1.outputs:DraftTokenIds": ("", "req_ids draft_token_ids"),
    "vllm.config.speculative:SpeculativeConfig": (
        "",
        "method model num_speculative_tokens num_speculative_tokens_per_batch_size enable_adaptive_verification "
        "parallel_drafting draft_model_config",
    ),
    "vllm.config.vllm:VllmConfig": (
        "",
        "model_config cache_config parallel_config scheduler_config speculative_config additional_config",
    ),
    "vllm.config.vllm:VllmConfig.use_v2_model_runner": ("self", ""),
    "vllm.config.model:ModelConfig": ("", "model max_model_len"),
    "vllm.config.cache:CacheConfig": ("", "enable_prefix_caching"),
    "vllm.config.scheduler:SchedulerConfig": ("", "max_num_seqs async_scheduling"),
    "vllm.config.parallel:ParallelConfig": ("", "data_parallel_size pipeline_parallel_size worker_extension_cls"),
    "vllm.sampling_params:SamplingParams": ("", "extra_args temperature"),
}
# Of the worker, where the draft is skipped.
SKIPPING: Contract = {
    f"{_RUNNER}.execute_model": ("self ...", "execute_model_state"),
    f"{_RUNNER}._input_fits_in_drafter": ("self ...", "max_seq_len"),
    f"{_RUNNER}.sample_tokens": ("self ...", "_input_fits_in_drafter execute_model_state"),
}


def check_version(version: str) -> None:
    """Raises ConfigError for a version that nobody has tried with this one, unless ADAPTSPEC_ANY_VERSION is set."""
    strange = strange_version("vLLM", version, VERSIONS)
    if strange:
        raise ConfigError(strange)


def check_names(contract: Contract = SCHEDULING) -> None:
    """Raises ConfigError, which names all that vLLM has under another name, or with other parameters."""
    missing = "; ".join(broken(contract))
    if missing:
        raise ConfigError(
            f"this vLLM is not as AdaptSpec knows it, so it does not start: {missing}. Install vLLM "
            f"{' or '.join(VERSIONS)}, or take --scheduler-cls away"
        )


# Whose drafters obey the depth of a step in 0.32: of others some assert that it is the one they were started with.
METHODS = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
_WITH_MODEL = ("draft_model", "eagle", "eagle3")  # of their own; MTP is a part of the target
_SKIPPABLE = ("draft_model", "mtp")


def check_method(method: str, *, parallel: bool = False) -> None:
    """Raises ConfigError for a drafter that does not go by the depth of each step; `parallel`: all tokens at once."""
    if method not in METHODS or parallel:
        raise ConfigError(
            f"drafters of the method {method} draft as deep as they like, or stop vLLM at any depth but "
            f"their own; these ask for it each step, if not in parallel: {', '.join(METHODS)}"
        )


def check_start(method: str, draft: str | None, *, skip: bool) -> None:
    """Raises ConfigError for what vLLM or its scheduler would refuse at the start; `skip`: of the draft, at depth 0."""
    check_method(method)
    if draft is None and method in _WITH_MODEL:
        raise ConfigError(f"the method {method} drafts with a model of its own: name it with --draft")
    if skip:
        _check_skippable(method)


def _check_skippable(method: str, *, v2: bool = False) -> None:
    if method not in _SKIPPABLE or v2:
        raise ConfigError(
            "skip-draft is for draft models and MTP on vLLM's V1 runner: it was tried with no other. Leave it out"
        )


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
    check_method(speculative.method, parallel=speculative.parallel_drafting)
    if speculative.enable_adaptive_verification:
        raise ConfigError("enable_adaptive_verification cuts drafts as well: leave it out, policies do that here")


def check_skipping(config: Any) -> None:
    """Raises ConfigError where skipping the draft at depth 0 would not be sound, or would not happen."""
    skip = "skip-draft"
    _check_skippable(config.speculative_config.method, v2=config.use_v2_model_runner)
    if config.cache_config.enable_prefix_caching:
        raise ConfigError(
            f"{skip} leaves holes in the draft's cache, which prefix caching would hand on to other requests: add "
            f"--no-enable-prefix-caching, or leave {skip} out"
        )
    if config.parallel_config.worker_extension_cls != EXTENSION:
        raise ConfigError(f"{skip} is up to the workers as well: add --worker-extension-cls {EXTENSION}")
