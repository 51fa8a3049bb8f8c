"""Heads are known by their config in every layout that people have, and what does not fit is said by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, modeling_layers

from adaptspec.errors import ModelError
from adaptspec.models.heads.head_checkpoint import head_kind, is_head, load_head
from adaptspec.models.loading import LoadedModel, load_model
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS, Text, drafted, golden_target, head_runner
from tests.models.packing import TOLERANCE
from tests.models.test_runner import states_of
from tests.models.test_transformers_runner import saved

Tensors = dict[str, torch.Tensor]
ABSENT = object()
LAYER = "transformer_layer_config"
PROJECT = {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2]}}  # DFlash's own layout


def changed(
    tmp_path: Path,
    name: str,
    tensors: Callable[[Tensors], Tensors] = lambda own: own,
    config: Callable[[dict[str, Any]], dict[str, Any]] = lambda own: own,
) -> Path:
    """A golden head, saved in another way."""
    folder = tmp_path / "head"
    copytree(HEADS / name, folder)
    save_file(tensors(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    described = config(json.loads((folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def plain_layout(raw: dict[str, Any]) -> dict[str, Any]:
    """As SafeAI, SpecForge and AngelSlim write it: a Llama's config, and layers by what comes out of them."""
    ids = [number - 1 for number in raw["eagle_aux_hidden_state_layer_ids"]]
    return {
        **raw["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": raw["draft_vocab_size"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True},
        **{name: raw[name] for name in ("fc_norm", "norm_output", "norm_before_residual")},
    }


def midlayer(tensors: Tensors) -> Tensors:
    """The names of tensors in that layout; embeddings are the target's."""
    names = {name: name.replace("layers.0.", "midlayer.") for name in tensors}
    return {names[name]: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", ["eagle3-vocabulary", "eagle3.1"])
def test_the_layout_of_the_first_heads_is_the_same_head(make_model: MakeModel, tmp_path: Path, name: str) -> None:
    """Its layer numbers differ by one, its tensors by name."""
    shift = {"eagle3-vocabulary": [1, 2, 3]}.get(name)
    folder = changed(
        tmp_path,
        name,
        midlayer,
        lambda raw: plain_layout(raw | ({"eagle_aux_hidden_state_layer_ids": shift} if shift else {})),
    )
    text = Text(head_runner(folder, golden_target(make_model)), name)
    text.pass_states(9)
    torch.testing.assert_close(text.own(text.draft(10)), text.expected[0, 8], **TOLERANCE)


def test_pickles_are_read_where_they_are_allowed(make_model: MakeModel, tmp_path: Path) -> None:
    """The first heads come in no other form. What is no tensor, or would run code, is never built."""
    folder, target = changed(tmp_path, "eagle3"), golden_target(make_model)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="--allow-pickle"):
        load_head(str(folder), target)
    text = Text(head_runner(folder, target, pickles=True), "eagle3")
    text.pass_states(5)
    torch.testing.assert_close(text.own(text.draft(6)), text.expected[0, 4], **TOLERANCE)
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="plain tensors"):
        load_head(str(folder), target, pickles=True)


def test_layers_are_the_same_in_both_conventions(make_model: MakeModel, tmp_path: Path) -> None:
    """`speculators` numbers the layer that a state enters, others the layer that it leaves."""
    target = golden_target(make_model)
    assert head_runner(HEADS / "eagle3", target).spec.capture == (1, 2, 4)
    folder = changed(tmp_path, "eagle3", config=plain_layout)
    assert head_runner(folder, target).spec.capture == (1, 2, 4)
    unstated = changed(tmp_path / "unstated", "eagle3", config=lambda raw: plain_layout(raw) | {"eagle_config": None})
    with pytest.raises(ModelError, match=r"\[2, 2, 1\], which must ascend"):  # the usual ones, of larger models
        load_head(str(unstated), target)


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda own: {other: tensor for other, tensor in own.items() if other != name}


