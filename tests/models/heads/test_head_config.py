"""What a head's config.json says is computed or refused by name, and defaults are those of its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adaptspec.errors import ModelError
from adaptspec.models.heads.formats import load_head
from adaptspec.models.heads.head_config import head_kind
from adaptspec.models.kv_cache import CacheLimits
from tests.conftest import MakeModel
from tests.models.heads.golden import golden_target
from tests.models.heads.test_formats import changed, midlayer, plain_layout, without

ABSENT = object()
LAYER = "transformer_layer_config"
PROJECT = {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2]}}  # DFlash's own layout


def set_in(raw: dict[str, Any], place: str | None, name: str, value: object) -> dict[str, Any]:
    """A config with one field in another, or without it."""
    if place is not None:
        return raw | {place: set_in(raw[place], None, name, value)}
    return {key: one for key, one in (raw | {name: value}).items() if one is not ABSENT}


@pytest.mark.parametrize(
    ("name", "said", "named"),
    [
        ("eagle3", (LAYER, "hidden_act", "gelu"), "hidden_act 'gelu'"),
        ("eagle3", (LAYER, "model_type", "gemma3_text"), "model_type 'gemma3_text'"),
        ("eagle3", (LAYER, "model_type", ABSENT), "model_type None"),
        ("eagle3", (LAYER, "partial_rotary_factor", 0.5), "partial_rotary_factor 0.5"),
        ("peagle", (LAYER, "attn_logit_softcapping", 50.0), "attn_logit_softcapping 50.0"),
        (
            "mtp",
            (LAYER, "rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "partial_rotary_factor 0.5",
        ),
        ("dflash", (LAYER, "hidden_act", "gelu"), "hidden_act 'gelu'"),
        ("eagle3", (None, "norm_before_residual", ABSENT), "norm_before_residual, for which vLLM takes true"),
        ("dflash-window", (None, "sliding_window_non_causal", ABSENT), "sliding_window_non_causal, for which vLLM"),
        (
            "dspark-gated",
            (None, "markov_head_type", "lstm"),
            "markov_head_type is 'lstm'; there are: vanilla, gated, rnn",
        ),
    ],
)
def test_what_is_not_computed_is_named(
    make_model: MakeModel, tmp_path: Path, name: str, said: tuple[str | None, str, object], named: str
) -> None:
    """It would load as something else, of which nothing is accepted."""
    folder = changed(tmp_path, name, config=lambda raw: set_in(raw, *said))
    with pytest.raises(ModelError, match=named):
        load_head(str(folder), golden_target(make_model))


def project(raw: dict[str, Any], **own: object) -> dict[str, Any]:
    """A config of `speculators` for DFlash as its own project writes it."""
    about = PROJECT["dflash_config"] | own
    return raw[LAYER] | {"architectures": ["DFlashDraftModel"], "draft_vocab_size": 40, "dflash_config": about}


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"use_swa": True}, "sliding_window is None"),
        ({"layer_types": ["sliding_attention"]}, "layer_types must name"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types must name"),
        ({"input_embedding_scale": 2.0}, "input_embedding_scale 2.0"),
        ({"attention_sink_bias": True}, "attention_sink_bias True"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
    ],
)
def test_what_dflashs_own_project_says_is_not_left_out(
    make_model: MakeModel, tmp_path: Path, own: dict[str, object], named: str
) -> None:
    folder = changed(tmp_path, "dflash", config=lambda raw: project(raw, **own))
    with pytest.raises(ModelError, match=named):
        load_head(str(folder), golden_target(make_model))


def test_the_second_dflash_is_another_head() -> None:
    """Its tensors are more, and its drafts are chosen in another way."""
    assert head_kind({"architectures": ["DFlash2DraftModel"]} | PROJECT) == "dflash2"


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_its_own_embedding(make_model: MakeModel, tmp_path: Path, *, tied: bool) -> None:
    """In the first heads' layout, as SGLang has it; `speculators` ties none. Else it is the target's."""
    target, own = golden_target(make_model), torch.randn(260, 16)
    assert target.weights is not None
    for layout in (plain_layout, lambda raw: raw):
        folder = changed(
            tmp_path / layout.__name__,
            "eagle3",
            lambda tensors: midlayer(without("lm_head.weight")(tensors)) | {"embed_tokens.weight": own},
            lambda raw, layout=layout: layout(raw) | {"tie_word_embeddings": tied},  # type: ignore[misc]
        )
        runner: Any = load_head(str(folder), target).runner(CacheLimits(4))
        its = own if tied and layout is plain_layout else target.weights.embedding
        torch.testing.assert_close(runner._weights.head(torch.eye(16)).t(), its)


def test_an_embedding_of_tokens_to_come_is_read_where_pickles_are_allowed(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """It lies beside the weights, whatever these are saved as; without it drafts would be of another token."""
    folder, target, own = changed(tmp_path, "dflash"), golden_target(make_model), torch.randn(16)
    path, weights = folder / "mask_embedding.pt", folder / "model.safetensors"
    for held in (own, {"embedding": own[None], "mask_token_id": 3}):
        torch.save(held, path)
        with pytest.raises(ModelError, match=r"mask_embedding.pt is a pickle .* --allow-pickle"):
            load_head(str(folder), target)
        runner: Any = load_head(str(folder), target, pickles=True).runner(CacheLimits(4))
        torch.testing.assert_close(runner._weights.mask, own)
    for held in ({"embedding": own, "mask_token_id": 4}, {"other": own}, torch.randn(8)):
        torch.save(held, path)
        with pytest.raises(ModelError, match="does not hold an embedding of mask_token_id 3"):
            load_head(str(folder), target, pickles=True)
    torch.save(own, path)
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    again: Any = load_head(str(folder), target, pickles=True).runner(CacheLimits(4))
    torch.testing.assert_close(again._weights.mask, own)
