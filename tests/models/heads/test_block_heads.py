"""Heads of one pass a draft: DFlash in the layout of its project, Medusa as its paper defines it."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.generation import candidate_generator

from adaptspec.errors import ModelError
from adaptspec.models.heads.head_checkpoint import load_head
from adaptspec.models.loading import load_model
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS, HIDDEN, VOCAB, Text, drafted, golden_target, head_runner, medusa
from tests.models.packing import TOLERANCE
from tests.models.test_runner import states_of

WINDOW = 4
FULL, SLIDING = "full_attention", "sliding_attention"
SLIDES = {"use_sliding_window": True, "sliding_window": WINDOW}


def test_the_layout_of_dflashs_own_project(make_model: MakeModel, tmp_path: Path) -> None:
    """A Qwen 3 config with a `dflash_config`, layers counted by what comes out of them; none of its code runs."""
    folder = tmp_path / "z"
    copytree(HEADS / "dflash", folder)
    raw = json.loads((folder / "config.json").read_text())
    described = {
        **raw["transformer_layer_config"],
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": raw["block_size"],
        "draft_vocab_size": raw["draft_vocab_size"],
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [i - 1 for i in raw["aux_hidden_state_layer_ids"]]},
    }
    (folder / "config.json").write_text(json.dumps(described))
    target = golden_target(make_model)
    texts = [Text(head_runner(place, target), "dflash") for place in (folder, HEADS / "dflash")]
    for text in texts:
        text.pass_states(9)
        assert text.runner.spec.capture == (1, 3)
    for upto in (10, 11, 12):
        torch.testing.assert_close(texts[0].draft(upto), texts[1].draft(upto), rtol=0, atol=0)


@pytest.mark.parametrize("own", [False, True], ids=["its project's", "vllm's"])
def test_medusa_guesses_from_the_last_state(make_model: MakeModel, tmp_path: Path, own: bool) -> None:
    """Head i: h + silu(W h + b), and an LM head of its own; h is the target's state behind its final norm."""
    tensors = medusa(tmp_path / "medusa", own)
    place = make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4)
    runner = head_runner(tmp_path / "medusa", golden_target(make_model))
    text = [5, 9, 30, 31, 77, 12]
    states = states_of(place, text[:-1], layers=(4,))
    runner.on_hidden_states([0], [0], [len(states)], states)
    norm = load_file(place / "model.safetensors")["model.norm.weight"]
    last = F.rms_norm(states[-1], (HIDDEN,), norm, 1e-6)
    found = [drafted(runner, tokens) for tokens in (text, [*text, 40], [*text, 40, 41])]
    names = ("blocks.{}.layers.0", "lm_heads.{}") if own else ("{}.0.linear", "{}.1")
    for i, logits in enumerate(found):
        inner, outer = names[0].format(i), names[1].format(i)
        hidden = last + F.silu(last @ tensors[f"{inner}.weight"].T + tensors[f"{inner}.bias"])
        torch.testing.assert_close(logits, hidden @ tensors[f"{outer}.weight"].T, **TOLERANCE)


@pytest.mark.parametrize("name", ["medusa", "dflash"])
def test_each_round_drafts_a_block_of_its_own(make_model: MakeModel, tmp_path: Path, name: str) -> None:
    """Also after rounds in which no drafted token was accepted: what was drafted then is of no use any more."""
    if name == "medusa":
        medusa(tmp_path / "medusa", own=True)
    folder = tmp_path / "medusa" if name == "medusa" else HEADS / name
    target, place = golden_target(make_model), make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4)
    runner, text = head_runner(folder, target), [5, 9, 30, 31]
    for seen in range(4):
        states = states_of(place, text[:-1], layers=runner.spec.capture)
        first = 0 if not seen else len(states) - 1
        runner.on_hidden_states([0], [first], [len(states) - first], states[first:])
        fresh = head_runner(folder, target)
        fresh.on_hidden_states([0], [0], [len(states)], states)
        for tokens in (text, [*text, 40], [*text, 40, 41]):
            torch.testing.assert_close(drafted(runner, tokens), drafted(fresh, tokens), **TOLERANCE)
        text.append(50 + seen)  # not what was drafted