@pytest.mark.parametrize(
    ("tensors", "config", "named"),
    [
        (without("fc.weight"), {}, "fc.weight"),
        (without("layers.0.hidden_norm.weight"), {}, "hidden_norm"),
        (lambda own: own | {"extra.weight": torch.zeros(1)}, {}, "extra.weight"),
        (lambda own: own | {"d2t": torch.full((40,), 300)}, {}, "d2t"),
        (None, {"target_hidden_size": 64}, "64 hidden numbers"),
        (None, {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, "5"),
        (None, {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "fc.weight"),
        (None, {"speculators_model_type": "xpress"}, "xpress"),
        (None, {"transformer_layer_config": None}, "transformer_layer_config"),
        (None, {"draft_vocab_size": 10**9}, "draft_vocab_size is 1000000000"),
        (None, {"architectures": 1}, "architectures is 1; it must be a list of names"),
        (None, {"eagle_aux_hidden_state_layer_ids": "x"}, "must be a list of whole numbers"),
        (None, {"eagle_aux_hidden_state_layer_ids": [1, None, 4]}, "must be a list of whole numbers"),
        (None, {"eagle_config": [1]}, "eagle_config .* must be an object"),
        (None, {"transformer_layer_config": "x"}, "transformer_layer_config .* must be an object"),
    ],
)
def test_what_does_not_fit_is_named(
    make_model: MakeModel,
    tmp_path: Path,
    tensors: Callable[[Tensors], Tensors] | None,
    config: dict[str, Any],
    named: str,
) -> None:
    """Wrong target, missing or extra tensors, layers that there are not."""
    folder = changed(tmp_path, "eagle3-vocabulary", tensors or (lambda own: own), lambda raw: raw | config)
    with pytest.raises(ModelError, match=named):
        load_head(str(folder), golden_target(make_model))


@pytest.mark.parametrize(
    ("name", "config", "named"),
    [
        ("dflash", {"block_size": 1}, "block_size is 1, and its first slot drafts nothing"),
        ("dflash", {"block_size": 10**9}, "block_size is 1000000000"),
        ("dflash", {"mask_token_id": True}, "mask_token_id is True"),
        ("mtp", {"target_hidden_size": 16, "transformer_layer_config": {"hidden_size": 8}}, "a target of 8 hidden"),
        ("eagle3", {"transformer_layer_config": {"head_dim": 2**30}}, "q_proj.weight is .* where config.json asks for"),
    ],
)
def test_what_no_head_says_is_named(
    make_model: MakeModel, tmp_path: Path, name: str, config: dict[str, Any], named: str
) -> None:
    """Sizes for which no machine has room, blocks without a slot: at load, not when something is to be drafted."""
    folder = changed(tmp_path, name)
    raw = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        raw[key] = raw[key] | value if key == "transformer_layer_config" else value
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match=named):
        load_head(str(folder), golden_target(make_model))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"speculators_model_type": "peagle"}, "P-EAGLE heads cannot draft here; use an EAGLE-3 or DFlash head"),
        ({"speculators_model_type": "dspark"}, "their Markov head is not computed; use a DFlash or EAGLE-3 head"),
        (
            {"speculators_model_type": None, "dflash_config": {"mask_token_id": 3}, "markov_rank": 4},
            "their Markov head is not computed",
        ),
    ],
)
def test_kinds_that_are_not_supported_are_refused_by_name(
    make_model: MakeModel, tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    folder = changed(tmp_path, "dflash", config=lambda raw: raw | config)
    assert is_head(str(folder))
    with pytest.raises(ModelError, match=named):
        load_head(str(folder), golden_target(make_model))


ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": 1}


def test_multi_token_prediction_of_a_target_that_transformers_runs_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, GPT2Config(vocab_size=260, n_embd=16, n_layer=2, n_head=2, n_positions=64, **ENDS))
    target = load_model(str(folder))
    with pytest.raises(ModelError, match="is run by transformers, where its layer for multi-token prediction"):
        load_head(str(folder), target)


