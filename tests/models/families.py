"""Tiny random models of the families that transformers computes, and of those that cannot take drafts back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

WINDOW = 6  # tokens
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 32}
HEADS = {**GROUPED, "head_dim": 8}
ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
STATES = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}

EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "Bloom": ("BloomConfig", {}),
    "Cohere": ("CohereConfig", {**GROUPED, "logit_scale": 1.0}),
    "Cohere 2": ("Cohere2Config", {**HEADS, **ALTERNATING, "logit_scale": 1.0}),
    "DeepSeek 3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 32,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "EXAONE 4": ("Exaone4Config", {**GROUPED, **ALTERNATING}),
    "Falcon": ("FalconConfig", {"ffn_hidden_size": 32}),
    "Gemma": ("GemmaConfig", HEADS),
    "Gemma 2": ("Gemma2Config", {**HEADS, **ALTERNATING}),
    "Gemma 3": ("Gemma3TextConfig", {**HEADS, **ALTERNATING}),
    "Gemma 3n": (
        "Gemma3nTextConfig",
        {
            **HEADS,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    "GLM 4": ("Glm4Config", {**HEADS, "eos_token_id": 63}),
    "GPT-2": ("GPT2Config", {}),
    "GPT-BigCode": ("GPTBigCodeConfig", {}),
    "GPT-NeoX": ("GPTNeoXConfig", {"intermediate_size": 32}),
    "GPT-OSS": ("GptOssConfig", {**HEADS, **ALTERNATING, **EXPERTS}),
    "Granite": ("GraniteConfig", GROUPED),
    "Llama 4": (
        "Llama4TextConfig",
        {**HEADS, **EXPERTS, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 32, "num_hidden_layers": 4},
    ),
    "Mixtral": ("MixtralConfig", {**GROUPED, **EXPERTS, "sliding_window": WINDOW}),
    "MPT": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "OLMo 2": ("Olmo2Config", GROUPED),
    "OLMo 3": ("Olmo3Config", {**GROUPED, **ALTERNATING}),
    "OPT": ("OPTConfig", {"ffn_dim": 32, "word_embed_proj_dim": 32}),
    "Phi": ("PhiConfig", {"intermediate_size": 32}),
    "Phi-3": ("Phi3Config", {**GROUPED, "sliding_window": WINDOW}),
    "Qwen 3 MoE": (
        "Qwen3MoeConfig",
        {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "SmolLM 3": ("SmolLM3Config", GROUPED),
    "StableLM": ("StableLmConfig", GROUPED),
    "Starcoder 2": ("Starcoder2Config", {**GROUPED, "sliding_window": WINDOW}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Bamba": ("BambaConfig", {**GROUPED, **MAMBA, "attn_layer_indices": [1]}),
    "Falcon H1": ("FalconH1Config", {**HEADS, **MAMBA, "mamba_d_ssm": 64}),
    "Jamba": (
        "JambaConfig",
        {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False},
    ),
    "LFM 2": ("Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "Mamba": ("MambaConfig", {"state_size": 4}),
    "Mamba 2": ("Mamba2Config", {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1}),
    "MiniMax": ("MiniMaxConfig", {**HEADS, **EXPERTS, **STATES}),
    "Qwen 3 Next": (
        "Qwen3NextConfig",
        {
            **HEADS,
            **STATES,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "RecurrentGemma": ("RecurrentGemmaConfig", {**GROUPED, "lru_width": 32, "attention_window_size": WINDOW}),
    "RWKV": ("RwkvConfig", {"context_length": 128}),
    "BERT, which sees ahead": ("BertConfig", {"intermediate_size": 32}),
}


def saved(folder: Path, kind: str, settings: dict[str, Any]) -> Path:
    """A tiny random model of a family, in a folder."""
    config: PretrainedConfig = getattr(transformers, kind)(**{**SIZES, **settings})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
