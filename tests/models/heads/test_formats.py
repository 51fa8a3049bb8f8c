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
from transformers import AutoModelForCausalLM, modeling_layers

from adaptspec.errors import ModelError
from adaptspec.models.heads.formats import HeadFiles, head_kind, is_head, load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import LoadedModel, load_model
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS, Text, golden_target
from tests.models.packing import TOLERANCE, pack

Tensors = dict[str, torch.Tensor]


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
    runner = load_head(str(folder), golden_target(make_model)).runner(CacheLimits(4, context=64))
    text = Text(runner, name)  # type: ignore[arg-type]
    text.hear(9)
    torch.testing.assert_close(text.own(text.read(10)), text.expected[0, 8], **TOLERANCE)


def test_pickles_are_read_where_they_are_allowed(make_model: MakeModel, tmp_path: Path) -> None:
    """The first heads come in no other form. What is no tensor, or would run code, is never built."""
    folder, target = changed(tmp_path, "eagle3"), golden_target(make_model)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="--allow-pickle"):
        load_head(str(folder), target)
    text = Text(load_head(str(folder), target, pickles=True).runner(CacheLimits(4)), "eagle3")  # type: ignore[arg-type]
    text.hear(5)
    torch.testing.assert_close(text.own(text.read(6)), text.expected[0, 4], **TOLERANCE)
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="plain tensors"):
        load_head(str(folder), target, pickles=True)


def test_layers_count_alike_in_both_conventions(make_model: MakeModel) -> None:
    """`speculators` numbers the layer that a state goes into, others the one that it comes out of."""
    raw, target = json.loads((HEADS / "eagle3" / "config.json").read_text()), golden_target(make_model)
    assert HeadFiles(HEADS / "eagle3", raw, target).states == (1, 2, 4)
    plain = plain_layout(raw)
    assert HeadFiles(HEADS / "eagle3", plain, target).states == (1, 2, 4)
    with pytest.raises(ModelError, match=r"\[2, 2, 1\], which must ascend"):  # the usual ones, of larger models
        HeadFiles(HEADS / "eagle3", plain | {"eagle_config": None}, target)


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
        ("peagle", {"speculators_config": 1}, "speculators_config is 1"),
        ("peagle", {"speculators_config": {"proposal_methods": [1]}}, "must be a list of objects"),
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
    loaded = load_model(str(folder))
    runner: Any = load_head(str(folder), loaded).runner(CacheLimits(2, context=64))
    reader: Any = loaded.runner(CacheLimits(2, context=64))
    reader.listen(runner)
    text = torch.randint(4, 250, (1, 12))
    reader.reserve(0, 12)
    reader.forward(pack((0, text[0].tolist(), 1)))
    state = target(text, output_hidden_states=True).hidden_states[-1]
    drafted, read = text[:, 1:].tolist()[0], text[0].tolist()
    for _ in range(3):
        drafted.append((drafted[-1] * 7 + 3) % 250)
        runner.reserve(0, len(drafted) + 1)
        found = runner.forward(pack((0, [*read, *drafted[11:]][runner.length(0) :], 1)))
        tokens, places = torch.tensor([drafted]), torch.arange(1, len(drafted) + 1)[None]
        with torch.no_grad():
            states = head.forward_layer(0, state, places, None, input_ids=tokens)
        torch.testing.assert_close(found[0], target.lm_head(states[0, -1]), **TOLERANCE)
        state = torch.cat((state, states[:, -1:]), 1)


def test_a_target_without_such_a_layer_says_so(make_model: MakeModel) -> None:
    loaded = load_model(str(make_model("qwen3")))
    with pytest.raises(ModelError, match=r"brings no layer for multi-token prediction \(mtp.fc.weight"):
        load_head(str(loaded.folder), loaded)