def test_an_lm_head_that_all_of_medusa_share_is_read_once(make_model: MakeModel, tmp_path: Path) -> None:
    """Its own, or the target's, of which nothing is read: of a large vocabulary each copy is a gigabyte."""
    tensors = medusa(tmp_path / "medusa", own=True)
    shared = torch.randn(VOCAB, HIDDEN)
    layers = {name: tensor for name, tensor in tensors.items() if "lm_heads" not in name}
    size = sum(tensor.numel() for tensor in layers.values())
    place, text = make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4), [5, 9, 30]
    states = states_of(place, text[:-1], layers=(4,))
    weights = load_file(place / "model.safetensors")
    last = F.rms_norm(states[-1], (HIDDEN,), weights["model.norm.weight"], 1e-6)
    hidden = last + F.silu(last @ layers["blocks.0.layers.0.weight"].T + layers["blocks.0.layers.0.bias"])
    own_head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    for more, lm_head in (({"lm_head.weight": shared}, shared), ({}, own_head)):
        save_file(layers | more, tmp_path / "medusa" / "model.safetensors")
        runner = head_runner(tmp_path / "medusa", golden_target(make_model))
        assert runner.info.parameters == size + (shared.numel() if more else 0)
        runner.on_hidden_states([0], [0], [len(states)], states)
        torch.testing.assert_close(drafted(runner, text), hidden @ lm_head.T, **TOLERANCE)


@pytest.mark.parametrize("own", [True, False])
def test_one_of_medusas_heads_that_is_missing_is_named(make_model: MakeModel, tmp_path: Path, own: bool) -> None:
    """A file that was cut short is no Medusa that goes by the target's, unless it says so."""
    tensors = medusa(tmp_path / "medusa", own)
    name = "lm_heads.1.weight" if own else "1.1.weight"
    (full,) = (one for one in tensors if one.endswith(name))
    del tensors[full]
    save_file(tensors, tmp_path / "medusa" / "model.safetensors")
    with pytest.raises(ModelError, match=f"no {full}"):
        load_head(str(tmp_path / "medusa"), golden_target(make_model))
    config = tmp_path / "medusa" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"original_lm_head": True}))
    assert load_head(str(tmp_path / "medusa"), golden_target(make_model))


def muse(folder: Path, kinds: list[str], **more: object) -> Any:
    """The one such head that transformers has, of random weights, saved in the layout of DFlash's project, too.

    `kinds` are of its layers, `more` is what the config says there.
    """
    its = pytest.importorskip("transformers.models.muse_glimmer_assistant")  # not in transformers 5.20
    sizes = {
        **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    about = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [0, 2]}
    torch.manual_seed(5)
    settings = its.MuseGlimmerAssistantConfig(**sizes, **about, layer_types=kinds, sliding_window=WINDOW - 1)
    model = its.MuseGlimmerAssistantModel(settings).eval()
    for parameter in model.parameters():
        parameter.data.normal_(float(parameter.ndim == 1), 0.25)
    names = {"encoder.fc": "fc", "encoder.output_norm_enc": "hidden_norm"}
    tensors = {
        next((name.replace(old, new) for old, new in names.items() if name.startswith(old)), name): tensor
        for name, tensor in model.state_dict().items()
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    described = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "block_size": about["block_size"]}
    (folder / "config.json").write_text(json.dumps(sizes | described | {"dflash_config": about} | more))
    return model


