"""Fields of other servers at values that change nothing, so that clients made for those servers need no change.

Clients of vLLM, SGLang and llama.cpp often send every field that they know at its default. Such a value is accepted;
any other value of these fields is refused, because the answer would differ from what the client asked for.

Sources: vLLM's `ChatCompletionRequest` and `CompletionRequest`, SGLang's `protocol.py`, llama.cpp's server README.
"""

from __future__ import annotations

from typing import Annotated, Any

from adaptspec.server.api.fields import Only, WireModel

Anything = Annotated[Any, Only(...)]
NoList = Annotated[Any, Only([])]
NoObject = Annotated[Any, Only({})]
Off = Annotated[Any, Only(False)]
On = Annotated[Any, Only(True)]
OnOrOff = Annotated[Any, Only(True, False)]
Zero = Annotated[Any, Only(0)]
One = Annotated[Any, Only(1)]
NoBound = Annotated[Any, Only(-1)]
NoLimit = Annotated[Any, Only(-1, 0)]


class NeutralFields(WireModel):
    """What clients of vLLM, SGLang and llama.cpp send in addition, without an effect."""

    # vLLM
    bad_words: NoList = None
    allowed_token_ids: NoList = None
    best_of: One = None
    documents: NoList = None
    enable_response_messages: Off = None
    include_reasoning: On = None
    include_stop_str_in_output: Off = None
    length_penalty: One = None
    logits_processors: NoList = None
    media_io_kwargs: NoObject = None
    mm_processor_kwargs: NoObject = None
    priority: Zero = None
    request_id: Anything = None  # the header X-Request-Id names a request here
    return_mm_kwargs: OnOrOff = None
    return_prompt_text: Off = None
    return_token_ids: Off = None
    return_token_offsets: Off = None
    return_tokens_as_token_ids: Off = None
    routed_experts_prompt_start: Zero = None
    session_id: Anything = None
    skip_special_tokens: On = None
    spaces_between_special_tokens: OnOrOff = None  # for tokenizers that write no bytes
    truncation_side: Anything = None  # it belongs to `truncate_prompt_tokens`
    use_beam_search: Off = None
    vllm_xargs: NoObject = None
    watermarking: Off = None

    # SGLang
    custom_labels: Anything = None
    custom_params: NoObject = None
    images_config: NoObject = None
    no_stop_trim: Off = None
    return_cached_tokens_details: Off = None
    return_hidden_states: Off = None
    return_meta_info: Off = None
    return_prompt_token_ids: Off = None
    return_routed_experts: Off = None
    rid: Anything = None
    routed_experts_start_len: Zero = None
    separate_reasoning: On = None
    session_params: NoObject = None
    stop_regex: NoList = None
    stream_reasoning: On = None
    use_audio_in_video: Off = None

    # llama.cpp; fields that take anything belong to a field that must be off
    backend_sampling: Off = None
    cache_prompt: OnOrOff = None
    dry_multiplier: Zero = None
    dry_allowed_length: Anything = None
    dry_base: Anything = None
    dry_penalty_last_n: Anything = None
    dry_sequence_breakers: Anything = None
    dynatemp_range: Zero = None
    dynatemp_exponent: Anything = None
    grammar_lazy: Off = None
    grammar_triggers: NoList = None
    id_slot: NoBound = None
    image_data: NoList = None
    lora: NoList = None
    min_keep: Zero = None
    mirostat: Zero = None
    mirostat_eta: Anything = None
    mirostat_tau: Anything = None
    n_cache_reuse: Anything = None
    n_discard: Zero = None
    n_indent: Zero = None
    n_keep: Zero = None
    n_predict: NoBound = None
    n_probs: Zero = None
    parse_tool_calls: On = None
    penalize_nl: Off = None
    post_sampling_probs: Off = None
    preserved_tokens: NoList = None
    reasoning_budget_tokens: NoBound = None
    reasoning_format: Annotated[Any, Only("auto")] = None
    reasoning_in_content: Off = None
    repeat_penalty: One = None
    repeat_last_n: Anything = None
    response_fields: NoList = None
    return_progress: Off = None
    return_tokens: Off = None
    t_max_predict_ms: NoLimit = None
    t_max_prompt_ms: NoLimit = None
    tfs_z: One = None
    thinking_budget_tokens: NoBound = None
    thinking_forced_open: Off = None
    timings_per_token: Off = None
    top_n_sigma: NoLimit = None
    typical_p: One = None
    xtc_probability: Zero = None
    xtc_threshold: Anything = None
