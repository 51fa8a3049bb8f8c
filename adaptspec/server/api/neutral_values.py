"""Values of other servers' fields that change nothing, so that clients made for those servers need no change.

Clients of vLLM, SGLang and llama.cpp often send every field that they know at its default. Such a value is accepted;
any other value of these fields is refused, because the answer would differ from what the client asked for.

Sources: vLLM's `ChatCompletionRequest` and `CompletionRequest`, SGLang's `protocol.py`, llama.cpp's server README.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ANY: tuple[object, ...] = (...,)  # no value of the field has an effect
_OFF = (False,)
_BOTH = (True, False)
_VLLM: Mapping[str, tuple[object, ...]] = {
    "bad_words": ([],),
    "best_of": (1,),
    "documents": ([],),
    "include_stop_str_in_output": _OFF,
    "length_penalty": (1,),
    "logits_processors": ([],),
    "priority": (0,),
    "return_prompt_text": _OFF,
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": _BOTH,  # it is about tokenizers that write no bytes
    "use_beam_search": _OFF,
}
_SGLANG: Mapping[str, tuple[object, ...]] = {
    "no_stop_trim": _OFF,
    "return_cached_tokens_details": _OFF,
    "return_hidden_states": _OFF,
    "return_meta_info": _OFF,
    "return_prompt_token_ids": _OFF,
    "return_routed_experts": _OFF,
}
_LLAMA_CPP: Mapping[str, tuple[object, ...]] = {
    "backend_sampling": _OFF,
    "cache_prompt": _BOTH,
    "dry_multiplier": (0,),
    "dry_allowed_length": ANY,  # this and the others with ANY belong to a field that must be off
    "dry_base": ANY,
    "dry_penalty_last_n": ANY,
    "dry_sequence_breakers": ANY,
    "dynatemp_range": (0,),
    "dynatemp_exponent": ANY,
    "id_slot": (-1,),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": ANY,
    "mirostat_tau": ANY,
    "n_discard": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "penalize_nl": _OFF,
    "post_sampling_probs": _OFF,
    "repeat_penalty": (1,),
    "repeat_last_n": ANY,
    "response_fields": ([],),
    "return_progress": _OFF,
    "return_tokens": _OFF,
    "t_max_predict_ms": (0,),
    "t_max_prompt_ms": (0,),
    "tfs_z": (1,),
    "timings_per_token": _OFF,
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": ANY,
}
NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType({**_VLLM, **_SGLANG, **_LLAMA_CPP})