def test_damaged_pickles_are_named(make_model: MakeModel, tmp_path: Path) -> None:
    """Whatever torch makes of them."""
    folder, target = changed(tmp_path, "eagle3"), golden_target(make_model)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for place in range(0, 400, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        with suppress(ModelError):
            load_head(str(folder), target, pickles=True)


def test_a_target_of_other_tokens_is_refused(make_model: MakeModel) -> None:
    """Its drafts would be of other words."""
    other: LoadedModel = load_model(str(make_model("llama", hidden_size=16, num_hidden_layers=4, vocab_size=300)))
    with pytest.raises(ModelError, match="300"):
        load_head(str(HEADS / "eagle3"), other)


def test_language_models_are_no_heads(target_path: Path) -> None:
    """They are told apart by config.json alone."""
    assert not is_head(str(target_path))
    assert is_head(str(HEADS / "eagle3"))
    assert head_kind({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}) == "eagle3"
    assert head_kind({"architectures": ["LlamaForCausalLMEagle3"]}) == "eagle3"
    # Its tensors are more than those of the first DFlash, and its drafts are chosen in another way.
    assert head_kind({"architectures": ["DFlash2DraftModel"], "dflash_config": {}}) == "dflash2"


@pytest.mark.parametrize("tied", [True, False])
def test_a_layer_in_the_targets_own_files_is_transformers_mtp(
    make_model: MakeModel, tmp_path: Path, *, tied: bool
) -> None:
    """Its names are Qwen 3 Next's; it reads the state behind the target's norm. Logits at steps 1 to 3."""
    if not hasattr(modeling_layers, "MtpModel"):
        pytest.skip("this transformers has no such model")
    folder = tmp_path / "target"
    copytree(make_model("qwen3", tie_word_embeddings=tied), folder)
    target: Any = AutoModelForCausalLM.from_pretrained(folder)
    text = torch.randint(4, 250, (1, 12))
    states = states_of(folder, text[0].tolist(), layers=(target.config.num_hidden_layers,))
    target.config.update({"num_mtp_layers": 1, "mtp_layer_types": ["full_attention"]})
    torch.manual_seed(1)
    head = modeling_layers.MtpModel(target, 1).eval()
    for parameter in head.layers.parameters():
        parameter.data.normal_(float(parameter.ndim == 1), 0.25)
    names = {
        **{"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"},
        "mtp_block": "layers.0",
    }
    own = {}
    for name, tensor in head.layers[0].state_dict().items():
        part, _, rest = name.partition(".")
        own[f"mtp.{names[part]}.{rest}"] = tensor
    save_file(load_file(folder / "model.safetensors") | own, folder / "model.safetensors")
    runner = head_runner(folder, load_model(str(folder)))
    runner.on_hidden_states([0], [0], [12], states)
    with torch.no_grad():
        state, read = target.model.norm(states)[None], text[0].tolist()
        for _ in range(3):
            read.append((read[-1] * 7 + 3) % 250)
            found = drafted(runner, read)
            tokens, places = torch.tensor([read[1:]]), torch.arange(1, len(read))[None]
            behind = head.forward_layer(0, state, places, None, input_ids=tokens)
            torch.testing.assert_close(found, target.lm_head(behind[0, -1]), **TOLERANCE)
            state = torch.cat((state, behind[:, -1:]), 1)


def test_a_target_without_such_a_layer_says_so(make_model: MakeModel) -> None:
    loaded = load_model(str(make_model("qwen3")))
    with pytest.raises(ModelError, match=r"brings no layer for multi-token prediction \(mtp.fc.weight"):
        load_head(str(loaded.folder), loaded)


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
        ("eagle3", (LAYER, "attn_logit_softcapping", 50.0), "attn_logit_softcapping 50.0"),
        (
            "mtp",
            (LAYER, "rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "partial_rotary_factor 0.5",
        ),
        ("dflash", (LAYER, "hidden_act", "gelu"), "hidden_act 'gelu'"),
        ("eagle3", (None, "norm_before_residual", ABSENT), "norm_before_residual, for which vLLM takes true"),
        ("dflash-window", (None, "sliding_window_non_causal", ABSENT), "sliding_window_non_causal, for which vLLM"),
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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["eagle3", "eagle3-vocabulary"])
def test_a_tied_lm_head_is_its_own_embedding(make_model: MakeModel, tmp_path: Path, name: str, *, tied: bool) -> None:
    """In the first heads' layout, as SGLang has it; `speculators` ties none. Else it is the target's."""
    target, own = golden_target(make_model), torch.randn(260, 16)
    assert target.weights is not None
    for layout in (plain_layout, lambda raw: raw):
        folder = changed(
            tmp_path / layout.__name__,
            name,
            lambda tensors: midlayer(without("lm_head.weight")(tensors)) | {"embed_tokens.weight": own},
            lambda raw, layout=layout: layout(raw) | {"tie_word_embeddings": tied},  # type: ignore[misc]
        )
        first = Text(head_runner(folder, target), name)
        whole = own if tied and layout is plain_layout else target.weights.embedding.table
        vocabulary = first.runner.spec.vocabulary
        table = whole if vocabulary is None else whole[vocabulary]
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {"lm_head.weight": table.contiguous()}, folder / "model.safetensors")
        second = Text(head_runner(folder, target), name)
        for text in (first, second):
            text.pass_states(6)
        torch.testing.assert_close(first.draft(7), second.draft(7), **TOLERANCE)


