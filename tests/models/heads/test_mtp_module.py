"""The layer for multi-token prediction of DeepSeek and GLM, in the target's own files, by transformers' own module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, modeling_layers

from adaptspec.models.heads.formats import load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from tests.conftest import tiny_tokenizer
from tests.models.packing import TOLERANCE, pack
from tests.models.test_branches import sight

pytestmark = pytest.mark.skipif(not hasattr(modeling_layers, "MtpModel"), reason="this transformers has no such model")

LAYERS, HIDDEN, VOCAB = 2, 32, 260
SIZES = {
    **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": 4, "max_position_embeddings": 128},
    **{"initializer_range": 0.25, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "intermediate_size": 32},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1},
    **{"first_k_dense_replace": 1, "num_hidden_layers": LAYERS + 1},
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
FAMILIES = {
    "DeepseekV3Config": {**LATENT, "num_key_value_heads": 4},
    "Glm4MoeConfig": {"num_key_value_heads": 2, "head_dim": 8, "use_qk_norm": True},
}


@pytest.fixture(params=FAMILIES)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any, dict[str, torch.Tensor]]:
    """A target whose files hold one layer more, a model of all these layers, and what joins states to the last.

    As in DeepSeek's files, the layer brings copies of embedding and head, which are not read.
    """
    torch.manual_seed(0)
    config = getattr(transformers, request.param)(**SIZES, **FAMILIES[request.param])
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(float(parameter.ndim == 1), 0.25)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_()
    folder, prefix = tmp_path / "target", f"model.layers.{LAYERS}."
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    norms = {f"{prefix}{name}.weight": torch.randn(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")}
    own = norms | {f"{prefix}eh_proj.weight": torch.randn(HIDDEN, 2 * HIDDEN) * 0.2}
    tensors = load_file(folder / "model.safetensors")
    again = {f"{prefix}{name}.weight": torch.zeros(VOCAB, HIDDEN) for name in ("embed_tokens", "shared_head.head")}
    save_file(tensors | own | again, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    said.pop("mlp_layer_types", None)
    (folder / "config.json").write_text(json.dumps(said | {"num_nextn_predict_layers": 1}))
    return folder, model, {name.removeprefix(prefix).removesuffix(".weight"): one for name, one in own.items()}


def directly(model: Any, own: dict[str, torch.Tensor], tokens: list[int], states: torch.Tensor) -> torch.Tensor:
    """States [n, hidden] of tokens [n] and the states before them, each of which sees those before it."""
    norm = lambda name, x: torch.nn.functional.rms_norm(x, (HIDDEN,), own[name], model.config.rms_norm_eps)  # noqa: E731
    embedded = model.model.embed_tokens(torch.tensor([tokens]))
    joined = torch.cat((norm("enorm", embedded), norm("hnorm", states[None])), -1) @ own["eh_proj"].T
    places, count = torch.arange(len(tokens))[None], len(tokens)
    mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
    turned = model.model.rotary_emb(joined, position_ids=places)
    out = model.model.layers[LAYERS](joined, attention_mask=mask, position_ids=places, position_embeddings=turned)
    return norm("shared_head.norm", out if isinstance(out, torch.Tensor) else out[0])[0]


@torch.inference_mode()
def test_its_logits_are_those_of_a_direct_forward(whole: tuple[Path, Any, dict[str, torch.Tensor]]) -> None:
    """At steps 1 to 3, of two rows beside each other, after a draft that was taken back, and of two branches."""
    folder, model, own = whole
    loaded = load_model(str(folder))
    head_model = load_head(str(folder), loaded)
    limits = CacheLimits(2, context=64)
    runner, reader = (one.runner(limits) for one in (head_model, loaded))
    reader.listen(runner)  # type: ignore[attr-defined]
    model.model.layers, layer = model.model.layers[:LAYERS], model.model.layers[LAYERS]
    model.config.num_hidden_layers = LAYERS
    texts = [torch.randint(4, VOCAB, (count,)).tolist() for count in (12, 9)]
    states = [model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0] for text in texts]
    model.model.layers.append(layer)
    for row, text in enumerate(texts):
        reader.reserve(row, 20)
        runner.reserve(row, 20)
        reader.forward(pack((row, text, 1)))
    for newest in (30, 40):
        found = runner.forward(
            pack(*((row, [*text, newest][runner.length(row) :], 1) for row, text in enumerate(texts)))
        )
        for row, (text, told) in enumerate(zip(texts, states, strict=True)):
            read, given = [*text[1:], newest], told
            for step, token in enumerate((0, 50, 60)):
                if step:
                    found[row] = runner.forward(pack((row, [token], 1)))[0]
                    read.append(token)
                state = directly(model, own, read, given)
                torch.testing.assert_close(found[row], model.lm_head(state[-1]), **TOLERANCE)
                given = torch.cat((given, state[-1:]))
            runner.truncate(row, len(text))
    read = [*texts[0], 30]
    first = runner.forward(pack((0, read[runner.length(0) :], 1)))
    parents = [-1, -1, 0, 1]
    for place, token in enumerate((50, 51, 60, 61)):
        seen = sight(parents[: place + 1])[-1:, 1:]
        branch = runner.forward(pack((0, [token], 1), seen=[seen]))[0]
        chain = [30, *((50, 60) if place in {0, 2} else (51, 61))][: 2 + place // 2]
        told, path = states[0], list(texts[0][1:])
        for one in chain:
            path.append(one)
            state = directly(model, own, path, told)
            told = torch.cat((told, state[-1:]))
        torch.testing.assert_close(branch, model.lm_head(state[-1]), **TOLERANCE)
    assert first.shape == (1, VOCAB)
    for row in range(2):
        reader.free(row)
    assert runner.free_memory == 1.0
    assert not runner._caches  # type: ignore[attr-defined]
