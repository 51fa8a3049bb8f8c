"""Families that transformers computes: speculation leaves every token as it is, also far beyond sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

from adaptspec.drafting.drafter import DraftJob
from adaptspec.errors import ModelError
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Runner
from adaptspec.models.transformers_runner import TransformersRunner
from adaptspec.request import Request, SamplingParams
from adaptspec.trees import Tree
from adaptspec.types import Completion
from tests.engine.conftest import Dictated, make_core, run
from tests.models.packing import load_runner

WINDOW, LENGTH = 6, 24  # tokens: prompt and answer are far longer than the window
PROMPT = (5, 9, 12, 7, 5, 9, 12, 8, 33, 5, 9, 12, 7, 41, 20, 5, 9, 12, 7, 41)
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


class Recalling:
    """Drafts the rest of texts it knows, every fourth token wrong: some drafts are kept and some taken back."""

    name = "recalling"
    non_anticipating = True

    def __init__(self, texts: Sequence[tuple[int, ...]]) -> None:
        self._texts = texts

    def propose(self, job: DraftJob) -> Draft:
        drafts = np.zeros((len(job.rows), int(job.depths.max(initial=0))), dtype=np.int64)
        counts = np.zeros(len(job.rows), dtype=np.int64)
        for i, (told, depth) in enumerate(zip(job.tokens, job.depths.tolist(), strict=True)):
            for text in self._texts:
                if text[: len(told)] == tuple(told):
                    ahead = text[len(told) : len(told) + depth]
                    counts[i] = len(ahead)
                    drafts[i, : len(ahead)] = [t ^ (len(told) + j) % 4 // 3 for j, t in enumerate(ahead)]
        unknown = np.full(drafts.shape, np.nan)
        return Draft(drafts, counts, unknown, unknown)

    def cache_gap(self, row: int, length: int) -> int:
        return 0

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        pass

    def free(self, row: int) -> None:
        pass


class Branching(Recalling):
    """The same, and beside each drafted token its neighbour, of which one is right wherever the text is known."""

    def propose(self, job: DraftJob) -> Draft:
        chain = super().propose(job)
        rows, width = chain.tokens.shape
        beside = np.broadcast_to(np.arange(-1, width - 1), (rows, width))
        parents, tokens = (np.full((rows, 2 * width), fill) for fill in (-1, 0))
        for i, count in enumerate(chain.counts.tolist()):
            parents[i, : 2 * count] = np.tile(beside[i, :count], 2)
            tokens[i, : 2 * count] = np.concatenate([chain.tokens[i, :count], chain.tokens[i, :count] ^ 1])
        unknown, zeros = np.full(tokens.shape, np.nan), np.zeros_like(tokens)
        tree = Tree(parents, chain.counts, zeros, zeros)
        return Draft(tokens, 2 * chain.counts, unknown, unknown, tree=tree)


def answers(
    runner: Runner,
    tokenizer: PreTrainedTokenizerFast,
    depth: int,
    known: Sequence[Completion] = (),
    kind: type[Recalling] = Recalling,
) -> list[Completion]:
    """A greedy and a sampled answer, side by side, with drafts of `depth` tokens."""
    policy = Dictated(("recalling",), lambda _, size: [depth] * size)
    drafter = kind([PROMPT + answer.tokens for answer in known])
    core = make_core(tokenizer, runner, [drafter], {"fixed": (policy, "coupled")})
    greedy = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
    sampled = SamplingParams(max_tokens=LENGTH, temperature=0.7, seed=7, ignore_eos=True)
    done = run(core, [Request("greedy", PROMPT, greedy), Request("sampled", PROMPT, sampled)])
    return [done["greedy"], done["sampled"]]


@pytest.mark.parametrize("family", EXACT)
def test_a_family_is_token_exact_whatever_is_drafted(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    """Greedy as transformers itself generates, and sampled the same as without drafts, of which some are taken back."""
    folder = saved(tmp_path / "model", *EXACT[family])
    runner = load_runner(str(folder), device="cpu", max_rows=4)
    assert isinstance(runner, TransformersRunner)
    plain = answers(runner, tokenizer, 0)
    chained = answers(runner, tokenizer, 7, plain)
    assert [answer.tokens for answer in chained] == [answer.tokens for answer in plain]
    assert all(answer.stats.drafted > answer.stats.accepted > LENGTH / 2 for answer in chained)
    branched = answers(runner, tokenizer, 3, plain, Branching)
    assert [answer.tokens for answer in branched] == [answer.tokens for answer in plain]
    if runner.info.takes_trees:  # where the chain goes wrong, the token beside it is kept
        tree, chain = (
            sum(answer.stats.accepted / answer.stats.drafted for answer in done) for done in (branched, chained)
        )
        assert tree > chain
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH)
    assert plain[0].tokens == tuple(expected[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_take_drafts_back_is_refused_in_one_line(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path / "model", *REFUSED[family])
    with pytest.raises(ModelError, match=r"rejected drafts cannot be taken back.*; choose a model") as refusal:
        load_runner(str(folder), device="cpu", max_rows=1)
    assert "\n" not in str(refusal.value)