@pytest.mark.parametrize("kinds", [[FULL, FULL], [FULL, SLIDING]], ids=["full", "sliding"])
def test_drafts_are_those_of_transformers_dflash(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    """Round by round of a whole answer, by its own candidate generator; windows there count the tokens on one side."""
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": kinds, "is_causal": False}
    place = make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4)
    target: Any = AutoModelForCausalLM.from_pretrained(place)
    folder = tmp_path / "dflash"
    its = muse(folder, kinds, **windows)
    rounds: list[tuple[list[int], list[int]]] = []
    generator = candidate_generator.DFlashTokenCandidateGenerator
    own = generator.get_candidates

    def noted(self: Any, input_ids: torch.Tensor, *rest: Any, **named: Any) -> Any:
        found = own(self, input_ids, *rest, **named)
        text, candidates = input_ids[0].tolist(), found[0][0].tolist()
        rounds.append((text, candidates[len(text) :]))
        return found

    monkeypatch.setattr(generator, "get_candidates", noted)
    text = torch.randint(4, VOCAB, (1, 9))
    target.generate(
        text, assistant_model=its, speculation_type="dflash", do_sample=False, max_new_tokens=24, eos_token_id=None
    )
    head = head_runner(folder, load_model(str(place)), context=96)
    states, passed, count = states_of(place, rounds[-1][0], layers=head.spec.capture), 0, 0
    for tokens, expected in rounds:
        if expected:
            read = len(tokens) - 1
            head.on_hidden_states([0], [passed], [read - passed], states[passed:read])
            passed, found = read, list[int]()
            for _ in expected:
                found.append(int(drafted(head, [*tokens, *found]).argmax()))
            assert found == expected
            count += len(found)
    assert count >= 24


@pytest.mark.parametrize(
    ("about", "own", "sees"),
    [
        ({}, {}, [(None, False), (None, False)]),
        ({"is_causal": True}, {}, [(None, True), (None, True)]),
        ({}, {"causal": True}, [(None, True), (None, True)]),
        ({"layer_types": [FULL, SLIDING], **SLIDES}, {}, [(None, False), (WINDOW, True)]),
        ({"layer_types": [FULL, SLIDING], **SLIDES}, {"causal": False}, [(None, False), (WINDOW, False)]),
        ({"layer_types": [FULL, SLIDING], "is_causal": False, **SLIDES}, {"causal": True}, [(None, False), (4, False)]),
        ({"layer_types": [FULL, SLIDING], "use_sliding_window": False}, {}, [(None, False), (None, True)]),
        ({"layer_types": [FULL, FULL]}, {"use_swa": True, "swa_window_size": 3}, [(3, False), (3, False)]),
        ({"sliding_window": 3}, {"use_swa": True}, [(3, False), (3, False)]),
        ({"layer_types": [SLIDING, FULL], **SLIDES}, {"swa_window_size": 3}, [(3, True), (None, False)]),
    ],
)
def test_slots_see_what_dflashs_own_project_says(
    make_model: MakeModel,
    tmp_path: Path,
    about: dict[str, object],
    own: dict[str, object],
    sees: list[tuple[int | None, bool]],
) -> None:
    """Of each layer its window, which counts from each slot to both sides, and whether it hides later slots."""
    folder = tmp_path / "dflash"
    its = muse(folder, [FULL, SLIDING], **about)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"dflash_config": raw["dflash_config"] | own}))
    target = golden_target(make_model)
    text, states = torch.randint(4, VOCAB, (10,)).tolist(), torch.randn(9, 2 * HIDDEN)
    size, masks = its.config.block_size, []
    back = torch.arange(9, 9 + size)[:, None] - torch.arange(9 + size)
    for window, causal in sees:
        seen = back >= (0 if causal else -size)
        seen = seen if window is None else seen & (back < window) & (back > -window)
        masks.append(seen[None, None])
    assert target.weights is not None
    embedding = target.weights.embedding.table
    with torch.no_grad():
        out = its(
            noise_embeds=embedding[[text[-1], *[its.config.mask_token_id] * (size - 1)]][None],
            context_hidden_states=states[None],
            position_ids=torch.arange(9 + size)[None],
            attention_mask=dict(zip((FULL, SLIDING), masks, strict=True)),
        ).last_hidden_state[0, 1:]
    runner = head_runner(folder, target)
    runner.on_hidden_states([0], [0], [len(states)], states)
    found = [drafted(runner, [*text, *range(40, 40 + slot)]) for slot in range(4)]
    torch.testing.assert_close(torch.stack(found), out @ embedding.T, **TOLERANCE)


def test_layers_that_no_medusa_has_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    """Their names alone would fill the memory."""
    medusa(tmp_path / "medusa", own=True)
    config = tmp_path / "medusa" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 10**9}))
    with pytest.raises(ModelError, match="medusa_num_layers is 1000000000"):
        load_head(str(tmp_path / "medusa"), golden_target(make_model))
