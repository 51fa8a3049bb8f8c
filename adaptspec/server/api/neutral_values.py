"""Values of other servers' fields that change nothing, so that clients made for those servers need no change.

Clients of vLLM, SGLang and llama.cpp often send every field that they know at its default. Such a value is accepted;
any other value of these fields is refused, because the answer would differ from what the client asked for.

Sources: vLLM's `ChatCompletionRequest` and `CompletionRequest`, SGLang's `protocol.py`, llama.cpp's server README.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ANY_VALUE: tuple[object, ...] = (...,)  # no value of the field has an effect
_OFF = (False,)
_BOTH = (True, False)
_VLLM: Mapping[str, tuple[object, ...]] = {
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "best_of": (1,),
    "documents": ([],),
    "enable_response_messages": _OFF,
    "include_reasoning": (True,),
    "include_stop_str_in_output": _OFF,
    "length_penalty": (1,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "request_id": ANY_VALUE,  # the header X-Request-Id names a request here
    "return_mm_kwargs": _BOTH,
    "return_prompt_text": _OFF,
    "return_token_ids": _OFF,
    "return_token_offsets": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "routed_experts_prompt_start": (0,),
    "session_id": ANY_VALUE,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": _BOTH,  # it is about tokenizers that write no bytes
    "truncation_side": ANY_VALUE,  # it belongs to `truncate_prompt_tokens`
    "use_beam_search": _OFF,
    "vllm_xargs": ({},),
    "watermarking": _OFF,
}
_SGLANG: Mapping[str, tuple[object, ...]] = {
    "custom_labels": ANY_VALUE,
    "custom_params": ({},),
    "images_config": ({},),
    "no_stop_trim": _OFF,
    "return_cached_tokens_details": _OFF,
    "return_hidden_states": _OFF,
    "return_meta_info": _OFF,
    "return_prompt_token_ids": _OFF,
    "return_routed_experts": _OFF,
    "rid": ANY_VALUE,
    "routed_experts_start_len": (0,),
    "separate_reasoning": (True,),
    "session_params": ({},),
    "stop_regex": ([],),
    "stream_reasoning": (True,),
    "use_audio_in_video": _OFF,
}
_LLAMA_CPP: Mapping[str, tuple[object, ...]] = {
    "backend_sampling": _OFF,
    "cache_prompt": _BOTH,
    "dry_multiplier": (0,),
    "dry_allowed_length": ANY_VALUE,  # this and the others with ANY_VALUE belong to a field that must be off
    "dry_base": ANY_VALUE,
    "dry_penalty_last_n": ANY_VALUE,
    "dry_sequence_breakers": ANY_VALUE,
    "dynatemp_range": (0,),
    "dynatemp_exponent": ANY_VALUE,
    "grammar_lazy": _OFF,
    "grammar_triggers": ([],),
    "id_slot": (-1,),
    "image_data": ([],),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": ANY_VALUE,
    "mirostat_tau": ANY_VALUE,
    "n_cache_reuse": ANY_VALUE,
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "parse_tool_calls": (True,),
    "penalize_nl": _OFF,
    "post_sampling_probs": _OFF,
    "preserved_tokens": ([],),
    "reasoning_budget_tokens": (-1,),
    "reasoning_format": ("auto",),
    "reasoning_in_content": _OFF,
    "repeat_penalty": (1,),
    "repeat_last_n": ANY_VALUE,
    "response_fields": ([],),
    "return_progress": _OFF,
    "return_tokens": _OFF,
    "t_max_predict_ms": (-1, 0),
    "t_max_prompt_ms": (-1, 0),
    "tfs_z": (1,),
    "thinking_budget_tokens": (-1,),
    "thinking_forced_open": _OFF,
    "timings_per_token": _OFF,
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": ANY_VALUE,
}
NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType({**_VLLM, **_SGLANG, **_LLAMA_CPP})