def test_an_embedding_of_masks_is_read_where_pickles_are_allowed(make_model: MakeModel, tmp_path: Path) -> None:
    """It lies next to the weights, whatever these are saved as; without it drafts would be of another token."""
    target, own = golden_target(make_model), torch.randn(16)
    assert target.weights is not None
    table = target.weights.embedding.table.clone()
    table[3] = own
    expected = Text(head_runner(changed(tmp_path / "expected", "dflash", with_table(table)), target), "dflash")
    folder = changed(tmp_path, "dflash")
    path, weights = folder / "mask_embedding.pt", folder / "model.safetensors"

    def check() -> None:
        found = Text(head_runner(folder, target, pickles=True), "dflash")
        for text in (found, expected):
            text.passed = 0
            text.runner.free(0)
            text.pass_states(6)
        torch.testing.assert_close(found.draft(7), expected.draft(7), **TOLERANCE)

    for held in (own, {"embedding": own[None], "mask_token_id": 3}):
        torch.save(held, path)
        with pytest.raises(ModelError, match=r"mask_embedding.pt is a pickle .* --allow-pickle"):
            load_head(str(folder), target)
        check()
    for held in ({"embedding": own, "mask_token_id": 4}, {"other": own}, torch.randn(8)):
        torch.save(held, path)
        with pytest.raises(ModelError, match="does not hold an embedding of mask_token_id 3"):
            load_head(str(folder), target, pickles=True)
    torch.save(own, path)
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    check()


def with_table(table: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda own: own | {"embed_tokens.weight": table}


def test_the_slot_of_the_newest_token_drafts_if_config_says_so(make_model: MakeModel, tmp_path: Path) -> None:
    """DFlash's `sample_from_anchor`: one token more is drafted, and what follows it is drafted a slot later."""
    folder = changed(tmp_path, "dflash", config=lambda raw: raw | {"sample_from_anchor": True})
    usual, more = (Text(head_runner(one, golden_target(make_model)), "dflash") for one in (HEADS / "dflash", folder))
    assert (usual.runner.info.deepest, more.runner.info.deepest) == (3, 4)
    for text in (usual, more):
        text.pass_states(6)
    more.draft(7)
    torch.testing.assert_close(more.draft(8), usual.draft(7), **TOLERANCE)
